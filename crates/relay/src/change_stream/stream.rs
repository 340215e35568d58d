//! The change stream on the records.
//!
//! An event carries the whole record up to a size. For a larger record, a replaced one, and one that
//! became pending by an update (requeued, promoted) it carries the key, which the relay then reads.

use std::collections::HashMap;
use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use futures_util::TryStreamExt;
use mongodb::options::ReadConcern;
use postrider_outbox::collections::Collections;
use postrider_outbox::fields::{BLOCKS, DEAD, ID, KEY, PARTITION, PENDING, SEQ, STATUS, exactly};
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{Placement, Record, Unfit};
use postrider_outbox::wakeup::StreamEvent;
use postrider_store::connect::primary;
use postrider_store::{StoreError, limits, within};

use crate::change_stream::cursor::{EventCursor, Reading};

/// Events per batch: 6 MB with the largest records that are carried.
const READING: Reading = Reading { max_await: Duration::from_secs(5), batch_size: 100 };

/// An open change stream.
pub(super) struct ChangeStream {
    cursor: EventCursor,
}

impl ChangeStream {
    /// Opens a stream from now on: it shows every change that a later snapshot does not show.
    pub(super) async fn open(collections: &Collections) -> Result<Self, StoreError> {
        // On a sharded cluster an event may be late: the relay reads the key.
        let max_bytes = if collections.is_sharded() { 0 } else { MAX_RECORD_BYTES };
        let cursor = EventCursor::open(collections, stages(max_bytes), READING).await?;
        Ok(Self { cursor })
    }

    /// Returns the cluster time after which the stream shows every change.
    pub(super) fn opened_at(&self) -> Timestamp {
        self.cursor.opened_at()
    }

    /// Waits for events and returns them; returns none if the server had none for a while.
    pub(super) async fn next(
        &mut self,
        collections: &Collections,
    ) -> Result<Vec<StreamEvent>, StoreError> {
        let read = |event: Option<&RawDocument>| event.map_or(Event::Unclear, read);
        with_keys(collections, self.cursor.next(read).await?).await
    }
}

/// Returns the stages. They pass records that become pending (inserted, requeued or due), pending records
/// that move to another place, and records that start to block their key (also if they are inserted dead, as by
/// a restore). They filter out leases and settles.
fn stages(max_bytes: i32) -> Vec<Document> {
    let field = |name: &str| format!("fullDocument.{name}");
    let inserted = doc! {
        "operationType": { "$in": ["insert", "replace"] },
        "$or": [
            { field(STATUS): exactly(PENDING) },
            { field(STATUS): DEAD, field(BLOCKS): true },
        ],
    };
    let path = |name: &str| format!("$fullDocument.{name}");
    let is_small = doc! { "$lte": [{ "$bsonSize": "$fullDocument" }, max_bytes] };
    // Updates come without `fullDocument`: a lookup would be a read per lease.
    let changed = |name: &str| format!("updateDescription.updatedFields.{name}");
    let mut any = vec![doc! { changed(STATUS): PENDING }];
    any.extend(PLACEMENT_FIELDS.map(|name| doc! { changed(name): { "$exists": true } }));
    let updated = doc! { "operationType": "update", "$or": any };
    vec![
        doc! { "$match": { "$or": [inserted, updated] } },
        doc! { "$project": {
            "operationType": 1,
            "clusterTime": 1,
            "documentKey": 1,
            "fullDocument": { "$cond": [
                is_small.clone(),
                "$fullDocument",
                { ID: path(ID), KEY: path(KEY), PARTITION: path(PARTITION), SEQ: path(SEQ) },
            ] },
            IS_SMALL: is_small,
        } },
    ]
}

/// The fields that decide the order of records. An operator, or a relay that corrects a record, may change
/// them.
const PLACEMENT_FIELDS: [&str; 4] = [PARTITION, KEY, SEQ, BLOCKS];

/// The largest record that an event carries whole.
const MAX_RECORD_BYTES: i32 = 64 << 10;

/// The field of an event that says whether its record is carried whole.
const IS_SMALL: &str = "isSmall";

/// An event of the pipeline.
#[derive(Debug)]
enum Event {
    Is(StreamEvent),
    /// This record became pending, or moved to another place, by an update, which carries only its id.
    Updated(RecordId, Timestamp),
    Unclear,
}

fn read(event: &RawDocument) -> Event {
    let Ok(at) = event.get_timestamp("clusterTime") else { return Event::Unclear };
    let Ok(document) = event.get_document("fullDocument") else {
        let id = event.get_document("documentKey").and_then(|key| key.get(ID));
        let id = id.ok().flatten().and_then(|id| Bson::try_from(id).ok());
        return id.map_or(Event::Unclear, |id| Event::Updated(RecordId::from(id), at));
    };
    let record = Record::read(document);
    if record.unfit == Some(Unfit::Nameless) {
        return Event::Unclear;
    }
    let is_insert = event.get_str("operationType").is_ok_and(|kind| kind == "insert");
    let is_whole = event.get_bool(IS_SMALL).unwrap_or(false);
    let is_pending = document.get_str(STATUS).is_ok_and(|status| status == PENDING);
    let is_placed = record.placement != Placement::Invalid;
    Event::Is(if is_insert && is_whole && is_pending && is_placed {
        StreamEvent::Pending(Box::new(record), at)
    } else {
        touched(record, at)
    })
}

fn touched(record: Record, at: Timestamp) -> StreamEvent {
    // A read of its key does not find it in the index.
    if record.placement == Placement::Invalid {
        return StreamEvent::Misplaced(Box::new(record), at);
    }
    StreamEvent::Touched { partition: record.partition, lane: record.lane, id: record.id, at }
}

/// Adds the lanes of records that became pending by an update.
async fn with_keys(
    collections: &Collections,
    events: Vec<Event>,
) -> Result<Vec<StreamEvent>, StoreError> {
    let updated = events.iter().filter_map(|event| match event {
        Event::Updated(id, _) => Some(Bson::from(id)),
        Event::Is(_) | Event::Unclear => None,
    });
    let updated: Vec<Bson> = updated.collect();
    let lanes =
        if updated.is_empty() { HashMap::new() } else { lanes_of(collections, updated).await? };
    let change = |event: Event| match event {
        Event::Is(change) => Some(change),
        // The record is gone, so it is not pending.
        Event::Updated(id, at) => lanes.get(&id).map(|record| touched(record.clone(), at)),
        Event::Unclear => Some(StreamEvent::Somewhere),
    };
    Ok(events.into_iter().filter_map(change).collect())
}

async fn lanes_of(
    collections: &Collections,
    ids: Vec<Bson>,
) -> Result<HashMap<RecordId, Record>, StoreError> {
    let records = collections.records();
    let find = records
        .find(doc! { ID: { "$in": ids } })
        .projection(doc! { ID: 1, KEY: 1, PARTITION: 1, SEQ: 1 })
        .read_concern(ReadConcern::local())
        .selection_criteria(primary());
    let reading = async { find.await?.try_collect::<Vec<_>>().await };
    let found = within("read the keys of changed records", limits::BATCH_TIMEOUT, reading).await?;
    let lane = |raw: RawDocumentBuf| {
        let record = Record::read(&raw);
        (record.id.clone(), record)
    };
    Ok(found.into_iter().map(lane).collect())
}

#[cfg(test)]
mod tests {
    use bson::raw::RawDocumentBuf;

    use super::*;

    const AT: Timestamp = Timestamp { time: 9, increment: 1 };

    /// Reads the event of an insert of this document, with other fields replaced.
    fn inserted(document: Document, other: Document) -> Event {
        let mut event = doc! {
            "operationType": "insert",
            "clusterTime": AT,
            "documentKey": { "_id": document.get("_id") },
            "fullDocument": document,
            IS_SMALL: true,
        };
        event.extend(other);
        read(&RawDocumentBuf::try_from(&event).unwrap())
    }

    #[test]
    fn inserted_record_is_carried_whole_with_its_time() {
        for key in [doc! { "key": "order-123" }, doc! { "key": null }, doc! {}] {
            let mut document = doc! { "_id": "a", "status": "pending", "payload": 1 };
            document.extend(key);

            let event = inserted(document.clone(), doc! {});

            let Event::Is(StreamEvent::Pending(record, AT)) = event else { panic!("{event:?}") };
            assert_eq!(Document::try_from(record.raw.as_ref()).unwrap(), document);
        }
    }

    #[test]
    fn large_replaced_or_dead_record_is_named() {
        for (status, other) in [
            ("pending", doc! { IS_SMALL: false }),
            ("pending", doc! { "operationType": "replace" }),
            ("dead", doc! {}),
        ] {
            let event = inserted(doc! { "_id": "a", "key": "order-123", "status": status }, other);

            let Event::Is(StreamEvent::Touched { partition, lane, id, at: AT }) = event else {
                panic!("{event:?}")
            };
            assert_eq!((partition, lane.as_str(), id.to_string()), (189, "order-123", "a".into()));
        }
    }

    #[test]
    fn record_in_an_invalid_partition_is_misplaced() {
        for partition in [Bson::Int32(256), 3.5.into(), "7".into(), vec![Bson::Int32(7)].into()] {
            let document = doc! { "_id": "a", "key": "order-123", "partition": partition };
            for large in [doc! {}, doc! { IS_SMALL: false }, doc! { "operationType": "replace" }] {
                let event = inserted(document.clone(), large);

                let Event::Is(StreamEvent::Misplaced(record, AT)) = event else {
                    panic!("{event:?}")
                };
                assert_eq!((record.partition, record.lane.as_str()), (189, "order-123"));
            }
        }
    }

    #[test]
    fn update_carries_only_the_record_id() {
        let mut event = doc! { "operationType": "update", "clusterTime": AT };
        event.insert("documentKey", doc! { "_id": 7 });

        let read = read(&RawDocumentBuf::try_from(&event).unwrap());

        assert!(matches!(read, Event::Updated(RecordId::Int(7), AT)), "{read:?}");
    }

    #[test]
    fn event_without_record_or_time_is_unclear() {
        for event in [doc! {}, doc! { "clusterTime": AT }, doc! { "fullDocument": { "_id": 1 } }] {
            let read = read(&RawDocumentBuf::try_from(&event).unwrap());

            assert!(matches!(read, Event::Unclear), "{event}");
        }
    }
}
