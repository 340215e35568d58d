//! The event stream document: one for each append.

use bson::{Document, doc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::document::{as_json, as_written};

/// The fields that reads and guards go by.
pub(crate) mod fields {
    pub(crate) const ID: &str = "_id";
    pub(crate) const AGGREGATE_ID: &str = "aggregateId";
    pub(crate) const TENANT_ID: &str = "tenantId";
    pub(crate) const REQUEST_ID: &str = "requestId";
    pub(crate) const VERSION: &str = "version";
    pub(crate) const CREATE_TIME: &str = "createTime";
    pub(crate) const SIZE: &str = "size";
    pub(crate) const POSITION: &str = "position";
    pub(crate) const HEADER: &str = "header";
    pub(crate) const BODY: &str = "body";
    /// True in the append that ended the stream.
    pub(crate) const ENDED: &str = "ended";
    /// Of the append that erased the stream: `discardPending`, and what was erased once it is complete.
    pub(crate) const ERASURE: &str = "erasure";
    /// True in an append whose content was erased.
    pub(crate) const ERASED: &str = "erased";
}

/// The number of events in a body, which is at this path, in an expression of MongoDB.
pub(crate) fn count_of(body: &str) -> Document {
    doc! { "$cond": [{ "$isArray": body }, { "$size": body }, 0] }
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
    /// The id of the aggregate.
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
    /// The id of the request that appended it.
    pub request_id: String,
    /// The id of the command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub command_id: Option<String>,
    /// The version of the aggregate after the append.
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
    /// The position of the last event in the feed; absent until it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub position: Option<i64>,
    /// The events.
    pub body: Vec<Event>,
    /// The fields of the stored document that cannot be decoded, and why; absent where everything can.
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub invalid: Vec<String>,
}

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = EventAnswer))]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The id of the event, which is the message id.
    #[serde(default)]
    #[cfg_attr(feature = "json", schema(required = true))]
    pub id: String,
    /// The name of the event.
    #[cfg_attr(feature = "json", schema(example = "OrderPlaced"))]
    pub name: String,
    /// The revision of the form of the body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub revision: Option<String>,
    /// The type that a reader decodes the body to, such as the name of a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub body_type: Option<String>,
    /// The body, as it was sent. It is the payload of the message.
    #[serde(default, deserialize_with = "as_written", serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(required = true, value_type = crate::json::JsonObject))]
    pub body: Document,
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
