//! The outbox records of a push subscription: a copy of each event.

use bson::raw::{CStr, RawDocumentBuf, cstr};
use bson::spec::BinarySubtype;
use bson::{Binary, DateTime, Timestamp};
use postrider_outbox::fields::PENDING;
use postrider_outbox::partition;
use postrider_store::StoreError;
use postrider_store::text::bounded;
use uuid::Uuid;

use crate::document::append_text;
use crate::feed::FeedEvent;
use crate::subscriptions::subscription::Subscription;

/// The headers that reads go by.
pub(super) mod header {
    pub(crate) const SUBSCRIPTION: &str = "subscription";
    pub(crate) const POSITION: &str = "feed-position";
    pub(crate) const AGGREGATE_NAME: &str = "aggregate-name";
    pub(crate) const AGGREGATE_ID: &str = "aggregate-id";
    pub(crate) const AGGREGATE_VERSION: &str = "aggregate-version";
    pub(crate) const EVENT_INDEX: &str = "event-index";
}

/// The longest header about what in an event cannot be decoded, in characters.
const MAX_INVALID_CHARS: usize = 500;

/// Separates the subscription from the aggregate in a key. No name of a subscription has it.
pub(super) const KEY_SEPARATOR: char = '/';

/// The key of an event's record: each aggregate has an order of its own in each subscription, so that
/// neither its live records nor those of other subscriptions wait for it.
pub(super) fn key(subscription: &str, aggregate_id: &str) -> String {
    format!("{subscription}{KEY_SEPARATOR}{aggregate_id}")
}

/// The id of an event's record: the same from every owner, and another one in each replay.
pub(super) fn copy_id(subscription: &Subscription, event: &FeedEvent) -> Uuid {
    id_of(&subscription.uid, &event.stream_id, event.index, subscription.replay)
}

fn id_of(uid: &str, stream_id: &str, index: i64, replay: i64) -> Uuid {
    let name = format!("{uid}/{stream_id}/{index}/{replay}");
    Uuid::new_v5(&NAMESPACE, name.as_bytes())
}

/// The ids of all records that a push subscription may have made of an append with so many events, in all
/// its replays.
pub(super) fn copy_ids(
    uid: &str,
    replay: i64,
    stream_id: &str,
    events: i64,
) -> impl Iterator<Item = Uuid> {
    let replays = 0..=replay;
    replays
        .flat_map(move |replay| (0..events).map(move |index| id_of(uid, stream_id, index, replay)))
}

/// The namespace of the ids: a UUID that was drawn once.
const NAMESPACE: Uuid = Uuid::from_u128(0x3f7c_1f0e_52a4_4b0c_9d0e_8a61_07b6_c2d5);

/// The record of an event.
pub(super) fn document(
    subscription: &Subscription,
    event: &FeedEvent,
) -> Result<RawDocumentBuf, StoreError> {
    let key = key(&subscription.name, &event.aggregate_id);
    let body = RawDocumentBuf::try_from(&event.body).map_err(|error| StoreError::Answer {
        action: "copy an event",
        detail: error.to_string(),
    })?;
    let mut record = RawDocumentBuf::new();
    let id = copy_id(subscription, event).as_bytes().to_vec();
    record.append(cstr!("_id"), Binary { subtype: BinarySubtype::Uuid, bytes: id });
    record.append(cstr!("key"), key.as_str());
    record.append(cstr!("type"), event.name.as_str());
    record.append(cstr!("payload"), body);
    record.append(cstr!("headers"), headers(subscription, event));
    append_text(&mut record, cstr!("tenantId"), event.tenant_id.as_ref());
    append_text(&mut record, cstr!("destination"), subscription.destination.as_ref());
    record.append(cstr!("status"), PENDING);
    // The server replaces it with its cluster time: in the order of these inserts.
    record.append(cstr!("seq"), Timestamp { time: 0, increment: 0 });
    record.append(cstr!("partition"), i32::from(partition::of_key(&key)));
    record.append(cstr!("createdAt"), DateTime::from_millis(event.create_time));
    Ok(record)
}

fn headers(subscription: &Subscription, event: &FeedEvent) -> RawDocumentBuf {
    let mut headers = RawDocumentBuf::new();
    headers.append(cstr!("aggregate-name"), event.aggregate_name.as_str());
    headers.append(cstr!("aggregate-id"), event.aggregate_id.as_str());
    append_integer(&mut headers, cstr!("aggregate-version"), event.version);
    append_integer(&mut headers, cstr!("event-index"), event.index);
    append_integer(&mut headers, cstr!("event-count"), event.event_count);
    headers.append(cstr!("event-id"), event.id.as_str());
    append_text(&mut headers, cstr!("command-id"), event.command_id.as_ref());
    headers.append(cstr!("request-id"), event.request_id.as_str());
    headers.append(cstr!("subscription"), subscription.name.as_str());
    headers.append(cstr!("feed-position"), event.position);
    if !event.invalid.is_empty() {
        let invalid = event.invalid.join("; ");
        headers.append(cstr!("event-invalid"), &*bounded(&invalid, MAX_INVALID_CHARS));
    }
    headers
}

/// Appends an integer as int32 if it fits, as the headers of live records have it.
fn append_integer(document: &mut RawDocumentBuf, field: &CStr, integer: i64) {
    match i32::try_from(integer) {
        Ok(small) => document.append(field, small),
        Err(_) => document.append(field, integer),
    }
}
