//! Events as they are read.

use serde::Serialize;
use utoipa::ToSchema;

use crate::json::value::JsonObject;
use crate::{Event, EventStream};

/// One append: the events of one command in one aggregate.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventStreamAnswer {
    /// The id of the event stream document.
    pub id: String,
    /// The bounded context.
    pub context_name: String,
    /// The kind of aggregate.
    #[schema(example = "order")]
    pub aggregate_name: String,
    /// The aggregate.
    #[schema(example = "o-1")]
    pub aggregate_id: String,
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub tenant_id: Option<String>,
    /// The owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub owner_id: Option<String>,
    /// The request that appended it.
    pub request_id: String,
    /// The command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub command_id: Option<String>,
    /// The aggregate's version after it.
    #[schema(example = 1)]
    pub version: i64,
    /// The time by MongoDB's clock, in milliseconds since 1970.
    pub create_time: i64,
    /// What the application stored with the events.
    pub header: JsonObject,
    /// The number of events.
    pub size: i64,
    /// The events.
    pub body: Vec<EventAnswer>,
}

/// One event.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventAnswer {
    /// The event's id: also that of its message.
    pub id: String,
    /// The event's name.
    #[schema(example = "OrderPlaced")]
    pub name: String,
    /// The revision of its body's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub revision: Option<String>,
    /// What a reader makes of its body.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub body_type: Option<String>,
    /// The payload of its message, as it was written.
    pub body: JsonObject,
}

impl From<EventStream> for EventStreamAnswer {
    fn from(stream: EventStream) -> Self {
        Self {
            id: stream.id,
            context_name: stream.context_name,
            aggregate_name: stream.aggregate_name,
            aggregate_id: stream.aggregate_id,
            tenant_id: stream.tenant_id,
            owner_id: stream.owner_id,
            request_id: stream.request_id,
            command_id: stream.command_id,
            version: stream.version,
            create_time: stream.create_time,
            header: JsonObject(stream.header),
            size: stream.size,
            body: stream.body.into_iter().map(EventAnswer::from).collect(),
        }
    }
}

impl From<Event> for EventAnswer {
    fn from(event: Event) -> Self {
        let Event { id, name, revision, body_type, body } = event;
        Self { id, name, revision, body_type, body: JsonObject(body) }
    }
}
