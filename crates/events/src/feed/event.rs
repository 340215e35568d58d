//! An event of the feed, and a page of them.

use bson::Document;
use bson::raw::{RawBsonRef, RawDocument};
use serde::Serialize;

use crate::decode::concerns;
use crate::document::as_json;
use crate::stream::EventStream;
use crate::stream::fields::BODY;

/// One event, with its position.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = FeedItem))]
#[serde(rename_all = "camelCase")]
pub struct FeedEvent {
    /// The position: consecutive over all aggregate names of the context.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub position: i64,
    /// The kind of aggregate.
    #[cfg_attr(feature = "json", schema(example = "order"))]
    pub aggregate_name: String,
    /// The aggregate.
    #[cfg_attr(feature = "json", schema(example = "o-1"))]
    pub aggregate_id: String,
    /// The aggregate's version after the append.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub version: i64,
    /// The index of the event in its append, from 0.
    #[cfg_attr(feature = "json", schema(example = 0))]
    pub index: i64,
    /// The number of events of its append, of which a filter may exclude some.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub event_count: i64,
    /// The event's id: also that of its message.
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
    /// The event's body, as it was written.
    #[serde(serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(value_type = crate::json::JsonObject))]
    pub body: Document,
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
    /// The time by MongoDB's clock, in milliseconds since 1970. It does not rise with the position.
    pub create_time: i64,
    /// What the application stored with the append.
    #[serde(serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(value_type = crate::json::JsonObject))]
    pub header: Document,
    /// What of the event, or of its append, cannot be decoded, and why; absent where everything can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub invalid: Vec<String>,
    /// The id of the event stream document.
    #[serde(skip)]
    pub stream_id: String,
}

/// A part of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedPage {
    /// The id of the feed, to be kept with `next`.
    pub feed: String,
    /// The events that the filter lets pass, ascending by position.
    pub items: Vec<FeedEvent>,
    /// The position up to which this page has read: the `after` of the next one. It advances where the
    /// filter lets nothing pass.
    pub next: i64,
    /// The last position of the feed.
    pub head: i64,
}

/// The events of an append whose last one has this position.
pub(super) fn events(position: i64, mut stream: EventStream) -> impl Iterator<Item = FeedEvent> {
    let body = std::mem::take(&mut stream.body);
    let event_count = i64::try_from(body.len()).unwrap_or(0);
    let first = position - event_count + 1;
    // The last event takes the fields that all have; the others copy them.
    let streams = std::iter::repeat_n(stream, body.len());
    (0_i64..).zip(body).zip(streams).map(move |((index, event), stream)| FeedEvent {
        position: first + index,
        aggregate_name: stream.aggregate_name,
        aggregate_id: stream.aggregate_id,
        version: stream.version,
        index,
        event_count,
        id: event.id,
        name: event.name,
        revision: event.revision,
        body_type: event.body_type,
        body: event.body,
        tenant_id: stream.tenant_id,
        owner_id: stream.owner_id,
        request_id: stream.request_id,
        command_id: stream.command_id,
        create_time: stream.create_time,
        header: stream.header,
        invalid: stream.invalid.into_iter().filter(|field| concerns(field, index)).collect(),
        stream_id: stream.id,
    })
}

/// About how many bytes each event of an append takes: its own, and those of what all of them have, which
/// each of them has in a page.
pub(super) fn sizes(document: &RawDocument) -> impl Iterator<Item = usize> {
    let elements = document.get_array(BODY).into_iter().flatten().flatten();
    let own: Vec<usize> = elements
        .map(|element| match element {
            RawBsonRef::Document(event) => event.as_bytes().len(),
            _ => 0,
        })
        .collect();
    let shared = document.as_bytes().len().saturating_sub(own.iter().sum());
    // (Of invalid elements the size is not known.)
    own.into_iter().chain(std::iter::repeat(0)).map(move |bytes| bytes + shared)
}
