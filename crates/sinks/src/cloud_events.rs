//! CloudEvents 1.0 in binary mode: the attributes stand beside the payload, which stays as it is.
//!
//! The specifications: CloudEvents 1.0.2, its Kafka protocol binding (section 3.2) and its
//! AMQP protocol binding (section 3.1), whose application properties are headers in AMQP 0-9-1.

use bson::DateTime;
use postrider_relay::sink::{Message, PublishError, PublishFailure};
use postrider_store::dates::rfc3339;

/// The attributes of a message as headers, their names with the prefix. The content type
/// is not among them: it stays where the broker's own messages have it.
///
/// All are text, `time` too where AMQP has a type for it: both forms are allowed there
/// (section 3.1.3.2), and the timestamps of AMQP 0-9-1 count whole seconds.
///
/// # Errors
///
/// [`PublishFailure::Rejected`] where one is empty that the specification wants to have a value: no
/// consumer would take the message for an event.
pub fn attributes(prefix: &str, message: &Message) -> Result<Vec<(String, String)>, PublishError> {
    let time = message.timestamp.map(DateTime::from_system_time).and_then(rfc3339);
    // Optional attributes are absent rather than empty: the specification says so.
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
        let detail = format!("it can be no CloudEvent: its {name} is empty");
        return Err(PublishError::new(PublishFailure::Rejected, detail));
    }
    let named = attributes
        .into_iter()
        .filter_map(|(name, value)| Some((format!("{prefix}{name}"), value?)));
    Ok(named.collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use postrider_relay::sink::Address;

    use super::*;

    fn message() -> Message {
        Message {
            is_urgent: false,
            id: "1".into(),
            key: Some("k".into()),
            kind: "T".into(),
            content_type: "application/json".into(),
            payload: None,
            headers: Vec::new(),
            tenant_id: None,
            timestamp: Some(UNIX_EPOCH + Duration::from_millis(1_500)),
            source: Some("shop".into()),
            address: Address::default(),
        }
    }

    fn attributes(message: &Message) -> Result<Vec<(String, String)>, PublishError> {
        super::attributes("ce_", message)
    }

    #[test]
    fn the_attributes_of_the_specification_are_there_where_they_have_a_value() {
        let names = |message: &Message| -> Vec<String> {
            attributes(message).unwrap().into_iter().map(|(name, _)| name).collect()
        };

        let all = attributes(&message()).unwrap();

        let expected = [
            ("ce_specversion", "1.0"),
            ("ce_id", "1"),
            ("ce_type", "T"),
            ("ce_source", "shop"),
            ("ce_time", "1970-01-01T00:00:01.5Z"),
            ("ce_subject", "k"),
        ];
        assert_eq!(all, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let without = Message { key: Some(String::new()), timestamp: None, ..message() };
        assert_eq!(names(&without), ["ce_specversion", "ce_id", "ce_type", "ce_source"]);
    }

    #[test]
    fn a_message_without_what_every_event_has_is_refused() {
        for (message, name) in [
            (Message { id: String::new(), ..message() }, "id"),
            (Message { kind: String::new(), ..message() }, "type"),
            (Message { source: Some(String::new()), ..message() }, "source"),
        ] {
            let error = attributes(&message).unwrap_err();

            assert_eq!(error.failure, PublishFailure::Rejected);
            assert!(error.detail.contains(name), "{error}");
        }
    }
}
