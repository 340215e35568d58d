//! The message: one record, rendered and addressed.

use std::fmt;
use std::time::SystemTime;

use postrider_outbox::header::HeaderValue;

/// One outbox record as a sink sees it: independent of MongoDB and of any broker.
///
/// Made once per delivery by the relay from the record's [`Content`](postrider_outbox::content::Content); the same record
/// gives the same message (and id) on every delivery.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// The record's `_id` as text.
    pub id: String,
    /// The record's `key`; `None` where it had none, `""` is a key.
    pub key: Option<String>,
    /// The record's `type`.
    pub kind: String,
    /// Set by the producer, otherwise derived from the payload's BSON type.
    pub content_type: String,
    /// The body in bytes; `None` for a null payload (a Kafka tombstone, an empty AMQP body).
    pub payload: Option<Vec<u8>>,
    /// The producer's headers, in its order, with those of the route behind them.
    pub headers: Vec<(String, HeaderValue)>,
    /// The record's `tenantId`.
    pub tenant_id: Option<String>,
    /// `createdAt`, otherwise the seconds of `seq`.
    pub timestamp: Option<SystemTime>,
    /// The CloudEvents source, where the message's sink speaks CloudEvents.
    pub source: Option<String>,
    /// The destination.
    pub address: Address,
    /// Whether many more records of its key wait behind it than behind others. A sink that delays
    /// messages to send several together sends this one at once.
    pub is_urgent: bool,
}

/// Prints the length of the payload, not the payload: messages may be logged.
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

/// The address of a message within its sink, with all templates rendered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Exchange (`""`: the default exchange) or topic.
    pub destination: String,
    /// Routing key, or the record key that a route asks for in Kafka.
    pub key: Option<String>,
}
