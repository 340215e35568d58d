//! Renders a message for AMQP, or refuses it.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use postrider_relay::sink::{Address, HeaderValue, Message, PublishError, PublishFailure};

use crate::cloud_events;

/// `delivery_mode` of a message that survives a restart of the broker.
const PERSISTENT: u8 = 2;

/// What AMQP's short strings hold at most, in bytes.
const SHORT: usize = 255;

/// What a header frame holds beside the table of headers: its own framing and the other
/// properties, seven short strings at their longest.
const BESIDE_HEADERS: usize = 8 + 14 + 7 * (SHORT + 1) + 16;

/// Headers for which RabbitMQ closes the channel where they are no lists.
const SELECTORS: [&str; 2] = ["CC", "BCC"];

/// Where a message goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
}

/// A message ready for the wire.
pub(super) struct Rendered {
    pub(super) id: String,
    pub(super) target: Target,
    pub(super) properties: BasicProperties,
    pub(super) payload: Vec<u8>,
}

/// Without the payload, as [`Message`] has it.
impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendered").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Renders a message, or refuses it before anything is sent.
///
/// # Errors
///
/// [`PublishFailure::Rejected`] where a limit of AMQP is exceeded: 255 bytes in a short string,
/// `frame_max` (of this connection; 0 means none) in the headers. Or where it can be no CloudEvent
/// that is to be one.
pub(super) fn render(
    message: Message,
    event_prefix: Option<&str>,
    frame_max: u32,
) -> Result<Rendered, PublishError> {
    let attributes = event_prefix
        .map(|prefix| cloud_events::attributes(prefix, &message))
        .transpose()?
        .unwrap_or_default();
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
        if SELECTORS.contains(&name.as_str()) {
            let detail = format!(
                "its header {name:?} is RabbitMQ's own (sender-selected distribution), and is to \
                 be a list, which no header of a record can be"
            );
            return Err(PublishError::new(PublishFailure::Rejected, detail));
        }
        let value = amqp_value(value);
        size += entry_size(&name, &value);
        table.insert(header_name(name)?, value);
    }
    // Behind the record's own: ours win over headers of the same name.
    let ours = [("message-key", key), ("tenant-id", tenant_id)];
    let ours = ours.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    for (name, value) in ours.chain(attributes) {
        let value = AMQPValue::LongString(LongString::from(value));
        size += entry_size(&name, &value);
        table.insert(header_name(name)?, value);
    }
    if frame_max > 0 && size + BESIDE_HEADERS > frame_max as usize {
        let detail = format!(
            "its headers take {size} bytes, more than fits into a frame of {frame_max} bytes"
        );
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

/// An address as AMQP has it.
///
/// # Errors
///
/// [`PublishFailure::Rejected`] where it cannot have it.
pub(super) fn target(address: Address) -> Result<Target, PublishError> {
    let exchange = short("exchange name", address.destination)?;
    if exchange.as_str().contains(['\r', '\n']) {
        // RabbitMQ leaves them out where one is declared or looked up, but not in a publish.
        let detail = format!("its exchange name {:?} contains a line break", exchange.as_str());
        return Err(PublishError::new(PublishFailure::Rejected, detail));
    }
    let routing_key = short("routing key", address.key.unwrap_or_default())?;
    Ok(Target { exchange, routing_key })
}

pub(super) fn short(what: &str, text: String) -> Result<ShortString, PublishError> {
    let length = text.len();
    ShortString::try_new(text).map_err(|_| {
        let detail = format!("its {what} has {length} bytes, AMQP allows {SHORT}");
        PublishError::new(PublishFailure::Rejected, detail)
    })
}

fn header_name(name: String) -> Result<ShortString, PublishError> {
    short("header name", name)
}

/// AMQP counts seconds from the epoch and knows nothing before it.
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
        // Before 1970 there is no AMQP timestamp; the text says the same.
        HeaderValue::Date(millis @ 0..) => AMQPValue::Timestamp(millis.unsigned_abs() / 1_000),
        HeaderValue::Binary(bytes) => AMQPValue::ByteArray(bytes.into()),
        other => other.text().map_or(AMQPValue::Void, text),
    }
}

/// Bytes of one entry of a table: name, type, value.
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
    use postrider_relay::sink::Address;
    use proptest::prelude::*;

    use super::*;
    use crate::arbitrary;

    fn message() -> Message {
        Message {
            is_urgent: false,
            id: "m-1".into(),
            key: Some("k".into()),
            kind: "OrderCreated".into(),
            content_type: "application/json".into(),
            payload: Some(b"{}".to_vec()),
            headers: Vec::new(),
            tenant_id: Some("t".into()),
            timestamp: Some(UNIX_EPOCH + std::time::Duration::from_millis(12_345)),
            source: None,
            address: Address { destination: "x".into(), key: Some("rk".into()) },
        }
    }

    fn headers(rendered: &Rendered) -> &FieldTable {
        rendered.properties.headers().as_ref().unwrap()
    }

    #[test]
    fn a_message_carries_the_properties_of_the_contract() {
        let rendered = render(message(), None, 131_072).unwrap();

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
    fn our_own_headers_win_over_the_records() {
        let own = ("tenant-id".to_owned(), HeaderValue::String("forged".into()));

        let rendered = render(Message { headers: vec![own], ..message() }, None, 131_072).unwrap();

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
    fn what_amqp_cannot_carry_is_refused_by_name() {
        let long = "x".repeat(256);
        let address = Address { destination: String::new(), key: Some(long.clone()) };
        let header = (long.clone(), HeaderValue::Null);
        for (message, word) in [
            (Message { address, ..message() }, "routing key"),
            (Message { kind: long.clone(), ..message() }, "type"),
            (Message { id: long.clone(), ..message() }, "message id"),
            (Message { content_type: long, ..message() }, "content type"),
            (Message { headers: vec![header], ..message() }, "header name"),
        ] {
            let error = render(message, None, 131_072).unwrap_err();

            assert_eq!(error.failure, PublishFailure::Rejected);
            assert!(error.detail.contains(word), "{error}");
        }
    }

    #[test]
    fn headers_beyond_the_frame_are_refused() {
        let header = ("h".to_owned(), HeaderValue::String("x".repeat(4_096)));
        let message = Message { headers: vec![header], ..message() };

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
            prop_assert!(rendered.target.routing_key.as_str().len() <= SHORT);
            prop_assert!(rendered.target.exchange.as_str().len() <= SHORT);
            prop_assert_eq!(&rendered.id, &message.id);
            let table = headers(&rendered);
            for name in table.inner().keys() {
                prop_assert!(name.as_str().len() <= SHORT && !SELECTORS.contains(&name.as_str()));
            }
            let tenant = message.tenant_id.map(|tenant| AMQPValue::LongString(tenant.into()));
            prop_assert!(tenant.is_none() || table.inner().get("tenant-id") == tenant.as_ref());
        }
    }
}
