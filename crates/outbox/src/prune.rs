//! Removes old records: done ones before their retention ends, and dead ones.

use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use mongodb::options::Hint;
use postrider_store::write::{self, AckLevel};
use postrider_store::{ServerClock, StoreError, limits, within};

use crate::collections::Collections;
use crate::fields::{BLOCKS, DEAD, DEAD_AT, DONE, DONE_AT, ID, STATUS, exactly};
use crate::inspect::{DEAD_INDEX, DONE_TTL_INDEX};
use crate::undecoded::{RawId, RawWriter};

/// Records that one command removes.
const BATCH_SIZE: usize = 2_000;

/// Statuses of records that can be pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneStatus {
    /// Done.
    Done,
    /// Dead.
    Dead,
}

/// Result of a prune.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Records removed.
    pub removed: u64,
    /// Old dead records that block their key. They stay, to be requeued or discarded by id.
    pub blocking: u64,
}

/// Records that are old enough to be pruned.
struct Old {
    index: &'static str,
    date: &'static str,
    removable: Document,
    /// Dead records that block their key; `None` for done ones.
    blocking: Option<Document>,
}

impl Old {
    /// Selects them by the server's clock.
    async fn select(
        collections: &Collections,
        over: PruneStatus,
        age: Duration,
    ) -> Result<Self, StoreError> {
        let now = ServerClock::asked(collections.database()).await?;
        let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
        let before = DateTime::from_millis(now.timestamp_millis().saturating_sub(age));
        let (status, date, index) = match over {
            PruneStatus::Done => (DONE, DONE_AT, DONE_TTL_INDEX),
            PruneStatus::Dead => (DEAD, DEAD_AT, DEAD_INDEX),
        };
        let with = |blocks: Bson| {
            doc! { STATUS: exactly(status), date: { "$lt": before }, BLOCKS: blocks }
        };
        let blocking = (over == PruneStatus::Dead).then(|| with(true.into()));
        Ok(Self { index, date, removable: with(doc! { "$ne": true }.into()), blocking })
    }

    async fn count_blocking(&self, collections: &Collections) -> Result<u64, StoreError> {
        match &self.blocking {
            Some(blocking) => collections.count(self.index, blocking.clone(), None).await,
            None => Ok(0),
        }
    }
}

/// Counts the records that [`prune`] would remove now. Changes nothing.
///
/// # Errors
///
/// [`StoreError`].
pub async fn count(
    collections: &Collections,
    over: PruneStatus,
    age: Duration,
) -> Result<Pruned, StoreError> {
    let old = Old::select(collections, over, age).await?;
    let removed = collections.count(old.index, old.removable.clone(), None).await?;
    Ok(Pruned { removed, blocking: old.count_blocking(collections).await? })
}

/// Removes records that have been done or dead for longer than `age`, by the server's clock, oldest
/// first.
///
/// # Errors
///
/// [`StoreError`]; what was removed stays removed, and a retry is safe.
pub async fn prune(
    collections: &Collections,
    over: PruneStatus,
    age: Duration,
) -> Result<Pruned, StoreError> {
    let old = Old::select(collections, over, age).await?;
    let Old { index, date, removable, .. } = &old;
    let records = collections.records();
    // One cursor for all batches: a new cursor would scan all index entries that were removed.
    let find = records
        .find(removable.clone())
        .projection(doc! { ID: 1 })
        .sort(doc! { *date: 1 })
        .batch_size(u32::try_from(BATCH_SIZE).unwrap_or(u32::MAX))
        .hint(Hint::Name((*index).to_owned()));
    let found = within("select records", limits::REPORT_TIMEOUT, find);
    let mut cursor = collections.by_index(index, found).await?;
    let mut pruned = Pruned::default();
    let mut more = true;
    while more {
        let mut ids = Vec::new();
        while more && ids.len() < BATCH_SIZE {
            more = within("select records", limits::REPORT_TIMEOUT, cursor.advance()).await?;
            if more {
                ids.push(RawId::of(cursor.current()));
            }
        }
        let among = RawWriter::default().list("$in", &ids).finish();
        let q = RawWriter::default().document(ID, &among).fields(removable).finish();
        // By ids: the index of the date is full of removed entries.
        let by_id = doc! { "limit": 0, "hint": { ID: 1 } };
        let statement = RawWriter::default().document("q", &q).fields(&by_id).finish();
        let options = write::options(AckLevel::Majority);
        let command = RawWriter::writes(collections, "delete", &[statement], &options);
        let deleted = write::send(collections.database(), "prune records", command).await?;
        pruned.removed += deleted.matched;
    }
    pruned.blocking = old.count_blocking(collections).await?;
    Ok(pruned)
}
