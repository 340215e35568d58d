//! Renders a message for AMQP, or refuses it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use postrider_relay::sink::{Address, HeaderValue, Message, PublishError, PublishFailure};

use crate::cloud_events;

/// `delivery_mode` of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// AMQP's limit for a short string.
const MAX_SHORT_STRING_BYTES: usize = 255;

/// The most that a header frame has in addition to the table of headers: its own framing and the other
/// properties, among them seven short strings.
const MAX_OTHER_HEADER_FRAME_BYTES: usize = 8 + 14 + 7 * (MAX_SHORT_STRING_BYTES + 1) + 16;

/// Headers of sender-selected distribution. RabbitMQ closes the channel if their values are not lists.
const SELECTOR_HEADERS: [&str; 2] = ["CC", "BCC"];

/// The exchange and routing key of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
}

/// A message as AMQP has it.
pub(super) struct Rendered {
    pub(super) id: String,
    pub(super) target: Target,
    pub(super) properties: BasicProperties,
    pub(super) payload: Vec<u8>,
}

/// Omits the payload, like [`Message`].
impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendered").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Renders a message, or refuses it before anything is sent.
///
/// # Errors
///
/// [`PublishFailure::Rejected`] if it exceeds a limit of AMQP: 255 bytes in a short string,
/// `frame_max` (of this connection; 0 means none) in the headers. Or if it must be a CloudEvent and cannot.
pub(super) fn render(
    message: Message,
    event_prefix: Option<&str>,
    frame_max: u32,
) -> Result<Rendered, PublishError> {
    let attributes = cloud_events::attributes(event_prefix, &message)?;
    let Message {
        id,
        key,
        kind,
        content_type,
        payload,
        headers,
        tenant_id,
        timestamp,
        address,
        ..
    } = message;
    let target = target(address)?;
    let mut table = FieldTable::default();
    let mut size = 4;
    for (name, value) in headers {
        if SELECTOR_HEADERS.contains(&name.as_str()) {
            let detail = format!(
                "its header {name:?} is reserved by RabbitMQ (sender-selected distribution) and \
                 must be a list, which a header of a record cannot be"
            );
            return Err(PublishError::new(PublishFailure::Rejected, detail));
        }
        let value = amqp_value(value);
        size += entry_size(&name, &value);
        table.insert(header_name(name)?, value);
    }
    // They replace the record's own of the same name.
    let ours = [("message-key", key), ("tenant-id", tenant_id)];
    let ours = ours.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    for (name, value) in ours.chain(attributes) {
        let value = AMQPValue::LongString(LongString::from(value));
        size += entry_size(&name, &value);
        table.insert(header_name(name)?, value);
    }
    if frame_max > 0 && size + MAX_OTHER_HEADER_FRAME_BYTES > frame_max as usize {
        let detail =
            format!("its headers have {size} bytes, which exceed a frame of {frame_max} bytes");
        return Err(PublishError::new(PublishFailure::Rejected, detail));
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short("message id", id.clone())?)
        .with_type(short("type", kind)?)
        .with_content_type(short("content type", content_type)?)
        .with_headers(table);
    if let Some(seconds) = timestamp.and_then(seconds) {
        properties = properties.with_timestamp(seconds);
    }
    let payload = payload.unwrap_or_default();
    Ok(Rendered { id, target, properties, payload })
}

/// Converts an address to AMQP's types.
///
/// # Errors
///
/// [`PublishFailure::Rejected`] if AMQP, or RabbitMQ, does not allow it.
pub(super) fn target(address: Address) -> Result<Target, PublishError> {
    let exchange = short("exchange name", address.destination)?;
    if exchange.as_str().contains(['\r', '\n']) {
        // RabbitMQ removes them from a declaration and a look-up, but not from a publish.
        let detail = format!("its exchange name {:?} contains a line break", exchange.as_str());
        return Err(PublishError::new(PublishFailure::Rejected, detail));
    }
    let routing_key = short("routing key", address.key.unwrap_or_default())?;
    Ok(Target { exchange, routing_key })
}

/// Converts a text to a short string.
///
/// # Errors
///
/// [`PublishFailure::Rejected`] if it is too long.
pub(super) fn short(what: &str, text: String) -> Result<ShortString, PublishError> {
    let length = text.len();
    ShortString::try_new(text).map_err(|_| {
        let detail =
            format!("its {what} has {length} bytes; AMQP allows at most {MAX_SHORT_STRING_BYTES}");
        PublishError::new(PublishFailure::Rejected, detail)
    })
}

fn header_name(name: String) -> Result<ShortString, PublishError> {
    short("header name", name)
}

/// Returns the seconds since the epoch; `None` for an earlier time, which AMQP cannot express.
fn seconds(time: SystemTime) -> Option<u64> {
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

fn amqp_value(value: HeaderValue) -> AMQPValue {
    let text = |text: String| AMQPValue::LongString(LongString::from(text));
    match value {
        HeaderValue::String(value) => text(value),
        HeaderValue::Int32(value) => AMQPValue::LongInt(value),
        HeaderValue::Int64(value) => AMQPValue::LongLongInt(value),
        HeaderValue::Double(value) if value.is_finite() => AMQPValue::Double(value),
        HeaderValue::Bool(value) => AMQPValue::Boolean(value),
        // An earlier date has no AMQP timestamp, and becomes text.
        HeaderValue::Date(millis @ 0..) => AMQPValue::Timestamp(millis.unsigned_abs() / 1_000),
        HeaderValue::Binary(bytes) => AMQPValue::ByteArray(bytes.into()),
        other => other.text().map_or(AMQPValue::Void, text),
    }
}

/// Returns the size of a table's entry in bytes: name, type, value.
fn entry_size(name: &str, value: &AMQPValue) -> usize {
    let value = match value {
        AMQPValue::LongString(text) => 4 + text.as_bytes().len(),
        AMQPValue::ByteArray(bytes) => 4 + bytes.len(),
        AMQPValue::Boolean(_) => 1,
        AMQPValue::LongInt(_) => 4,
        AMQPValue::Void => 0,
        _ => 8,
    };
    1 + name.len() + 1 + value
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary::{self, plain_message};

    const FRAME_MAX: u32 = 131_072;

    fn headers(rendered: &Rendered) -> &FieldTable {
        rendered.properties.headers().as_ref().unwrap()
    }

    #[test]
    fn message_has_the_documented_properties() {
        let address = Address { destination: "x".into(), key: Some("rk".into()) };

        let rendered = render(Message { address, ..plain_message() }, None, FRAME_MAX).unwrap();

        let properties = &rendered.properties;
        assert_eq!(properties.delivery_mode(), &Some(2));
        assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "m-1");
        assert_eq!(properties.kind().as_ref().unwrap().as_str(), "OrderCreated");
        assert_eq!(properties.timestamp(), &Some(12));
        let key = &headers(&rendered).inner()["message-key"];
        assert_eq!(key, &AMQPValue::LongString("k".into()));
        assert_eq!(rendered.target.exchange.as_str(), "x");
        assert_eq!(rendered.target.routing_key.as_str(), "rk");
    }

    #[test]
    fn own_headers_replace_those_of_the_record() {
        let own = ("tenant-id".to_owned(), HeaderValue::String("forged".into()));

        let rendered =
            render(Message { headers: vec![own], ..plain_message() }, None, FRAME_MAX).unwrap();

        let tenant = &headers(&rendered).inner()["tenant-id"];
        assert_eq!(tenant, &AMQPValue::LongString("t".into()));
    }

    #[test]
    fn headers_keep_their_types() {
        for (value, expected) in [
            (HeaderValue::Int32(-1), AMQPValue::LongInt(-1)),
            (HeaderValue::Int64(1 << 40), AMQPValue::LongLongInt(1 << 40)),
            (HeaderValue::Double(0.5), AMQPValue::Double(0.5)),
            (HeaderValue::Double(-f64::INFINITY), AMQPValue::LongString("-Infinity".into())),
            (HeaderValue::Double(-f64::NAN), AMQPValue::LongString("NaN".into())),
            (HeaderValue::Bool(true), AMQPValue::Boolean(true)),
            (HeaderValue::Date(2_500), AMQPValue::Timestamp(2)),
            (HeaderValue::Date(-1_000), AMQPValue::LongString("1969-12-31T23:59:59Z".into())),
            (HeaderValue::Binary(vec![0, 255]), AMQPValue::ByteArray(vec![0, 255].into())),
            (HeaderValue::Null, AMQPValue::Void),
        ] {
            assert_eq!(amqp_value(value), expected);
        }
    }

    #[test]
    fn too_long_text_is_rejected_by_its_name() {
        let long = "x".repeat(256);
        let address = Address { destination: String::new(), key: Some(long.clone()) };
        let header = (long.clone(), HeaderValue::Null);
        for (message, word) in [
            (Message { address, ..plain_message() }, "routing key"),
            (Message { kind: long.clone(), ..plain_message() }, "type"),
            (Message { id: long.clone(), ..plain_message() }, "message id"),
            (Message { content_type: long, ..plain_message() }, "content type"),
            (Message { headers: vec![header], ..plain_message() }, "header name"),
        ] {
            let error = render(message, None, FRAME_MAX).unwrap_err();

            assert_eq!(error.failure, PublishFailure::Rejected);
            assert!(error.detail.contains(word), "{error}");
        }
    }

    #[test]
    fn headers_above_the_frame_limit_are_rejected() {
        let header = ("h".to_owned(), HeaderValue::String("x".repeat(4_096)));
        let message = Message { headers: vec![header], ..plain_message() };

        assert!(render(message.clone(), None, 8_192).is_ok());
        assert_eq!(render(message, None, 4_096).unwrap_err().failure, PublishFailure::Rejected);
    }

    /// The header frame as it goes over the wire, without its body: by `lapin`'s own writer.
    fn header_frame(properties: &BasicProperties) -> usize {
        let written = lapin::protocol::basic::gen_properties(properties)(Vec::new().into());
        // Frame type, channel, length; class, weight, body size; the frame's end.
        (1 + 2 + 4) + (2 + 2 + 8) + written.unwrap().write.len() + 1
    }

    proptest! {
        #[test]
        fn any_message_is_within_the_limits_of_amqp_or_refused(
            message in arbitrary::message(),
            as_event in any::<bool>(),
            frame_max in proptest::sample::select(&[4_096_u32, 8_192, 131_072][..]),
        ) {
            let event_prefix = as_event.then_some("cloudEvents_");

            let rendered = match render(message.clone(), event_prefix, frame_max) {
                Ok(rendered) => rendered,
                Err(error) => {
                    prop_assert_eq!(error.failure, PublishFailure::Rejected);
                    prop_assert!(!error.detail.is_empty());
                    return Ok(());
                }
            };

            let size = header_frame(&rendered.properties);
            prop_assert!(size <= frame_max as usize, "{} bytes", size);
            prop_assert!(rendered.target.routing_key.as_str().len() <= MAX_SHORT_STRING_BYTES);
            prop_assert!(rendered.target.exchange.as_str().len() <= MAX_SHORT_STRING_BYTES);
            prop_assert_eq!(&rendered.id, &message.id);
            let table = headers(&rendered);
            for name in table.inner().keys() {
                let name = name.as_str();
                prop_assert!(name.len() <= MAX_SHORT_STRING_BYTES);
                prop_assert!(!SELECTOR_HEADERS.contains(&name));
            }
            let tenant = message.tenant_id.map(|tenant| AMQPValue::LongString(tenant.into()));
            prop_assert!(tenant.is_none() || table.inner().get("tenant-id") == tenant.as_ref());
        }
    }
}
