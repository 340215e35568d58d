//! A cursor of change events: opened at a known cluster time, read batch by batch.

use std::time::Duration;

use bson::raw::RawDocument;
use bson::{Bson, Document, Timestamp, doc};
use futures_util::StreamExt;
use mongodb::raw_batch_cursor::RawBatchCursor;
use postrider_outbox::collections::{Collections, names};
use postrider_store::connect::primary;
use postrider_store::{StoreError, cluster_time, limits, within};

/// How long a reply may take beyond the wait for an event. A frozen server never replies.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// How far the stream may be behind the cluster time, which advances every 10 s without writes. A former
/// primary that is cut off still replies, without events.
const MAX_LAG: Duration = Duration::from_secs(15);

const LAG_DETAIL: &str = "the majority commit point is far behind the cluster time";

/// How a cursor is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    /// How long the server waits for an event before it replies with an empty batch.
    pub(super) max_await: Duration,
    /// Events per batch.
    pub(super) batch_size: u32,
}

/// An open cursor of change events. When dropped, the driver kills the server's cursor.
///
/// Not the driver's own `ChangeStream`: that one resumes silently, which hides a loss, and does not
/// distinguish an idle server from a frozen one.
pub(super) struct EventCursor {
    cursor: RawBatchCursor,
    opened_at: Timestamp,
    max_await: Duration,
}

impl EventCursor {
    /// Opens a cursor from now on: it shows every change that a later snapshot does not show, as far
    /// as these stages pass it on.
    pub(super) async fn open(
        collections: &Collections,
        stages: Vec<Document>,
        reading: Reading,
    ) -> Result<Self, StoreError> {
        let Reading { max_await, batch_size } = reading;
        let after = snapshot_time(collections).await?;
        // At the next time: otherwise it fails for ever if the last event is too large.
        let start = Bson::Timestamp(cluster_time::next(after));
        let mut pipeline = vec![doc! { "$changeStream": { "startAtOperationTime": start } }];
        pipeline.extend(stages);
        let command = doc! {
            "aggregate": collections.name(names::RECORDS),
            "pipeline": pipeline,
            "cursor": { "batchSize": batch_size },
            "readConcern": { "level": "majority" },
        };
        let opening = collections
            .database()
            .run_cursor_command(command)
            .selection_criteria(primary())
            .max_time(max_await)
            .batch_size(batch_size)
            .batch();
        let cursor = within("open the change stream", limits::BATCH_TIMEOUT, opening).await?;
        Ok(Self { cursor, opened_at: after, max_await })
    }

    /// Returns the cluster time after which the cursor shows every change.
    pub(super) fn opened_at(&self) -> Timestamp {
        self.opened_at
    }

    /// Waits for events and reads each one; returns none if the server had none for a while. `read`
    /// gets `None` for what is not a document.
    pub(super) async fn next<T>(
        &mut self,
        read: impl Fn(Option<&RawDocument>) -> T,
    ) -> Result<Vec<T>, StoreError> {
        let next = async { self.cursor.next().await.transpose() };
        let limit = self.max_await + REPLY_TIMEOUT;
        let batch = within("read the change stream", limit, next).await?;
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
        let document =
            |event: Result<_, _>| event.ok().and_then(bson::raw::RawBsonRef::as_document);
        Ok(events.into_iter().map(|event| read(document(event))).collect())
    }
}

/// Creates the error of a stream that cannot be read any further.
pub(super) fn broken(detail: String) -> StoreError {
    StoreError::Answer { action: "read the change stream", detail }
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

/// Returns whether the stream is far behind the cluster time, if both are known.
fn lags(seen: Option<Timestamp>, cluster: Option<Timestamp>) -> bool {
    let seconds = |time: Timestamp| Duration::from_secs(time.time.into());
    let (Some(seen), Some(cluster)) = (seen, cluster) else { return false };
    seconds(cluster).saturating_sub(seconds(seen)) > MAX_LAG
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_lags_when_more_than_15_s_behind_the_cluster() {
        let at = |time| Some(Timestamp { time, increment: 1 });

        assert!(!lags(at(100), at(115)));
        assert!(lags(at(100), at(116)));
        assert!(!lags(at(116), at(100)));
        assert!(!lags(None, at(116)) && !lags(at(100), None));
    }
}
