//! Counts records, for operators and for gauges.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::Hint;
use postrider_store::{StoreError, limits, within};
use serde::{Deserialize, Serialize};

use crate::brief::{LongText, brief, is_brief, with_beginnings};
use crate::collections::{Find, ID_INDEX};
use crate::fields::{
    DEAD, DEAD_REASON, DONE, DONE_AT, ID, KEY, PARTITION, PENDING, SCHEDULED, STATUS, STATUSES,
    TYPE, exactly,
};
use crate::filter::{between, invalid, seq};
use crate::ids::RecordId;
use crate::inspect::{DEAD_INDEX, DONE_TTL_INDEX, Inspector, decoded};
use crate::json_view;
use crate::partition::PARTITIONS;
use crate::record::{LaneKey, Placement, Record};
use crate::repair::SCHEDULED_INDEX;
use crate::snapshot::LANE_INDEX;
use crate::undecoded::{RawId, RawWriter};

/// Records to sample in one range.
const SAMPLE_SIZE: usize = 100;

/// Partitions to sample the first records of.
const SAMPLED_PARTITIONS: i32 = 32;

/// Counts are exact up to this many records; above, their accuracy is reported. Counting by an
/// index takes about 0.2 s per 100,000 records.
pub const MAX_EXACT_COUNT: u64 = 100_000;

/// Maximum count of a gauge. Gauges are counted in the background, at most 1 % of the time.
const MAX_GAUGE_COUNT: u64 = 10_000_000;

/// Time limit of the search for invalid records.
const INVALID_SEARCH_TIMEOUT: Duration = Duration::from_millis(300);

/// Records by status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
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
    /// Which of these figures are not exact, and what they are instead; absent where all are exact, as
    /// they are up to 100,000 records.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[cfg_attr(feature = "openapi", schema(required = false))]
    pub accuracy: BTreeMap<String, Accuracy>,
}

/// What a figure is that is not exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum Accuracy {
    /// The true figure is this one or larger.
    AtLeast,
    /// The true figure is this one or smaller.
    AtMost,
    /// The true figure is near.
    Estimate,
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

/// What pending and dead records are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum GroupBy {
    /// `type`.
    Type,
    /// The fixed word with which `deadReason` begins.
    Reason,
    /// `key`.
    Key,
}

/// The largest groups of pending and of dead records.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Groups {
    /// The largest of each status first.
    pub groups: Vec<Group>,
    /// Statuses of which the first 100,000 records were counted, as there are more.
    pub partial: Vec<String>,
}

/// Records of one status that have something in common.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Group {
    /// pending or dead.
    pub status: String,
    /// What they have in common; null where they have none.
    #[serde(serialize_with = "json_view::serialize")]
    #[cfg_attr(feature = "openapi", schema(value_type = serde_json::Value))]
    pub value: Bson,
    /// How many.
    pub count: u64,
}

/// Records of a sample whose `partition` is not the hash of their key: their producer gives up
/// order across instances.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mismatches {
    /// Sampled records that have a key and a partition.
    pub sampled: u64,
    /// Records whose partition differs from the hash of their key.
    pub mismatched: u64,
    /// An example.
    pub example: Option<RecordId>,
}

impl Mismatches {
    fn add(&mut self, record: Record) {
        // A record without a key has no order; one without a valid partition is placed by its hash.
        let (LaneKey::Keyed(_), Placement::Stamped) = (&record.lane, record.placement) else {
            return;
        };
        self.sampled += 1;
        if record.partition != record.hashed_partition() {
            self.mismatched += 1;
            self.example.get_or_insert(record.id);
        }
    }
}

impl Inspector {
    /// Counts records by status: each record if there are few, else pending, scheduled and dead
    /// ones by index up to [`MAX_EXACT_COUNT`], and done ones as the rest.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        let total = self.total().await?;
        if total <= MAX_EXACT_COUNT
            && let Some(stats) = self.each().await?
        {
            return Ok(stats);
        }
        let (pending, scheduled, dead, (invalid, is_all)) = tokio::try_join!(
            self.pending(MAX_EXACT_COUNT + 1),
            self.count_of(SCHEDULED, SCHEDULED_INDEX, MAX_EXACT_COUNT + 1),
            self.count_of(DEAD, DEAD_INDEX, MAX_EXACT_COUNT + 1),
            self.probe(),
        )?;
        let (pending, oldest) = pending;
        let counts = [(PENDING, pending), (SCHEDULED, scheduled), (DEAD, dead)];
        let over = counts.into_iter().filter(|(_, count)| *count > MAX_EXACT_COUNT);
        let over: Vec<&str> = over.map(|(name, _)| name).collect();
        let [pending, scheduled, dead] = counts.map(|(_, count)| count.min(MAX_EXACT_COUNT));
        let mut stats = Stats {
            pending,
            scheduled,
            done: total.saturating_sub(pending + scheduled + dead + invalid),
            dead,
            invalid,
            oldest_pending_seconds: oldest.map(|age| age.as_secs()),
            accuracy: BTreeMap::new(),
        };
        let mut accuracy = BTreeMap::from([(DONE, Accuracy::Estimate)]);
        accuracy.extend(over.iter().map(|name| (*name, Accuracy::AtLeast)));
        if !is_all {
            accuracy.insert("invalid", Accuracy::AtLeast);
        }
        if over.contains(&PENDING) {
            accuracy.insert("oldestPendingSeconds", Accuracy::AtLeast);
        }
        if !over.is_empty() {
            accuracy.insert(DONE, Accuracy::AtMost);
            // With few done records, the others are the difference.
            let done = self.count_of(DONE, DONE_TTL_INDEX, MAX_EXACT_COUNT + 1).await?;
            if done <= MAX_EXACT_COUNT {
                accuracy.remove(DONE);
                let uncounted = stats.done.saturating_sub(done);
                stats.done = done;
                if over == [PENDING] {
                    stats.pending += uncounted;
                    accuracy.insert(PENDING, Accuracy::Estimate);
                }
            }
        }
        let accuracy = accuracy.into_iter().map(|(name, accuracy)| (name.to_owned(), accuracy));
        stats.accuracy = accuracy.collect();
        Ok(stats)
    }

    /// Counts every record in one pass; `None` if there are more than [`MAX_EXACT_COUNT`].
    async fn each(&self) -> Result<Option<Stats>, StoreError> {
        let status = format!("${STATUS}");
        let is_pending = doc! { "$eq": [&status, PENDING] };
        // Invalid ones are one group, since each may have a status of its own.
        let is_valid = doc! { "$in": [&status, STATUSES.as_slice()] };
        let pipeline = [
            doc! { "$limit": i64::try_from(MAX_EXACT_COUNT + 1).unwrap_or(i64::MAX) },
            count_with_age(
                doc! { "$cond": [is_valid, &status, Bson::Null] },
                doc! { "$cond": [is_pending, seq(), Bson::Null] },
            ),
        ];
        let mut stats = Stats::default();
        let mut total = 0;
        for group in self.aggregate("count records", pipeline, ID_INDEX).await? {
            let group = decoded(&group);
            let count = number(group.get("count"));
            total += count;
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
        Ok((total <= MAX_EXACT_COUNT).then_some(stats))
    }

    /// Counts pending, scheduled and dead records by index, up to ten million each.
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        let (pending, oldest_pending) = self.pending(MAX_GAUGE_COUNT).await?;
        Ok(Backlog {
            pending,
            scheduled: self.count_of(SCHEDULED, SCHEDULED_INDEX, MAX_GAUGE_COUNT).await?,
            dead: self.count_of(DEAD, DEAD_INDEX, MAX_GAUGE_COUNT).await?,
            oldest_pending,
        })
    }

    /// Returns the number of pending records up to a limit, and the age of the oldest.
    async fn pending(&self, limit: u64) -> Result<(u64, Option<Duration>), StoreError> {
        let pipeline = [
            doc! { "$match": { STATUS: exactly(PENDING) } },
            doc! { "$limit": i64::try_from(limit).unwrap_or(i64::MAX) },
            count_with_age(Bson::Null, seq()),
        ];
        let found = self.aggregate("count pending records", pipeline, LANE_INDEX).await?;
        let found = found.first().map(|group| decoded(group)).unwrap_or_default();
        Ok((number(found.get("count")), oldest(&found)))
    }

    /// Counts records with an unknown status in one step of the ids after `after`. Returns where
    /// the next step begins; `None` at the end.
    ///
    /// No index covers them: it would add to the cost of every write.
    pub async fn invalid(&self, after: Option<&RawId>) -> Result<(u64, Option<RawId>), StoreError> {
        let end = self.step(after).await?;
        let mut within = between(after, end.as_ref());
        within.push(RawWriter::default().fields(&invalid()).finish());
        let stages = [
            RawWriter::default()
                .document("$match", &RawWriter::default().documents("$and", &within).finish())
                .finish(),
            RawWriter::default().fields(&doc! { "$count": "count" }).finish(),
        ];
        let pipeline = |command: RawWriter| {
            let rest = doc! { "cursor": {}, "hint": ID_INDEX };
            command.documents("pipeline", &stages).fields(&rest)
        };
        let found = self.read("count invalid records", "aggregate", pipeline).await?;
        let found = found.first().map(|group| decoded(group)).unwrap_or_default();
        Ok((number(found.get("count")), end))
    }

    /// Counts invalid records within the time limit; returns whether the count is complete.
    async fn probe(&self) -> Result<(u64, bool), StoreError> {
        let began = Instant::now();
        let (mut count, mut after) = (0, None);
        loop {
            let (found, end) = self.invalid(after.as_ref()).await?;
            count += found;
            if end.is_none() || began.elapsed() >= INVALID_SEARCH_TIMEOUT {
                return Ok((count, end.is_none()));
            }
            after = end;
        }
    }

    /// Returns the largest groups of pending and of dead records.
    pub async fn groups(&self, by: GroupBy, top: u32) -> Result<Groups, StoreError> {
        let value = match by {
            GroupBy::Type => Bson::String(format!("${TYPE}")),
            GroupBy::Key => Bson::String(format!("${KEY}")),
            GroupBy::Reason => word_of(&format!("${DEAD_REASON}")).into(),
        };
        let statuses = [(PENDING, LANE_INDEX), (DEAD, DEAD_INDEX)];
        let mut groups = Groups::default();
        for (status, index) in statuses {
            if by == GroupBy::Reason && status == PENDING {
                continue;
            }
            let most = i64::try_from(MAX_EXACT_COUNT).unwrap_or(i64::MAX);
            let pipeline = [
                doc! { "$match": { STATUS: exactly(status) } },
                doc! { "$limit": most },
                doc! { "$group": { ID: value.clone(), "count": { "$sum": 1 } } },
                doc! { "$sort": { "count": -1, ID: 1 } },
                doc! { "$limit": i64::from(top) },
            ];
            for group in self.groups_of(&pipeline, index).await? {
                let group = decoded(&group);
                let value = group.get(ID).cloned().unwrap_or_default();
                let count = number(group.get("count"));
                groups.groups.push(Group { status: status.to_owned(), value, count });
            }
            if self.count_of(status, index, MAX_EXACT_COUNT + 1).await? > MAX_EXACT_COUNT {
                groups.partial.push(status.to_owned());
            }
        }
        Ok(groups)
    }

    /// Runs the pipeline of groups, and cuts long values.
    async fn groups_of(
        &self,
        pipeline: &[Document],
        index: &str,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let cut = |long: LongText| doc! { "$project": { ID: brief(ID, long), "count": 1 } };
        let with = |long: LongText| pipeline.iter().cloned().chain([cut(long)]);
        let action = "group records";
        with_beginnings(|long| self.aggregate(action, with(long), index)).await
    }

    /// Compares the partition of sampled pending and recently delivered records with the hash of
    /// their key.
    ///
    /// `$sample` took a minute after a large deletion.
    pub async fn mismatches(&self) -> Result<Mismatches, StoreError> {
        let mut mismatches = Mismatches::default();
        // Each call samples another part of the partitions.
        let first = rand::random_range(0..SAMPLED_PARTITIONS) - SAMPLED_PARTITIONS;
        for from in (first..i32::from(PARTITIONS)).step_by(SAMPLED_PARTITIONS as usize) {
            let stretch = doc! { "$gte": from, "$lt": from + SAMPLED_PARTITIONS };
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
        index: &'static str,
        mismatches: &mut Mismatches,
    ) -> Result<(), StoreError> {
        // A longer key is not sampled.
        let key = doc! { "$cond": [is_brief(KEY), format!("${KEY}"), "$$REMOVE"] };
        let fields = doc! { ID: 1, KEY: key, PARTITION: 1 };
        let (limit, timeout) = (SAMPLE_SIZE, limits::REPORT_TIMEOUT);
        let find = Find::whole("sample records", index, filter);
        let sample = Find { fields, order, limit, timeout, ..find };
        for record in self.collections.find(sample).await? {
            mismatches.add(Record::read(&record));
        }
        Ok(())
    }

    async fn count_of(&self, status: &str, index: &str, limit: u64) -> Result<u64, StoreError> {
        self.collections.count(index, doc! { STATUS: exactly(status) }, Some(limit)).await
    }

    async fn aggregate(
        &self,
        action: &'static str,
        pipeline: impl IntoIterator<Item = Document>,
        index: &str,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let records = self.collections.records();
        let aggregation = records
            .aggregate(pipeline)
            .allow_disk_use(true)
            .hint(Hint::Name(index.to_owned()))
            .with_type::<RawDocumentBuf>();
        let running = async { aggregation.await?.try_collect().await };
        let found = within(action, limits::REPORT_TIMEOUT, running);
        self.collections.by_index(index, found).await
    }
}

/// Extracts the text before the first colon.
fn word_of(field: &str) -> Document {
    let cut = doc! { "$cond": [
        { "$gte": ["$$at", 0] }, { "$substrBytes": [field, 0, "$$at"] }, field,
    ] };
    let word = doc! { "$let": { "vars": { "at": { "$indexOfBytes": [field, ":"] } }, "in": cut } };
    doc! { "$cond": [{ "$eq": [{ "$type": field }, "string"] }, word, Bson::Null] }
}

/// Counts groups, with the smallest `seq` of each and the server's time.
fn count_with_age(group: impl Into<Bson>, seq: Document) -> Document {
    doc! { "$group": {
        ID: group.into(),
        "count": { "$sum": 1 },
        "oldest": { "$min": seq },
        "now": { "$first": "$$NOW" },
    } }
}

/// Returns the age of a group: its `now` minus its `oldest`.
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
