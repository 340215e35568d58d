//! Messages as a relay makes them.

use std::time::{Duration, UNIX_EPOCH};

use postrider::sink::{Address, Message};

/// The body of each message; no error and no `Debug` may show it.
pub const SECRET: &str = "payload-of-the-test";

/// A message to a destination, under a routing key or record key of its own.
pub fn message(id: impl Into<String>, destination: &str, key: &str) -> Message {
    let id = id.into();
    Message {
        is_urgent: false,
        payload: Some(format!(r#"{{"id":"{id}","is":"{SECRET}"}}"#).into_bytes()),
        key: Some(format!("key of {id}")),
        id,
        kind: "OrderCreated".into(),
        content_type: "application/json".into(),
        headers: Vec::new(),
        tenant_id: None,
        timestamp: Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
        source: None,
        address: Address { destination: destination.into(), key: Some(key.into()) },
    }
}
