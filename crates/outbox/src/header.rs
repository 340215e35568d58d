//! Values of message headers.

use bson::DateTime;
use bson::oid::ObjectId;
use postrider_store::dates::rfc3339;
use uuid::Uuid;

/// Value of a header: the BSON scalars that a broker can carry.
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
    /// Sent as text: neither broker has a decimal type.
    Decimal128(bson::Decimal128),
    /// AMQP void, Kafka null.
    Null,
}

impl HeaderValue {
    /// Returns the value as text; `None` for bytes and null.
    pub fn text(&self) -> Option<String> {
        Some(match self {
            Self::String(text) => text.clone(),
            Self::Int32(number) => number.to_string(),
            Self::Int64(number) => number.to_string(),
            // As in extended JSON. JSON and Erlang have no such number: RabbitMQ closes the connection
            // on one.
            Self::Double(number) => number.to_string().replace("inf", "Infinity"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_outside_rfc_3339_is_text_of_milliseconds() {
        assert_eq!(HeaderValue::Date(i64::MAX).text(), Some(i64::MAX.to_string()));
    }

    #[test]
    fn double_that_is_not_finite_is_text_of_extended_json() {
        for (number, expected) in [
            (-f64::NAN, "NaN"),
            (f64::INFINITY, "Infinity"),
            (f64::NEG_INFINITY, "-Infinity"),
            (-0.5, "-0.5"),
        ] {
            assert_eq!(HeaderValue::Double(number).text().as_deref(), Some(expected));
        }
    }
}
