//! The change stream on the records: opened at a known moment, read batch by batch.
//!
//! It brings the records themselves, up to a size. A larger one, one that was replaced, and one that
//! became pending by an update (requeued, promoted) are named: the relay reads their keys.

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
use postrider_store::{StoreError, limits, within};

/// How long the server keeps a question to which it has no answer: an idle stream costs a command
/// in so many seconds. Nothing waits for it: a stop drops the question.
const MAX_AWAIT: Duration = Duration::from_secs(5);

/// What an answer may take beyond that. A server that is frozen says nothing for ever.
const ANSWER: Duration = Duration::from_secs(5);

/// How far what the stream shows may be behind the cluster's time, which continues every 10 s though
/// nobody writes. A member that was cut off and then deposed answers on, and has no news.
const LAG: Duration = Duration::from_secs(15);

/// Events of one answer: with the largest records that are carried, 6 MB.
const BATCH: u32 = 100;

/// An open change stream. When dropped, the driver kills the server's cursor.
///
/// Not the driver's own `ChangeStream`: that one resumes in silence, where the loss is to be seen,
/// and does not tell a server without news from one that is frozen.
pub(super) struct ChangeStream {
    cursor: RawBatchCursor,
    opened_at: Timestamp,
}

impl ChangeStream {
    /// Opens a stream of all that comes after this moment: whatever a snapshot that is read from
    /// now on does not show, the stream will.
    pub(super) async fn open(collections: &Collections) -> Result<Self, StoreError> {
        let after = moment(collections).await?;
        // (Over shards the relay reads what an event names: it may come late.)
        let largest = if collections.is_sharded() { 0 } else { LARGEST };
        let command = doc! {
            "aggregate": collections.name(names::RECORDS),
            "pipeline": pipeline(after, largest),
            "cursor": { "batchSize": BATCH },
            "readConcern": { "level": "majority" },
        };
        let opening = collections
            .database()
            .run_cursor_command(command)
            .selection_criteria(primary())
            .max_time(MAX_AWAIT)
            .batch_size(BATCH)
            .batch();
        let cursor = within("open the change stream", limits::BATCH, opening).await?;
        Ok(Self { cursor, opened_at: after })
    }

    /// The moment after which it brings everything.
    pub(super) fn opened_at(&self) -> Timestamp {
        self.opened_at
    }

    /// What came, as soon as anything does; nothing where the server had none for a while.
    pub(super) async fn next(
        &mut self,
        collections: &Collections,
    ) -> Result<Vec<StreamEvent>, StoreError> {
        let next = async { self.cursor.next().await.transpose() };
        let batch = within("read the change stream", MAX_AWAIT + ANSWER, next).await?;
        let broken =
            |detail: String| StoreError::Answer { action: "read the change stream", detail };
        let Some(batch) = batch else {
            return Err(broken("it ended: the collection was dropped or renamed".to_owned()));
        };
        let answer = batch.as_raw_document();
        let time = answer.get_document("$clusterTime");
        let time = time.and_then(|time| time.get_timestamp("clusterTime"));
        if lags(answer.get_timestamp("operationTime").ok(), time.ok()) {
            return Err(broken(LAGS.to_owned()));
        }
        let events = batch.doc_slices().map_err(|error| broken(error.to_string()))?;
        let read = |event: RawBsonRef<'_>| event.as_document().map_or(Event::Unclear, read);
        let events = events.into_iter().map(|event| event.map_or(Event::Unclear, read));
        named(collections, events.collect()).await
    }
}

/// The latest moment of which every snapshot that is read from now on shows all: one that a
/// snapshot was read at. (The `operationTime` of an answer may be ahead of it.)
async fn moment(collections: &Collections) -> Result<Timestamp, StoreError> {
    const ACTION: &str = "ask for the moment to follow from";
    let command = doc! {
        "find": collections.name(names::RECORDS),
        "filter": {},
        "projection": { ID: 1 },
        "limit": 1,
        "singleBatch": true,
        "readConcern": { "level": "snapshot" },
    };
    let asking = collections.database().run_command(command).selection_criteria(primary());
    let answer = within(ACTION, limits::BATCH, asking.into_future()).await?;
    let cursor = answer.get_document("cursor").ok();
    let moment = cursor.and_then(|cursor| cursor.get_timestamp("atClusterTime").ok());
    let wrong = |detail: &str| StoreError::Answer { action: ACTION, detail: detail.to_owned() };
    let moment = moment.ok_or_else(|| wrong("there is no such collection"))?;
    let time =
        answer.get_document("$clusterTime").and_then(|time| time.get_timestamp("clusterTime"));
    match lags(Some(moment), time.ok()) {
        true => Err(wrong(LAGS)),
        false => Ok(moment),
    }
}

const LAGS: &str = "what a majority has is far behind the cluster's time";

/// Whether what was seen is far behind the time of the cluster, as far as both are known.
fn lags(seen: Option<Timestamp>, cluster: Option<Timestamp>) -> bool {
    let seconds = |time: Timestamp| Duration::from_secs(time.time.into());
    let (Some(seen), Some(cluster)) = (seen, cluster) else { return false };
    seconds(cluster).saturating_sub(seconds(seen)) > LAG
}

/// What becomes pending: by an insert, by a requeue, or when it is due; and what comes into another place
/// while it is, or begins to block its key. Leases and settles write nothing of that, and so stay on the
/// server.
///
/// Not from `after` on but from the next moment: the stream could not get past an event that is too
/// large for it, were that the last one that there was.
fn pipeline(after: Timestamp, largest: i32) -> Vec<Document> {
    let field = |name: &str| format!("fullDocument.{name}");
    let inserted = doc! {
        "operationType": { "$in": ["insert", "replace"] },
        field(STATUS): exactly(PENDING),
    };
    let path = |name: &str| format!("$fullDocument.{name}");
    let is_small = doc! { "$lte": [{ "$bsonSize": "$fullDocument" }, largest] };
    // `fullDocument` is no part of these: looking it up would be a read for every lease.
    let changed = |name: &str| format!("updateDescription.updatedFields.{name}");
    let mut any = vec![doc! { changed(STATUS): PENDING }];
    any.extend(PLACING.map(|name| doc! { changed(name): { "$exists": true } }));
    let updated = doc! { "operationType": "update", "$or": any };
    vec![
        doc! { "$changeStream": { "startAtOperationTime": Bson::Timestamp(next(after)) } },
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
            SMALL: is_small,
        } },
    ]
}

fn next(moment: Timestamp) -> Timestamp {
    match moment.increment.checked_add(1) {
        Some(increment) => Timestamp { increment, ..moment },
        None => Timestamp { time: moment.time.saturating_add(1), increment: 0 },
    }
}

/// The fields that say which records are before which: an operator, or another relay that corrects a
/// record, may change them.
const PLACING: [&str; 4] = [PARTITION, KEY, SEQ, BLOCKS];

/// Records up to this size are carried whole.
const LARGEST: i32 = 64 << 10;

/// The field of an event that says whether its record is carried whole.
const SMALL: &str = "isSmall";

/// An event, as the pipeline leaves it.
#[derive(Debug)]
enum Event {
    Is(StreamEvent),
    /// This record became pending, or came into another place, by an update, which names no more of it.
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
    let is_whole = event.get_bool(SMALL).unwrap_or(false);
    Event::Is(match is_insert && is_whole && record.placement != Placement::Invalid {
        true => StreamEvent::Pending(Box::new(record), at),
        false => touched(record, at),
    })
}

fn touched(record: Record, at: Timestamp) -> StreamEvent {
    // It lies in no range of the index where its key is read.
    if record.placement == Placement::Invalid {
        return StreamEvent::Misplaced(Box::new(record), at);
    }
    StreamEvent::Touched { partition: record.partition, lane: record.lane, id: record.id, at }
}

/// The same, with the lanes of those that became pending by an update.
async fn named(
    collections: &Collections,
    events: Vec<Event>,
) -> Result<Vec<StreamEvent>, StoreError> {
    let updated = events.iter().filter_map(|event| match event {
        Event::Updated(id, _) => Some(Bson::from(id)),
        Event::Is(_) | Event::Unclear => None,
    });
    let updated: Vec<Bson> = updated.collect();
    let lanes = match updated.is_empty() {
        true => HashMap::new(),
        false => lanes_of(collections, updated).await?,
    };
    let change = |event: Event| match event {
        Event::Is(change) => Some(change),
        // Gone meanwhile: nothing of it is pending.
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
    let found = within("read the keys of changed records", limits::BATCH, reading).await?;
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

    /// What an insertion of this document says, or another event.
    fn inserted(document: Document, other: Document) -> Event {
        let mut event = doc! {
            "operationType": "insert",
            "clusterTime": AT,
            "documentKey": { "_id": document.get("_id") },
            "fullDocument": document,
            SMALL: true,
        };
        event.extend(other);
        read(&RawDocumentBuf::try_from(&event).unwrap())
    }

    #[test]
    fn an_inserted_record_comes_whole_with_its_moment() {
        for key in [doc! { "key": "order-123" }, doc! { "key": null }, doc! {}] {
            let mut document = doc! { "_id": "a", "status": "pending", "payload": 1 };
            document.extend(key);

            let event = inserted(document.clone(), doc! {});

            let Event::Is(StreamEvent::Pending(record, AT)) = event else { panic!("{event:?}") };
            assert_eq!(Document::try_from(record.raw.as_ref()).unwrap(), document);
        }
    }

    #[test]
    fn what_is_large_or_replaced_is_named() {
        for (document, other) in [
            (doc! { "_id": "a", "key": "order-123" }, doc! { SMALL: false }),
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
    fn what_is_in_no_valid_partition_is_told_as_such() {
        for partition in [Bson::Int32(256), 3.5.into(), "7".into(), vec![Bson::Int32(7)].into()] {
            let document = doc! { "_id": "a", "key": "order-123", "partition": partition };
            for large in [doc! {}, doc! { SMALL: false }, doc! { "operationType": "replace" }] {
                let event = inserted(document.clone(), large);

                let Event::Is(StreamEvent::Misplaced(record, AT)) = event else {
                    panic!("{event:?}")
                };
                assert_eq!((record.partition, record.lane.as_str()), (189, "order-123"));
            }
        }
    }

    #[test]
    fn an_update_names_its_record_and_no_more() {
        let mut event = doc! { "operationType": "update", "clusterTime": AT };
        event.insert("documentKey", doc! { "_id": 7 });

        let read = read(&RawDocumentBuf::try_from(&event).unwrap());

        assert!(matches!(read, Event::Updated(RecordId::Int(7), AT)), "{read:?}");
    }

    #[test]
    fn what_names_no_record_or_no_moment_is_unclear() {
        for event in [doc! {}, doc! { "clusterTime": AT }, doc! { "fullDocument": { "_id": 1 } }] {
            let read = read(&RawDocumentBuf::try_from(&event).unwrap());

            assert!(matches!(read, Event::Unclear), "{event}");
        }
    }

    #[test]
    fn whoever_is_more_than_a_quarter_of_a_minute_behind_the_cluster_lags() {
        let at = |time| Some(Timestamp { time, increment: 1 });

        assert!(!lags(at(100), at(115)));
        assert!(lags(at(100), at(116)));
        assert!(!lags(at(116), at(100)));
        assert!(!lags(None, at(116)) && !lags(at(100), None));
    }

    #[test]
    fn the_moment_after_the_last_of_a_second_is_the_first_of_the_next() {
        let moment = |time, increment| Timestamp { time, increment };

        assert_eq!(next(moment(5, 1)), moment(5, 2));
        assert_eq!(next(moment(5, u32::MAX)), moment(6, 0));
    }
}
