//! The change stream on the records: opened at a known cluster time, read batch by batch.
//!
//! An event carries the whole record up to a size. For a larger record, a replaced one, and one that
//! became pending by an update (requeued, promoted) it carries the key, which the relay then reads.

use std::collections::HashMap;
use std::time::Duration;

use bson::raw::{RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use futures_util::{StreamExt, TryStreamExt};
use mongodb::options::ReadConcern;
use mongodb::raw_batch_cursor::RawBatchCursor;
use postrider_outbox::collections::{Collections, names};
use postrider_outbox::fields::{BLOCKS, ID, KEY, PARTITION, PENDING, SEQ, STATUS, exactly};
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{Placement, Record, Unfit};
use postrider_outbox::wakeup::StreamEvent;
use postrider_store::connect::primary;
use postrider_store::{StoreError, cluster_time, limits, within};

/// How long the server waits for an event before it replies with an empty batch.
const MAX_AWAIT: Duration = Duration::from_secs(5);

/// How long a reply may take beyond that. A frozen server never replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How far the stream may be behind the cluster time, which advances every 10 s without writes. A former
/// primary that is cut off still replies, without events.
const MAX_LAG: Duration = Duration::from_secs(15);

/// Events per batch: 6 MB with the largest records that are carried.
const BATCH_SIZE: u32 = 100;

/// An open change stream. When dropped, the driver kills the server's cursor.
///
/// Not the driver's own `ChangeStream`: that one resumes silently, which hides a loss, and does not
/// distinguish an idle server from a frozen one.
pub(super) struct ChangeStream {
    cursor: RawBatchCursor,
    opened_at: Timestamp,
}

impl ChangeStream {
    /// Opens a stream from now on: it shows every change that a later snapshot does not show.
    pub(super) async fn open(collections: &Collections) -> Result<Self, StoreError> {
        let after = snapshot_time(collections).await?;
        // On a sharded cluster an event may be late: the relay reads the key.
        let max_bytes = if collections.is_sharded() { 0 } else { MAX_RECORD_BYTES };
        let command = doc! {
            "aggregate": collections.name(names::RECORDS),
            "pipeline": pipeline(after, max_bytes),
            "cursor": { "batchSize": BATCH_SIZE },
            "readConcern": { "level": "majority" },
        };
        let opening = collections
            .database()
            .run_cursor_command(command)
            .selection_criteria(primary())
            .max_time(MAX_AWAIT)
            .batch_size(BATCH_SIZE)
            .batch();
        let cursor = within("open the change stream", limits::BATCH_TIMEOUT, opening).await?;
        Ok(Self { cursor, opened_at: after })
    }

    /// Returns the cluster time after which the stream shows every change.
    pub(super) fn opened_at(&self) -> Timestamp {
        self.opened_at
    }

    /// Waits for events and returns them; returns none if the server had none for a while.
    pub(super) async fn next(
        &mut self,
        collections: &Collections,
    ) -> Result<Vec<StreamEvent>, StoreError> {
        let next = async { self.cursor.next().await.transpose() };
        let batch = within("read the change stream", MAX_AWAIT + REPLY_TIMEOUT, next).await?;
        let broken =
            |detail: String| StoreError::Answer { action: "read the change stream", detail };
        let Some(batch) = batch else {
            return Err(broken(
                "the stream ended, since the collection was dropped or renamed".to_owned(),
            ));
        };
        let answer = batch.as_raw_document();
        let time = answer.get_document("$clusterTime");
        let time = time.and_then(|time| time.get_timestamp("clusterTime"));
        if lags(answer.get_timestamp("operationTime").ok(), time.ok()) {
            return Err(broken(LAG_DETAIL.to_owned()));
        }
        let events = batch.doc_slices().map_err(|error| broken(error.to_string()))?;
        let read = |event: RawBsonRef<'_>| event.as_document().map_or(Event::Unclear, read);
        let events = events.into_iter().map(|event| event.map_or(Event::Unclear, read));
        with_keys(collections, events.collect()).await
    }
}

/// Reads a cluster time up to which every later snapshot is complete.
async fn snapshot_time(collections: &Collections) -> Result<Timestamp, StoreError> {
    const ACTION: &str = "read the start time of the change stream";
    let records = collections.name(names::RECORDS);
    let read = cluster_time::of_snapshot(collections.database(), &records, ACTION).await?;
    if lags(Some(read.at), read.cluster) {
        return Err(StoreError::Answer { action: ACTION, detail: LAG_DETAIL.to_owned() });
    }
    Ok(read.at)
}

const LAG_DETAIL: &str = "the majority commit point is far behind the cluster time";

/// Returns whether the stream is far behind the cluster time, if both are known.
fn lags(seen: Option<Timestamp>, cluster: Option<Timestamp>) -> bool {
    let seconds = |time: Timestamp| Duration::from_secs(time.time.into());
    let (Some(seen), Some(cluster)) = (seen, cluster) else { return false };
    seconds(cluster).saturating_sub(seconds(seen)) > MAX_LAG
}

/// Returns the pipeline. It passes records that become pending (inserted, requeued or due), pending records
/// that move to another place, and records that start to block their key. It filters out leases and settles.
///
/// It starts at the time after `after`: otherwise the stream fails for ever if the last event is too large.
fn pipeline(after: Timestamp, max_bytes: i32) -> Vec<Document> {
    let field = |name: &str| format!("fullDocument.{name}");
    let inserted = doc! {
        "operationType": { "$in": ["insert", "replace"] },
        field(STATUS): exactly(PENDING),
    };
    let path = |name: &str| format!("$fullDocument.{name}");
    let is_small = doc! { "$lte": [{ "$bsonSize": "$fullDocument" }, max_bytes] };
    // Updates come without `fullDocument`: a lookup would be a read per lease.
    let changed = |name: &str| format!("updateDescription.updatedFields.{name}");
    let mut any = vec![doc! { changed(STATUS): PENDING }];
    any.extend(PLACEMENT_FIELDS.map(|name| doc! { changed(name): { "$exists": true } }));
    let updated = doc! { "operationType": "update", "$or": any };
    vec![
        doc! { "$changeStream": { "startAtOperationTime": Bson::Timestamp(cluster_time::next(after)) } },
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
    Event::Is(if is_insert && is_whole && record.placement != Placement::Invalid {
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
    fn large_or_replaced_record_is_named() {
        for (document, other) in [
            (doc! { "_id": "a", "key": "order-123" }, doc! { IS_SMALL: false }),
            (doc! { "_id": "a", "key": "order-123" }, doc! { "operationType": "replace" }),
        ] {
            let event = inserted(document, other);

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

    #[test]
    fn stream_lags_when_more_than_15_s_behind_the_cluster() {
        let at = |time| Some(Timestamp { time, increment: 1 });

        assert!(!lags(at(100), at(115)));
        assert!(lags(at(100), at(116)));
        assert!(!lags(at(116), at(100)));
        assert!(!lags(None, at(116)) && !lags(at(100), None));
    }
}
