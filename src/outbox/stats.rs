//! Counting an outbox, for people and for gauges.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::Hint;
use serde::Serialize;

use crate::ids::RecordId;
use crate::outbox::fields::{
    DEAD, DONE, DONE_AT, ID, KEY, PARTITION, PENDING, SCHEDULED, SEQ, STATUS, exactly,
};
use crate::outbox::inspect::{DEAD_INDEX, DONE_TTL_INDEX, Inspector};
use crate::outbox::position::NO_SEQ;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::repair::SCHEDULED_INDEX;
use crate::outbox::snapshot::LANE_INDEX;
use crate::partition::PARTITIONS;
use crate::store::{StoreError, limits, within};

/// Records that are sampled in one place.
const SAMPLE: i64 = 100;

/// Partitions of which the first records are sampled.
const STRETCH: i32 = 32;

/// Records by status (contract, section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// To be delivered.
    pub pending: u64,
    /// To become pending at their time.
    pub scheduled: u64,
    /// Delivered.
    pub done: u64,
    /// Given up, for the reason in each.
    pub dead: u64,
    /// Of any other status: never delivered.
    pub invalid: u64,
    /// Age of the oldest pending record in seconds, by its `seq` and the server's clock.
    pub oldest_pending_seconds: Option<u64>,
}

/// What waits and what died: the figures that cost no look at delivered records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// To be delivered.
    pub pending: u64,
    /// To become pending at their time.
    pub scheduled: u64,
    /// Given up.
    pub dead: u64,
    /// Age of the oldest pending record.
    pub oldest_pending: Option<Duration>,
}

/// Records of a sample whose `partition` is not the hash of their key: their producer gives up
/// order across instances.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mismatches {
    /// Records with a key and a partition that were looked at.
    pub sampled: u64,
    /// Those that disagree.
    pub mismatched: u64,
    /// One of them.
    pub example: Option<RecordId>,
}

impl Mismatches {
    fn add(&mut self, record: Record) {
        // What has no key is ordered with nothing; what has no partition will get the right one.
        let (LaneKey::Keyed(_), Some(partition)) = (&record.lane, record.partition) else { return };
        self.sampled += 1;
        if partition != record.hashed_partition() {
            self.mismatched += 1;
            self.example.get_or_insert(record.id);
        }
    }
}

impl Inspector {
    /// Counts every record, in one pass over the collection.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        let is_pending = doc! { "$eq": [format!("${STATUS}"), PENDING] };
        let pipeline = [doc! { "$group": {
            ID: format!("${STATUS}"),
            "count": { "$sum": 1 },
            "oldest": { "$min": { "$cond": [is_pending, seq(), Bson::Null] } },
            "now": { "$first": "$$NOW" },
        } }];
        let mut stats = Stats::default();
        for group in self.aggregate("count records", pipeline, None).await? {
            let count = number(group.get("count"));
            match group.get_str(ID) {
                Ok(PENDING) => {
                    stats.pending = count;
                    stats.oldest_pending_seconds = oldest(&group).map(|age| age.as_secs());
                }
                Ok(SCHEDULED) => stats.scheduled = count,
                Ok(DONE) => stats.done = count,
                Ok(DEAD) => stats.dead = count,
                _ => stats.invalid += count,
            }
        }
        Ok(stats)
    }

    /// Counts what waits and what died, by the indexes.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        let pipeline = [
            doc! { "$match": { STATUS: exactly(PENDING) } },
            doc! { "$group": {
                ID: Bson::Null,
                "count": { "$sum": 1 },
                "oldest": { "$min": seq() },
                "now": { "$first": "$$NOW" },
            } },
        ];
        let pending = self.aggregate("count pending records", pipeline, Some(LANE_INDEX)).await?;
        let pending = pending.into_iter().next().unwrap_or_default();
        Ok(Backlog {
            pending: number(pending.get("count")),
            scheduled: self.count(SCHEDULED, SCHEDULED_INDEX).await?,
            dead: self.count(DEAD, DEAD_INDEX).await?,
            oldest_pending: oldest(&pending),
        })
    }

    /// Counts records whose status is none, which are never delivered. Reads the whole collection.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn invalid(&self) -> Result<u64, StoreError> {
        let filter = doc! { "$or": [
            { STATUS: { "$nin": [PENDING, SCHEDULED, DONE, DEAD] } },
            { STATUS: { "$type": "array" } },
        ] };
        let records = self.collections.records();
        let counting = records.count_documents(filter);
        within("count invalid records", limits::SURVEY, counting.into_future()).await
    }

    /// Compares the partition of some records with the hash of their key: of pending ones here and
    /// there, and of those that were delivered last.
    ///
    /// Not by `$sample`: it took a minute where many records had just been deleted.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn mismatches(&self) -> Result<Mismatches, StoreError> {
        let mut mismatches = Mismatches::default();
        // Together these are all partitions, begun elsewhere each time.
        let first = rand::random_range(0..STRETCH) - STRETCH;
        for from in (first..i32::from(PARTITIONS)).step_by(STRETCH as usize) {
            let stretch = doc! { "$gte": from, "$lt": from + STRETCH };
            let filter = doc! { STATUS: exactly(PENDING), PARTITION: stretch };
            self.compare(filter, doc! { PARTITION: 1 }, LANE_INDEX, &mut mismatches).await?;
        }
        let done = doc! { STATUS: exactly(DONE) };
        self.compare(done, doc! { DONE_AT: -1 }, DONE_TTL_INDEX, &mut mismatches).await?;
        Ok(mismatches)
    }

    async fn compare(
        &self,
        filter: Document,
        order: Document,
        index: &str,
        mismatches: &mut Mismatches,
    ) -> Result<(), StoreError> {
        let records = self.collections.records();
        let find = records
            .find(filter)
            .sort(order)
            .projection(doc! { ID: 1, KEY: 1, PARTITION: 1 })
            .limit(SAMPLE)
            .hint(Hint::Name(index.to_owned()));
        let sampling = async {
            let mut cursor = find.await?;
            while cursor.advance().await? {
                mismatches.add(Record::read(cursor.current()));
            }
            Ok(())
        };
        within("sample records", limits::SURVEY, sampling).await
    }

    async fn count(&self, status: &str, index: &str) -> Result<u64, StoreError> {
        let records = self.collections.records();
        let counting = records
            .count_documents(doc! { STATUS: exactly(status) })
            .hint(Hint::Name(index.to_owned()));
        within("count records", limits::SURVEY, counting.into_future()).await
    }

    async fn aggregate(
        &self,
        action: &'static str,
        pipeline: impl IntoIterator<Item = Document>,
        index: Option<&str>,
    ) -> Result<Vec<Document>, StoreError> {
        let records = self.collections.records();
        let mut aggregation = records.aggregate(pipeline);
        if let Some(index) = index {
            aggregation = aggregation.hint(Hint::Name(index.to_owned()));
        }
        let running = async { aggregation.await?.try_collect().await };
        within(action, limits::SURVEY, running).await
    }
}

/// The `seq` of a record, where it has a real one; else null, which `$min` passes over.
fn seq() -> Document {
    let seq = format!("${SEQ}");
    let is_seq = doc! { "$and": [
        { "$eq": [{ "$type": &seq }, "timestamp"] },
        { "$gt": [&seq, NO_SEQ] },
    ] };
    doc! { "$cond": [is_seq, seq, Bson::Null] }
}

/// The age of a group's `oldest` at its `now`.
fn oldest(group: &Document) -> Option<Duration> {
    let oldest = group.get_timestamp("oldest").ok()?;
    let now = group.get_datetime("now").ok()?;
    let seconds = now.timestamp_millis() / 1_000 - i64::from(oldest.time);
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
}

fn number(value: Option<&Bson>) -> u64 {
    let number = match value {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        _ => 0,
    };
    u64::try_from(number).unwrap_or(0)
}
