//! The change stream on the records: opened at a known moment, read batch by batch.

use std::time::Duration;

use bson::raw::RawDocument;
use bson::{Bson, Document, Timestamp, doc};
use futures_util::StreamExt;
use mongodb::raw_batch_cursor::RawBatchCursor;

use crate::outbox::collections::{Collections, names};
use crate::outbox::fields::{ID, KEY, PARTITION, PENDING, STATUS};
use crate::outbox::record::{LaneKey, Record};
use crate::relay::wake::Hint;
use crate::store::connect::primary;
use crate::store::{StoreError, limits, within};

/// How long the server keeps a question to which it has no answer: an idle stream costs a command
/// in so many seconds. Nobody waits for it: a stop drops the question.
const MAX_AWAIT: Duration = Duration::from_secs(5);

/// What an answer may take beyond that. A server that is frozen says nothing for ever.
const ANSWER: Duration = Duration::from_secs(5);

/// How far what the stream shows may be behind the cluster's time, which goes on every 10 s though
/// nobody writes. A member that was cut off and then deposed answers on, and has no news.
const LAG: Duration = Duration::from_secs(30);

/// An open change stream. When dropped, the driver kills the server's cursor.
///
/// Not the driver's own `ChangeStream`: that one resumes in silence, where the loss is to be seen,
/// and does not tell a server without news from one that is frozen.
pub(super) struct ChangeStream {
    cursor: RawBatchCursor,
}

/// What became pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Where to look.
    At(Hint),
    /// What the event says leads to no place.
    Somewhere,
}

impl ChangeStream {
    /// Opens a stream of all that comes after this moment: whatever a snapshot that is read from
    /// now on does not show, the stream will.
    pub(super) async fn open(collections: &Collections) -> Result<Self, StoreError> {
        let after = moment(collections).await?;
        let command = doc! {
            "aggregate": collections.name(names::RECORDS),
            "pipeline": pipeline(after),
            "cursor": {},
            "readConcern": { "level": "majority" },
        };
        let opening = collections
            .database()
            .run_cursor_command(command)
            .selection_criteria(primary())
            .max_time(MAX_AWAIT)
            .batch();
        let cursor = within("open the change stream", limits::BATCH, opening).await?;
        Ok(Self { cursor })
    }

    /// What came, as soon as anything does; nothing where the server had none for a while.
    pub(super) async fn next(&mut self) -> Result<Vec<News>, StoreError> {
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
        let events = events.into_iter().map(|event| {
            event.ok().and_then(|event| event.as_document()).map_or(News::Somewhere, read)
        });
        Ok(events.collect())
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

/// What becomes pending: by an insert, by a requeue, or when it is due. Leases and settles write
/// no `status: "pending"`, and so stay on the server.
///
/// Not from `after` on but from the next moment: the stream could not get past an event that is too
/// large for it, were that the last one that there was.
fn pipeline(after: Timestamp) -> Vec<Document> {
    let field = |name: &str| format!("fullDocument.{name}");
    let inserted = doc! {
        "operationType": { "$in": ["insert", "replace"] },
        field(STATUS): PENDING,
    };
    // `fullDocument` is no part of these: looking it up would be a read for every lease.
    let updated = doc! {
        "operationType": "update",
        format!("updateDescription.updatedFields.{STATUS}"): PENDING,
    };
    vec![
        doc! { "$changeStream": { "startAtOperationTime": Bson::Timestamp(next(after)) } },
        doc! { "$match": { "$or": [inserted, updated] } },
        doc! { "$project": { field(ID): 1, field(KEY): 1, field(PARTITION): 1 } },
    ]
}

fn next(moment: Timestamp) -> Timestamp {
    match moment.increment.checked_add(1) {
        Some(increment) => Timestamp { increment, ..moment },
        None => Timestamp { time: moment.time.saturating_add(1), increment: 0 },
    }
}

/// An event, as the pipeline leaves it.
fn read(event: &RawDocument) -> News {
    // An update has none.
    let Ok(document) = event.get_document("fullDocument") else { return News::Somewhere };
    let record = Record::read(document);
    match (record.partition, record.lane) {
        (Some(partition), LaneKey::Keyed(key)) => News::At(Hint::Key { partition, key }),
        (Some(partition), LaneKey::Single(_)) if !record.nameless => {
            News::At(Hint::Record { partition, id: record.id })
        }
        _ => News::Somewhere,
    }
}

#[cfg(test)]
mod tests {
    use bson::raw::RawDocumentBuf;

    use super::*;
    use crate::ids::RecordId;

    fn news(event: Document) -> News {
        read(&RawDocumentBuf::try_from(&event).unwrap())
    }

    #[test]
    fn an_insert_leads_to_its_key_in_the_partition_that_it_names() {
        for partition in [Bson::Int32(7), Bson::Int64(7), Bson::Double(7.0)] {
            let event = doc! { "fullDocument": { "_id": 1, "key": "k", "partition": partition } };

            assert_eq!(news(event), News::At(Hint::Key { partition: 7, key: "k".into() }));
        }
    }

    #[test]
    fn an_insert_without_a_key_leads_to_the_record() {
        for key in [doc! {}, doc! { "key": null }, doc! { "key": 5 }] {
            let mut document = doc! { "_id": "a", "partition": 7 };
            document.extend(key);

            let found = news(doc! { "fullDocument": document });

            let id = RecordId::String("a".into());
            assert_eq!(found, News::At(Hint::Record { partition: 7, id }));
        }
    }

    #[test]
    fn whatever_names_no_partition_is_somewhere() {
        for event in [
            doc! { "fullDocument": { "_id": 1, "key": "k" } },
            doc! { "fullDocument": { "_id": 1, "key": "k", "partition": 256 } },
            doc! { "fullDocument": { "_id": 1, "key": "k", "partition": "7" } },
            // An update.
            doc! { "_id": {} },
        ] {
            assert_eq!(news(event.clone()), News::Somewhere, "{event}");
        }
    }

    #[test]
    fn whoever_is_more_than_half_a_minute_behind_the_cluster_lags() {
        let at = |time| Some(Timestamp { time, increment: 1 });

        assert!(!lags(at(100), at(130)));
        assert!(lags(at(100), at(131)));
        assert!(!lags(at(131), at(100)));
        assert!(!lags(None, at(131)) && !lags(at(100), None));
    }

    #[test]
    fn the_moment_after_the_last_of_a_second_is_the_first_of_the_next() {
        let moment = |time, increment| Timestamp { time, increment };

        assert_eq!(next(moment(5, 1)), moment(5, 2));
        assert_eq!(next(moment(5, u32::MAX)), moment(6, 0));
    }
}
