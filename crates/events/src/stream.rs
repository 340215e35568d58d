//! The event stream document: one for each append (contract, section 2).

use bson::Document;
use bson::raw::RawDocumentBuf;
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

/// The fields that reads and guards go by.
pub(crate) mod fields {
    pub(crate) const ID: &str = "_id";
    pub(crate) const AGGREGATE_ID: &str = "aggregateId";
    pub(crate) const TENANT_ID: &str = "tenantId";
    pub(crate) const REQUEST_ID: &str = "requestId";
    pub(crate) const VERSION: &str = "version";
    pub(crate) const CREATE_TIME: &str = "createTime";
    pub(crate) const SIZE: &str = "size";
}

/// What one command has brought about in one aggregate, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EventStream {
    /// Its own id.
    #[serde(rename(deserialize = "_id"))]
    pub id: String,
    /// The bounded context.
    #[serde(default)]
    pub context_name: String,
    /// The kind of aggregate.
    #[serde(default)]
    pub aggregate_name: String,
    /// The aggregate.
    pub aggregate_id: String,
    /// The tenant, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// The owner, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_id: Option<String>,
    /// The request that it came with.
    pub request_id: String,
    /// The command, where it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_id: Option<String>,
    /// The aggregate's version after it.
    pub version: i64,
    /// When, by the server's clock: epoch milliseconds.
    pub create_time: i64,
    /// What the application keeps beside the events.
    #[serde(default, deserialize_with = "as_written")]
    pub header: Document,
    /// How many events there are.
    pub size: i64,
    /// The events.
    pub body: Vec<Event>,
}

/// One event, as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Its id: also that of its outbox record, and so of its message.
    #[serde(default)]
    pub id: String,
    /// Its name.
    pub name: String,
    /// The revision of its body's form, where it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// What a reader makes of its body, where it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body_type: Option<String>,
    /// What has happened.
    #[serde(default, deserialize_with = "as_written")]
    pub body: Document,
}

/// A document with its names as they are: read by serde, one such as `{"$oid": …}` that an
/// application has written would be taken for extended JSON.
fn as_written<'de, D: Deserializer<'de>>(input: D) -> Result<Document, D::Error> {
    let raw = RawDocumentBuf::deserialize(input)?;
    Document::try_from(raw).map_err(serde::de::Error::custom)
}

/// The id of the outbox record of the event at `index` (from 0) of a stream: a UUIDv5, so that a
/// replayed answer can name it after it is gone.
pub fn record_id(stream: &Uuid, index: usize) -> Uuid {
    Uuid::new_v5(stream, index.to_string().as_bytes())
}

/// All of them.
pub(crate) fn record_ids(stream: &Uuid, size: usize) -> Vec<Uuid> {
    (0..size).map(|index| record_id(stream, index)).collect()
}
