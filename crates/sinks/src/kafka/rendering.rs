//! Renders a message as a Kafka record, or refuses it.

use std::fmt;
use std::time::UNIX_EPOCH;

use bson::DateTime;
use postrider_relay::sink::{HeaderValue, Message, PublishError, PublishFailure};
use rdkafka::message::{Header, Headers as _, OwnedHeaders};

use crate::cloud_events;

/// Kafka's limit for the name of a topic, which is ASCII.
const MAX_TOPIC_BYTES: usize = 249;

/// A message as a Kafka record.
pub(super) struct Rendered {
    pub(super) topic: String,
    pub(super) key: String,
    pub(super) payload: Option<Vec<u8>>,
    pub(super) headers: OwnedHeaders,
    /// Milliseconds since the epoch.
    pub(super) timestamp: Option<i64>,
}

impl Rendered {
    /// Returns the id of the outbox record.
    pub(super) fn id(&self) -> Option<&str> {
        let id = self.headers.iter().find(|header| header.key == "message-id")?;
        std::str::from_utf8(id.value?).ok()
    }
}

/// Omits the payload, like [`Message`].
impl fmt::Debug for Rendered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rendered").field("topic", &self.topic).finish_non_exhaustive()
    }
}

/// Returns the record key: that of the route, otherwise that of the outbox record, otherwise its id.
pub(super) fn key(message: &Message) -> &str {
    let key = message.address.key.as_ref().or(message.key.as_ref());
    key.unwrap_or(&message.id)
}

/// Renders a message, or refuses it before anything is sent.
///
/// # Errors
///
/// - [`PublishFailure::Rejected`] if the name of its topic is invalid, or it must be a CloudEvent and cannot.
/// - [`PublishFailure::TooLarge`] if its payload alone exceeds `max_bytes`. (With key and headers the producer
///   checks it.)
pub(super) fn render(
    message: Message,
    event_prefix: Option<&str>,
    max_bytes: usize,
) -> Result<Rendered, PublishError> {
    check_topic(&message.address.destination)?;
    let size = message.payload.as_ref().map_or(0, Vec::len);
    if size > max_bytes {
        let detail = format!("its payload has {size} bytes, message.max.bytes is {max_bytes}");
        return Err(PublishError::new(PublishFailure::TooLarge, detail));
    }
    let attributes = cloud_events::attributes(event_prefix, &message)?;
    let key = key(&message).to_owned();
    let Message { id, kind, content_type, payload, headers, tenant_id, timestamp, address, .. } =
        message;
    let ours = [
        ("message-id", Some(id)),
        ("message-type", Some(kind)),
        ("content-type", Some(content_type)),
        ("tenant-id", tenant_id),
    ];
    let ours = ours.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    let ours: Vec<(String, String)> = ours.chain(attributes).collect();
    let mut rendered = OwnedHeaders::new_with_capacity(headers.len() + ours.len());
    for (name, value) in &headers {
        // They replace the record's own of the same name.
        if !ours.iter().any(|(own, _)| own == name) {
            let bytes = bytes(value);
            rendered = rendered.insert(Header { key: name, value: bytes.as_deref() });
        }
    }
    for (name, value) in &ours {
        rendered = rendered.insert(Header { key: name, value: Some(value) });
    }
    let millis = timestamp.map(|time| DateTime::from_system_time(time).timestamp_millis());
    Ok(Rendered {
        topic: address.destination,
        key,
        payload,
        headers: rendered,
        // Zero means "now" to librdkafka, and Kafka has no times before it.
        timestamp: millis.filter(|_| timestamp.is_some_and(|time| time > UNIX_EPOCH)),
    })
}

/// Checks a name by Kafka's own rule (`org.apache.kafka.common.internals.Topic`): a broker refuses the whole
/// request with an invalid name.
fn check_topic(name: &str) -> Result<(), PublishError> {
    let is_legal = |character: char| character.is_ascii_alphanumeric() || "._-".contains(character);
    let flaw = if name.is_empty() {
        "is empty".to_owned()
    } else if name.len() > MAX_TOPIC_BYTES {
        format!("has {} characters; Kafka allows at most {MAX_TOPIC_BYTES}", name.len())
    } else if name == "." || name == ".." {
        format!("is {name:?}")
    } else if !name.chars().all(is_legal) {
        format!("{name:?} must contain only a-z A-Z 0-9 . _ -")
    } else {
        return Ok(());
    };
    Err(PublishError::new(PublishFailure::Rejected, format!("its topic's name {flaw}")))
}

/// Renders text in UTF-8, binaries as they are, null as null.
fn bytes(value: &HeaderValue) -> Option<Vec<u8>> {
    match value {
        HeaderValue::Binary(bytes) => Some(bytes.clone()),
        other => other.text().map(String::into_bytes),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use postrider_relay::sink::Address;
    use proptest::prelude::*;
    use rdkafka::message::Headers;

    use super::*;
    use crate::arbitrary::{self, plain_message};

    const MAX_BYTES: usize = 1_000_000;

    fn headers(rendered: &Rendered) -> Vec<(String, Option<Vec<u8>>)> {
        let headers = rendered.headers.iter();
        headers.map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    }

    fn named(rendered: &Rendered, name: &str) -> Vec<Option<Vec<u8>>> {
        let all = headers(rendered).into_iter();
        all.filter(|(own, _)| own == name).map(|(_, value)| value).collect()
    }

    #[test]
    fn record_has_the_documented_headers() {
        let rendered = render(plain_message(), None, MAX_BYTES).unwrap();

        assert_eq!(rendered.key, "k");
        assert_eq!(rendered.timestamp, Some(12_345));
        let texts: Vec<(String, String)> = headers(&rendered)
            .into_iter()
            .map(|(name, value)| (name, String::from_utf8(value.unwrap()).unwrap()))
            .collect();
        let expected = [
            ("message-id", "m-1"),
            ("message-type", "OrderCreated"),
            ("content-type", "application/json"),
            ("tenant-id", "t"),
        ];
        assert_eq!(texts, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn key_is_that_of_the_route_or_the_record_or_its_id() {
        let by_route = Address { key: Some("route".into()), ..plain_message().address };
        for (message, key) in [
            (Message { address: by_route, ..plain_message() }, "route"),
            (Message { key: Some(String::new()), ..plain_message() }, ""),
            (Message { key: None, ..plain_message() }, "m-1"),
        ] {
            assert_eq!(render(message, None, MAX_BYTES).unwrap().key, key);
        }
    }

    #[test]
    fn own_headers_replace_those_of_the_record() {
        let forged = ["tenant-id", "message-id", "ce_id"]
            .map(|name| (name.to_owned(), HeaderValue::String("forged".into())));

        let rendered =
            render(Message { headers: forged.to_vec(), ..plain_message() }, Some("ce_"), MAX_BYTES)
                .unwrap();

        assert_eq!(named(&rendered, "tenant-id"), [Some(b"t".to_vec())]);
        assert_eq!(named(&rendered, "message-id"), [Some(b"m-1".to_vec())]);
        assert_eq!(named(&rendered, "ce_id"), [Some(b"m-1".to_vec())]);
        assert_eq!(named(&rendered, "ce_source"), [Some(b"shop".to_vec())]);
    }

    #[test]
    fn headers_are_text_except_binaries_and_null() {
        for (value, expected) in [
            (HeaderValue::Int64(-5), Some(&b"-5"[..])),
            (HeaderValue::Double(0.5), Some(b"0.5")),
            (HeaderValue::Double(f64::NEG_INFINITY), Some(b"-Infinity")),
            (HeaderValue::Bool(true), Some(b"true")),
            (HeaderValue::Date(-1_000), Some(b"1969-12-31T23:59:59Z")),
            (HeaderValue::Binary(vec![0, 255]), Some(&[0, 255])),
            (HeaderValue::String(String::new()), Some(b"")),
            (HeaderValue::Null, None),
        ] {
            assert_eq!(bytes(&value).as_deref(), expected);
        }
    }

    #[test]
    fn time_before_the_epoch_is_omitted() {
        let before = |time: SystemTime| Message { timestamp: Some(time), ..plain_message() };

        let rendered =
            render(before(UNIX_EPOCH - Duration::from_secs(1)), None, MAX_BYTES).unwrap();

        assert_eq!(rendered.timestamp, None);
    }

    #[test]
    fn payload_above_the_limit_is_too_large() {
        let of = |size: usize| Message { payload: Some(vec![0; size]), ..plain_message() };

        assert!(render(of(10), None, 10).is_ok());
        assert_eq!(render(of(11), None, 10).unwrap_err().failure, PublishFailure::TooLarge);
    }

    #[test]
    fn invalid_topic_name_is_rejected() {
        let long = "x".repeat(250);
        for name in ["", ".", "..", "a b", "größe", "a/b", "a\0b", &long] {
            let address = Address { destination: name.into(), key: None };

            let error =
                render(Message { address, ..plain_message() }, None, MAX_BYTES).unwrap_err();

            assert_eq!(error.failure, PublishFailure::Rejected, "{name}");
        }
        let longest = Address { destination: "x".repeat(249), key: None };
        assert!(render(Message { address: longest, ..plain_message() }, None, MAX_BYTES).is_ok());
    }

    proptest! {
        #[test]
        fn any_message_is_within_the_limits_of_kafka_or_refused(
            message in arbitrary::message(),
            as_event in any::<bool>(),
            max_bytes in 0_usize..60,
        ) {
            let event_prefix = as_event.then_some("ce_");

            let rendered = match render(message.clone(), event_prefix, max_bytes) {
                Ok(rendered) => rendered,
                Err(error) => {
                    prop_assert!(matches!(error.failure, PublishFailure::Rejected | PublishFailure::TooLarge));
                    prop_assert!(!error.detail.is_empty());
                    return Ok(());
                }
            };

            let topic = &rendered.topic;
            let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            prop_assert!((1..=MAX_TOPIC_BYTES).contains(&topic.len()) && topic.bytes().all(is_legal));
            prop_assert!(rendered.payload.as_ref().is_none_or(|payload| payload.len() <= max_bytes));
            prop_assert!(rendered.timestamp.is_none_or(|millis| millis > 0));
            prop_assert_eq!(named(&rendered, "message-id"), [Some(message.id.into_bytes())]);
            prop_assert_eq!(named(&rendered, "message-type"), [Some(message.kind.into_bytes())]);
            let ours = 3 + usize::from(message.tenant_id.is_some()) + if as_event { 6 } else { 0 };
            prop_assert!(headers(&rendered).len() <= message.headers.len() + ours);
        }
    }
}
