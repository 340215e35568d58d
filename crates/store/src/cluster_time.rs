//! Cluster times from which a change stream begins.

use bson::{Timestamp, doc};
use mongodb::Database;

use crate::StoreError;
use crate::connect::ask;

/// The time of a snapshot read.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotTime {
    /// Up to this time every later snapshot is complete. (The `operationTime` of a reply may be ahead of it.)
    pub at: Timestamp,
    /// The cluster time that the server knows.
    pub cluster: Option<Timestamp>,
}

/// Reads the time of a snapshot of this collection.
///
/// # Errors
///
/// MongoDB's, and [`StoreError::Answer`] where the collection does not exist.
pub async fn of_snapshot(
    database: &Database,
    collection: &str,
    action: &'static str,
) -> Result<SnapshotTime, StoreError> {
    let command = doc! {
        "find": collection,
        "projection": { "_id": 1 },
        "limit": 1,
        "singleBatch": true,
        "readConcern": { "level": "snapshot" },
    };
    let answer = ask(database, action, command).await?;
    let cursor = answer.get_document("cursor");
    let at = cursor.and_then(|cursor| cursor.get_timestamp("atClusterTime")).map_err(|_| {
        StoreError::Answer { action, detail: format!("there is no collection {collection} now") }
    })?;
    let cluster = answer.get_document("$clusterTime");
    let cluster = cluster.and_then(|time| time.get_timestamp("clusterTime")).ok();
    Ok(SnapshotTime { at, cluster })
}

/// The time after this one: a stream that starts at its last event fails if that is too large.
pub fn next(time: Timestamp) -> Timestamp {
    match time.increment.checked_add(1) {
        Some(increment) => Timestamp { increment, ..time },
        None => Timestamp { time: time.time.saturating_add(1), increment: 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_time_after_the_last_of_a_second_is_the_next_second() {
        let moment = |time, increment| Timestamp { time, increment };

        assert_eq!(next(moment(5, 1)), moment(5, 2));
        assert_eq!(next(moment(5, u32::MAX)), moment(6, 0));
    }
}
