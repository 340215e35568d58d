//! The event stream document: one for each append.

use bson::Document;
use bson::raw::RawDocumentBuf;
use postrider_outbox::shown;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
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

/// One append as it is stored: the events of one command in one aggregate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = EventStreamAnswer))]
#[serde(rename_all = "camelCase")]
pub struct EventStream {
    /// The id of the event stream document.
    #[serde(rename(deserialize = "_id"))]
    pub id: String,
    /// The bounded context.
    #[serde(default)]
    #[cfg_attr(feature = "json", schema(required = true))]
    pub context_name: String,
    /// The kind of aggregate.
    #[serde(default)]
    #[cfg_attr(feature = "json", schema(required = true, example = "order"))]
    pub aggregate_name: String,
    /// The aggregate.
    #[cfg_attr(feature = "json", schema(example = "o-1"))]
    pub aggregate_id: String,
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub tenant_id: Option<String>,
    /// The owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub owner_id: Option<String>,
    /// The request that appended it.
    pub request_id: String,
    /// The command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub command_id: Option<String>,
    /// The aggregate's version after it.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub version: i64,
    /// The time by MongoDB's clock, in milliseconds since 1970.
    pub create_time: i64,
    /// What the application stored with the events.
    #[serde(default, deserialize_with = "as_written", serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(required = true, value_type = crate::json::JsonObject))]
    pub header: Document,
    /// The number of events.
    pub size: i64,
    /// The events.
    pub body: Vec<Event>,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = EventAnswer))]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The event's id: also that of its message.
    #[serde(default)]
    #[cfg_attr(feature = "json", schema(required = true))]
    pub id: String,
    /// The event's name.
    #[cfg_attr(feature = "json", schema(example = "OrderPlaced"))]
    pub name: String,
    /// The revision of its body's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub revision: Option<String>,
    /// What a reader makes of its body, such as the name of a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub body_type: Option<String>,
    /// The payload of its message, as it was written.
    #[serde(default, deserialize_with = "as_written", serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(required = true, value_type = crate::json::JsonObject))]
    pub body: Document,
}

/// Reads a document with its names as they are: serde would take one such as `{"$oid": …}` that an
/// application has written for extended JSON.
fn as_written<'de, D: Deserializer<'de>>(input: D) -> Result<Document, D::Error> {
    let raw = RawDocumentBuf::deserialize(input)?;
    Document::try_from(raw).map_err(serde::de::Error::custom)
}

/// Writes a document in the JSON form of HTTP ([`shown`]), or as BSON.
pub(crate) fn as_json<S: Serializer>(document: &Document, to: S) -> Result<S::Ok, S::Error> {
    if to.is_human_readable() {
        to.collect_map(document.iter().map(|(name, value)| (name, shown::value(value))))
    } else {
        document.serialize(to)
    }
}

/// The id of the outbox record of the event at `index` (from 0) of a stream: a UUIDv5, so that a
/// replayed answer can name it after it is gone.
pub fn record_id(stream: &Uuid, index: usize) -> Uuid {
    Uuid::new_v5(stream, index.to_string().as_bytes())
}

/// The ids of the outbox records of all `size` events.
pub(crate) fn record_ids(stream: &Uuid, size: usize) -> Vec<Uuid> {
    (0..size).map(|index| record_id(stream, index)).collect()
}
