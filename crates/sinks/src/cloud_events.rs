//! CloudEvents 1.0 in binary mode: the attributes are headers, and the payload stays as it is.
//!
//! The specifications: CloudEvents 1.0.2, its Kafka protocol binding (section 3.2) and its
//! AMQP protocol binding (section 3.1), whose application properties are headers in AMQP 0-9-1.

use bson::DateTime;
use postrider_relay::sink::{Message, PublishError, PublishFailure};
use postrider_store::dates::rfc3339;

/// Returns the attributes of a message as headers, their names with the prefix; none without a prefix. The
/// content type is not among them: it stays where the broker's own messages have it.
///
/// All are text, even `time` in AMQP, which has a type for it: both forms are allowed there
/// (section 3.1.3.2), and the timestamps of AMQP 0-9-1 count whole seconds.
///
/// # Errors
///
/// [`PublishFailure::Rejected`] if one is empty that the specification requires: no consumer would accept
/// the message as an event.
pub fn attributes(
    prefix: Option<&str>,
    message: &Message,
) -> Result<Vec<(String, String)>, PublishError> {
    let Some(prefix) = prefix else { return Ok(Vec::new()) };
    let time = message.timestamp.map(DateTime::from_system_time).and_then(rfc3339);
    // By the specification an optional attribute is absent rather than empty.
    let subject = message.key.clone().filter(|key| !key.is_empty());
    let attributes = [
        ("specversion", Some("1.0".to_owned())),
        ("id", Some(message.id.clone())),
        ("type", Some(message.kind.clone())),
        ("source", message.source.clone()),
        ("time", time),
        ("subject", subject),
    ];
    let empty = attributes.iter().find(|(_, value)| value.as_deref() == Some(""));
    if let Some((name, _)) = empty {
        let detail = format!("it cannot be a CloudEvent, since its {name} is empty");
        return Err(PublishError::new(PublishFailure::Rejected, detail));
    }
    let named = attributes
        .into_iter()
        .filter_map(|(name, value)| Some((format!("{prefix}{name}"), value?)));
    Ok(named.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary::plain_message;

    fn attributes(message: &Message) -> Result<Vec<(String, String)>, PublishError> {
        super::attributes(Some("ce_"), message)
    }

    #[test]
    fn event_has_every_attribute_that_has_a_value() {
        let names = |message: &Message| -> Vec<String> {
            attributes(message).unwrap().into_iter().map(|(name, _)| name).collect()
        };

        let all = attributes(&plain_message()).unwrap();

        let expected = [
            ("ce_specversion", "1.0"),
            ("ce_id", "m-1"),
            ("ce_type", "OrderCreated"),
            ("ce_source", "shop"),
            ("ce_time", "1970-01-01T00:00:12.345Z"),
            ("ce_subject", "k"),
        ];
        assert_eq!(all, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let without = Message { key: Some(String::new()), timestamp: None, ..plain_message() };
        assert_eq!(names(&without), ["ce_specversion", "ce_id", "ce_type", "ce_source"]);
    }

    #[test]
    fn message_without_a_required_attribute_is_rejected() {
        for (message, name) in [
            (Message { id: String::new(), ..plain_message() }, "id"),
            (Message { kind: String::new(), ..plain_message() }, "type"),
            (Message { source: Some(String::new()), ..plain_message() }, "source"),
        ] {
            let error = attributes(&message).unwrap_err();

            assert_eq!(error.failure, PublishFailure::Rejected);
            assert!(error.detail.contains(name), "{error}");
        }
    }
}
