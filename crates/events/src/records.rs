//! The outbox records of an append: one for each event.

use bson::raw::{RawDocumentBuf, cstr};
use bson::spec::BinarySubtype;
use bson::{Binary, DateTime, Timestamp};
use postrider_outbox::fields::PENDING;
use postrider_outbox::partition;

use crate::append::NewEvent;
use crate::document::append_text;
use crate::prepared::{Place, PreparedAppend};
use crate::stream::record_id;

/// The records of an append that takes this place, in the order of its events.
pub(crate) fn documents(append: &PreparedAppend, place: Place) -> Vec<RawDocumentBuf> {
    let given = &append.append;
    let key = given.id.as_str();
    let partition = i32::from(partition::of_key(key));
    let created_at = DateTime::from_millis(place.create_time);
    let events = given.events.iter().zip(&append.bodies).enumerate();
    let record = |(index, (event, body)): (usize, (&NewEvent, &RawDocumentBuf))| {
        let id = record_id(&append.id, index);
        let mut record = RawDocumentBuf::new();
        let id = Binary { subtype: BinarySubtype::Uuid, bytes: id.as_bytes().to_vec() };
        record.append(cstr!("_id"), id);
        record.append(cstr!("key"), key);
        record.append(cstr!("type"), event.name.as_str());
        record.append(cstr!("payload"), body.as_ref());
        record.append(cstr!("headers"), headers(append, place, index));
        append_text(&mut record, cstr!("tenantId"), given.tenant_id.as_ref());
        record.append(cstr!("status"), PENDING);
        // The server replaces it with its cluster time: in the order of these inserts.
        record.append(cstr!("seq"), Timestamp { time: 0, increment: 0 });
        record.append(cstr!("partition"), partition);
        record.append(cstr!("createdAt"), created_at);
        record
    };
    events.map(record).collect()
}

fn headers(append: &PreparedAppend, place: Place, index: usize) -> RawDocumentBuf {
    let given = &append.append;
    let integer = |number| i32::try_from(number).unwrap_or(i32::MAX);
    let mut headers = RawDocumentBuf::new();
    headers.append(cstr!("aggregate-name"), given.name.as_str());
    headers.append(cstr!("aggregate-id"), given.id.as_str());
    headers.append(cstr!("aggregate-version"), place.version_as_stored());
    headers.append(cstr!("event-index"), integer(index));
    // The version is complete with the event before this index.
    headers.append(cstr!("event-count"), integer(given.events.len()));
    append_text(&mut headers, cstr!("command-id"), given.command_id.as_ref());
    headers.append(cstr!("request-id"), given.request_id.as_str());
    append_text(&mut headers, cstr!("traceparent"), given.trace.parent.as_ref());
    append_text(&mut headers, cstr!("tracestate"), given.trace.state.as_ref());
    headers
}
