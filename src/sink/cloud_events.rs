//! CloudEvents 1.0 in binary mode: the attributes stand beside the payload, which stays as it is.
//!
//! The specifications: CloudEvents 1.0.2, its Kafka protocol binding (section 3.2) and its
//! AMQP protocol binding (section 3.1), whose application properties are headers in AMQP 0-9-1.

use bson::DateTime;

use crate::sink::Message;

/// How a sink writes CloudEvents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CloudEvents {
    /// In front of each attribute's name.
    pub prefix: String,
}

impl CloudEvents {
    /// The attributes of a message as headers, their names with the prefix. The content type
    /// is not among them: it stays where the broker's own messages have it.
    pub fn attributes(&self, message: &Message) -> Vec<(String, String)> {
        let time = message
            .timestamp
            .and_then(|time| DateTime::from_system_time(time).try_to_rfc3339_string().ok());
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
        let named = attributes
            .into_iter()
            .filter_map(|(name, value)| Some((format!("{}{name}", self.prefix), value?)));
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;
    use crate::sink::Address;

    #[test]
    fn the_attributes_of_the_specification_are_there_where_they_have_a_value() {
        let message = Message {
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
        };
        let cloud_events = CloudEvents { prefix: "ce_".into() };
        let names = |message: &Message| -> Vec<String> {
            cloud_events.attributes(message).into_iter().map(|(name, _)| name).collect()
        };

        let attributes = cloud_events.attributes(&message);

        let expected = [
            ("ce_specversion", "1.0"),
            ("ce_id", "1"),
            ("ce_type", "T"),
            ("ce_source", "shop"),
            ("ce_time", "1970-01-01T00:00:01.5Z"),
            ("ce_subject", "k"),
        ];
        assert_eq!(attributes, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let without = Message { key: Some(String::new()), timestamp: None, ..message };
        assert_eq!(names(&without), ["ce_specversion", "ce_id", "ce_type", "ce_source"]);
    }
}
