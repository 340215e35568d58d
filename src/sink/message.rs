//! What is sent: one record, rendered for the wire and addressed.

use std::fmt;
use std::time::SystemTime;

use bson::DateTime;
use bson::oid::ObjectId;
use uuid::Uuid;

use crate::dates::rfc3339;

/// One outbox record as a sink sees it: independent of MongoDB and of any broker.
///
/// Made once per delivery by the relay from the record's [`Content`](crate::outbox::content::Content); the same record
/// gives the same message (and id) on every delivery.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// The record's `_id` as text.
    pub id: String,
    /// The record's `key`; `None` where it had none, `""` is a key.
    pub key: Option<String>,
    /// The record's `type`.
    pub kind: String,
    /// Given by the producer, else derived from the payload's BSON type.
    pub content_type: String,
    /// The body in bytes; `None` for a null payload (a Kafka tombstone, an empty AMQP body).
    pub payload: Option<Vec<u8>>,
    /// The producer's headers, in its order, with those of the route behind them.
    pub headers: Vec<(String, HeaderValue)>,
    /// The record's `tenantId`.
    pub tenant_id: Option<String>,
    /// `createdAt`, else the seconds of `seq`.
    pub timestamp: Option<SystemTime>,
    /// The CloudEvents source, where the message's sink speaks CloudEvents.
    pub source: Option<String>,
    /// Where to.
    pub address: Address,
    /// Many more records of its key wait behind it than behind others. A sink that lets messages wait
    /// for others, to send them together, sends this one at once.
    pub is_urgent: bool,
}

/// Shows no payload, only its length: whatever holds a message may be logged.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("key", &self.key)
            .field("kind", &self.kind)
            .field("content_type", &self.content_type)
            .field("payload_bytes", &self.payload.as_ref().map(Vec::len))
            .field("headers", &self.headers)
            .field("tenant_id", &self.tenant_id)
            .field("timestamp", &self.timestamp)
            .field("source", &self.source)
            .field("address", &self.address)
            .field("is_urgent", &self.is_urgent)
            .finish()
    }
}

/// Where one message goes within its sink, all templates rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Exchange (`""`: the default exchange) or topic.
    pub destination: String,
    /// Routing key, or the record key that a route asks for in Kafka.
    pub key: Option<String>,
}

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
