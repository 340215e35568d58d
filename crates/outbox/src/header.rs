//! Headers of a message: the values that a record can give them.

use bson::DateTime;
use bson::oid::ObjectId;
use postrider_store::dates::rfc3339;
use uuid::Uuid;

/// A header's value: the BSON scalars that a broker can carry.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderValue {
    /// UTF-8 text.
    String(String),
    /// A 32-bit integer.
    Int32(i32),
    /// A 64-bit integer.
    Int64(i64),
    /// A double.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// Milliseconds since the epoch.
    Date(i64),
    /// Bytes, of any binary subtype but UUID.
    Binary(Vec<u8>),
    /// Sent as 24 hexadecimal digits.
    ObjectId(ObjectId),
    /// Sent as text with hyphens.
    Uuid(Uuid),
    /// Sent as text: neither broker has such a number.
    Decimal128(bson::Decimal128),
    /// AMQP void, Kafka null.
    Null,
}

impl HeaderValue {
    /// The same as text; `None` for bytes and null, which are no text.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            Self::String(text) => text.clone(),
            Self::Int32(number) => number.to_string(),
            Self::Int64(number) => number.to_string(),
            Self::Double(number) => {
                name_of_non_finite(*number).map_or_else(|| number.to_string(), str::to_owned)
            }
            Self::Bool(truth) => truth.to_string(),
            Self::Date(millis) => {
                rfc3339(DateTime::from_millis(*millis)).unwrap_or_else(|| millis.to_string())
            }
            Self::ObjectId(id) => id.to_hex(),
            Self::Uuid(id) => id.to_string(),
            Self::Decimal128(number) => number.to_string(),
            Self::Binary(_) | Self::Null => return None,
        })
    }
}

/// The name of a double that is no finite number, as extended JSON has it; `None` for all others.
///
/// JSON has no such number, and Erlang neither: RabbitMQ closes the connection on one.
fn name_of_non_finite(number: f64) -> Option<&'static str> {
    match number {
        _ if number.is_nan() => Some("NaN"),
        f64::INFINITY => Some("Infinity"),
        f64::NEG_INFINITY => Some("-Infinity"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_outside_the_years_of_rfc_3339_is_its_milliseconds() {
        assert_eq!(HeaderValue::Date(i64::MAX).text(), Some(i64::MAX.to_string()));
    }
}
