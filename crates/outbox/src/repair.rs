//! Repairs records before their first delivery (invalid partition, missing `seq`), promotes
//! scheduled records, and marks records dead that cannot be leased.

use std::collections::{BTreeMap, HashSet};

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::{Hint, ReadConcern};
use postrider_store::codes::TOO_LARGE_CODES;
use postrider_store::connect::primary;
use postrider_store::write::{self, AckLevel, Written, update};
use postrider_store::{StoreError, limits, within};

use crate::collections::{Collections, names};
use crate::fields::{
    BLOCKS, DEAD, DEAD_AT, DEAD_REASON, ID, LEASE_ID, LEASE_OWNER, LEASE_UNTIL, PARTITION, PENDING,
    SCHEDULED, SEQ, STATUS, VISIBLE_AT, exactly,
};
use crate::ids::RecordId;
use crate::partition::PARTITIONS;
use crate::position::NO_SEQ;
use crate::reason::DeadReason;
use crate::record::{Placement, Record, Unfit};
use crate::settle::smallest_deaths;
use crate::undecoded::{RawId, RawWriter};

/// Serves [`Repairs::promote`]: `{visibleAt}` where scheduled.
pub const SCHEDULED_INDEX: &str = "scheduled_idx";

/// How many records of each kind were repaired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairCounts {
    /// Records that got a partition.
    pub partition: u64,
    /// Records that got a `seq`.
    pub seq: u64,
}

impl RepairCounts {
    /// Returns whether any record was repaired.
    pub fn any(&self) -> bool {
        self.partition > 0 || self.seq > 0
    }
}

/// Result of a repair.
#[derive(Debug, Default)]
pub struct Repaired<'a> {
    /// How many were repaired.
    pub counts: RepairCounts,
    /// Records that would outgrow 16 MiB.
    pub oversized: Vec<&'a Record>,
    /// Records that the server refuses to change, with its code.
    pub refused: Vec<(&'a Record, i32)>,
}

/// Result of one promotion of scheduled records.
#[derive(Clone, Debug, Default)]
pub struct Promoted {
    /// Records made pending.
    pub count: u64,
    /// Whether more records are due than fit in one batch.
    pub more: bool,
    /// When the next record is due, by the server's clock. It may have been promoted meanwhile.
    pub next: Option<DateTime>,
    /// Records that the server rejects, with its code.
    pub failed: Vec<(RawId, i32)>,
}

/// Repairs and promotes records. Every write is acknowledged by a majority before a lease relies on
/// it, and conditional on what was read, so that several instances can repair at once.
#[derive(Clone, Debug)]
pub struct Repairs {
    collections: Collections,
}

impl Repairs {
    /// Creates the repairs of `collections`.
    pub fn new(collections: Collections) -> Self {
        Self { collections }
    }

    /// Sets a valid partition (the hash of the key) and a `seq` (now) on each record without one.
    ///
    /// A rejected record does not fail the others.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; a later scan finds what was not repaired.
    pub async fn repair<'a>(&self, records: &[&'a Record]) -> Result<Repaired<'a>, StoreError> {
        let mut repaired = Repaired::default();
        let (no_seq, misplaced): (Vec<_>, Vec<_>) =
            records.iter().partition(|record| record.seq.is_none());
        repaired.counts.partition = self.place(&misplaced, &mut repaired).await?;
        // Separate statements, so that each repair is counted by its kind.
        let (misplaced, placed): (Vec<_>, Vec<_>) =
            no_seq.into_iter().partition(|record| record.placement == Placement::Invalid);
        let both = self.one_by_one("repair seq", &misplaced, give_seq, &mut repaired).await?;
        let seq = self.one_by_one("repair seq", &placed, give_seq, &mut repaired).await?;
        repaired.counts.partition += both;
        repaired.counts.seq = both + seq;
        Ok(repaired)
    }

    /// Writes the hashed partition to each record, with one statement per partition; returns how
    /// many were changed. A statement proceeds in the order of `_id`, so concurrent readers must
    /// probe for uncorrected records.
    async fn place<'a>(
        &self,
        records: &[&'a Record],
        repaired: &mut Repaired<'a>,
    ) -> Result<u64, StoreError> {
        let mut by_partition: BTreeMap<u8, Vec<&'a Record>> = BTreeMap::new();
        for record in records {
            by_partition.entry(record.partition).or_default().push(record);
        }
        let groups: Vec<(u8, Vec<&'a Record>)> = by_partition.into_iter().collect();
        let statement = |partition: u8, records: &[&Record]| {
            let ids: Vec<Bson> = records.iter().map(|record| Bson::from(&record.id)).collect();
            doc! {
                "q": { ID: { "$in": ids }, STATUS: PENDING, "$nor": [placed()] },
                "u": { "$set": { PARTITION: i32::from(partition) } },
                "multi": true,
            }
        };
        if groups.is_empty() {
            return Ok(0);
        }
        let action = "correct partitions";
        let statements = groups.iter().map(|(partition, records)| statement(*partition, records));
        let written = self.send(action, statements.collect()).await?;
        // A statement stops at the first rejected record; the rest are written one by one.
        let stopped = written.failed.iter().filter_map(|(index, _)| groups.get(*index));
        let stopped: Vec<&'a Record> = stopped.flat_map(|(_, records)| records.clone()).collect();
        let one = |record: &Record| statement(record.partition, &[record]);
        Ok(written.matched + self.one_by_one(action, &stopped, one, repaired).await?)
    }

    /// Sends a statement per record and collects the rejected ones; returns how many matched.
    async fn one_by_one<'a>(
        &self,
        action: &'static str,
        records: &[&'a Record],
        statement: impl Fn(&Record) -> Document,
        repaired: &mut Repaired<'a>,
    ) -> Result<u64, StoreError> {
        if records.is_empty() {
            return Ok(0);
        }
        let statements = records.iter().map(|record| statement(record)).collect();
        let written = self.send(action, statements).await?;
        for (index, code) in written.failed {
            let Some(record) = records.get(index) else { continue };
            if TOO_LARGE_CODES.contains(&code) {
                repaired.oversized.push(record)
            } else {
                repaired.refused.push((record, code))
            }
        }
        Ok(written.matched)
    }

    /// Makes due scheduled records pending, in the order of `visibleAt` and by the server's clock.
    /// Each gets a new `seq`. Records in `left_out` are skipped.
    ///
    /// A `visibleAt` that is absent or not a date is due now. A comparison as an expression sorts
    /// absent values and the types before dates below now.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; records that were not promoted stay due.
    pub async fn promote(
        &self,
        limit: usize,
        left_out: &HashSet<RawId>,
    ) -> Result<Promoted, StoreError> {
        if !self.is_any_scheduled().await? {
            return Ok(Promoted::default());
        }
        // This read comes first: a record that becomes due between the two reads is found by both,
        // not by neither.
        let next = self.next_due().await?;
        let visible_at = format!("${VISIBLE_AT}");
        let due = doc! { STATUS: exactly(SCHEDULED), "$expr": { "$lte": [&visible_at, "$$NOW"] } };
        let mut ids = self.scheduled(due, limit, left_out).await?;
        if ids.len() < limit {
            // Types that sort after a date, also by the index.
            let after_dates = doc! {
                STATUS: exactly(SCHEDULED),
                "$expr": { "$gt": [&visible_at, Bson::DateTime(DateTime::MAX)] },
            };
            ids.extend(self.scheduled(after_dates, limit - ids.len(), left_out).await?);
        }
        let more = ids.len() >= limit;
        let change = doc! {
            "$set": { STATUS: PENDING },
            "$currentDate": { SEQ: { "$type": "timestamp" } },
        };
        let written = if ids.is_empty() {
            Written::default()
        } else {
            let action = "promote scheduled records";
            self.send_by_ids(action, &ids, SCHEDULED, change.into()).await?
        };
        let failed = written.failed.into_iter();
        let failed = failed.filter_map(|(index, code)| Some((ids.get(index)?.clone(), code)));
        let failed = failed.collect();
        Ok(Promoted { count: written.matched, more, next, failed })
    }

    /// Marks a quarantined record dead that has used up its attempts, unless its lease changed
    /// meanwhile. `is_owner_dead`: the lease may not have expired, but its owner is dead. Returns
    /// whether the record was changed.
    pub async fn mark_expired_dead(
        &self,
        record: &Record,
        reason: &DeadReason,
        blocks: bool,
        is_owner_dead: bool,
    ) -> Result<bool, StoreError> {
        let mut set = doc! { STATUS: DEAD, DEAD_REASON: reason.to_string() };
        if blocks {
            set.insert(BLOCKS, true);
        }
        let mut filter = doc! {
            ID: Bson::from(&record.id),
            STATUS: PENDING,
            LEASE_UNTIL: record.lease_until,
        };
        match record.lease_owner.filter(|_| is_owner_dead) {
            Some(owner) => filter.insert(LEASE_OWNER, owner),
            None => filter.insert("$expr", doc! { "$lte": [format!("${LEASE_UNTIL}"), "$$NOW"] }),
        };
        let statement = doc! {
            "q": filter,
            "u": {
                "$set": set,
                "$currentDate": { DEAD_AT: true },
                "$unset": { LEASE_ID: "", LEASE_UNTIL: "", LEASE_OWNER: "" },
            },
            "multi": false,
        };
        let action = "make a suspect dead";
        let written = self.send(action, vec![statement]).await?;
        refused(action, &written)?;
        Ok(written.matched == 1)
    }

    /// Marks an unfit pending record dead, with as much of the reason as fits. Returns whether the
    /// record was changed.
    pub async fn mark_unfit_dead(
        &self,
        record: &Record,
        unfit: Unfit,
        reason: &DeadReason,
        blocks: bool,
    ) -> Result<bool, StoreError> {
        let action = "make an unfit record dead";
        let mut written = Written::default();
        for change in smallest_deaths(reason, blocks) {
            written = match unfit {
                Unfit::Nameless => {
                    let id = RawId::of(&record.raw);
                    self.send_by_ids(action, &[id], PENDING, change).await?
                }
                Unfit::Twice(field) => {
                    let q = doc! {
                        ID: Bson::from(&record.id),
                        STATUS: PENDING,
                        "$expr": has_twice(field),
                    };
                    let statement = doc! { "q": q, "u": change, "multi": false };
                    self.send(action, vec![statement]).await?
                }
            };
            if !written.failed.iter().any(|(_, code)| TOO_LARGE_CODES.contains(code)) {
                break;
            }
        }
        refused(action, &written)?;
        Ok(written.matched == 1)
    }

    /// Marks a record dead that has no room for lease fields, with as much of the reason as fits.
    /// Returns whether the record was changed.
    pub async fn mark_oversized_dead(
        &self,
        id: &RecordId,
        reason: &DeadReason,
        blocks: bool,
    ) -> Result<bool, StoreError> {
        for change in smallest_deaths(reason, blocks) {
            let waiting = doc! { "$in": [PENDING, SCHEDULED] };
            let q = doc! { ID: Bson::from(id), STATUS: waiting, LEASE_ID: Bson::Null };
            let statement = doc! { "q": q, "u": change, "multi": false };
            let written = self.send("make an oversized record dead", vec![statement]).await?;
            if written.failed.is_empty() {
                return Ok(written.matched == 1);
            }
        }
        Ok(false)
    }

    /// Returns whether any record is scheduled. This read usually replaces three.
    async fn is_any_scheduled(&self) -> Result<bool, StoreError> {
        let records = self.collections.records();
        let find = records
            .find_one(doc! { STATUS: exactly(SCHEDULED) })
            .projection(doc! { ID: 1 })
            .hint(Hint::Name(SCHEDULED_INDEX.into()))
            .read_concern(ReadConcern::majority())
            .selection_criteria(primary());
        let found = within("read scheduled records", limits::BATCH_TIMEOUT, find.into_future());
        Ok(self.collections.by_index(SCHEDULED_INDEX, found).await?.is_some())
    }

    async fn scheduled(
        &self,
        filter: Document,
        limit: usize,
        left_out: &HashSet<RawId>,
    ) -> Result<Vec<RawId>, StoreError> {
        let records = self.collections.records();
        let find = records
            .find(filter)
            .projection(doc! { ID: 1 })
            .sort(doc! { VISIBLE_AT: 1 })
            .hint(Hint::Name(SCHEDULED_INDEX.into()))
            .limit(i64::try_from(limit + left_out.len()).unwrap_or(i64::MAX))
            .read_concern(ReadConcern::majority())
            .selection_criteria(primary());
        let reading = async { find.await?.try_collect::<Vec<_>>().await };
        let found = within("read scheduled records", limits::BATCH_TIMEOUT, reading);
        let found = self.collections.by_index(SCHEDULED_INDEX, found).await?;
        let ids = found.iter().map(|record| RawId::of(record));
        Ok(ids.filter(|id| !left_out.contains(id)).take(limit).collect())
    }

    /// Returns when the next scheduled record becomes due.
    async fn next_due(&self) -> Result<Option<DateTime>, StoreError> {
        let later = doc! {
            STATUS: exactly(SCHEDULED),
            VISIBLE_AT: { "$type": "date" },
            "$expr": { "$gt": [format!("${VISIBLE_AT}"), "$$NOW"] },
        };
        let records = self.collections.records();
        let find = records
            .find_one(later)
            .projection(doc! { VISIBLE_AT: 1, ID: 0 })
            .sort(doc! { VISIBLE_AT: 1 })
            .hint(Hint::Name(SCHEDULED_INDEX.into()))
            .read_concern(ReadConcern::majority())
            .selection_criteria(primary());
        let next =
            within("read the next scheduled record", limits::BATCH_TIMEOUT, find.into_future());
        let next = self.collections.by_index(SCHEDULED_INDEX, next).await?;
        Ok(next.and_then(|record| record.get_datetime(VISIBLE_AT).ok()))
    }

    /// Changes the records with these ids and this status. Ids can be of any type.
    async fn send_by_ids(
        &self,
        action: &'static str,
        ids: &[RawId],
        status: &str,
        change: Bson,
    ) -> Result<Written, StoreError> {
        let rest = doc! { "u": change, "multi": false };
        let statement = |id: &RawId| {
            let q = RawWriter::default().element(id, ID).fields(&doc! { STATUS: status }).finish();
            RawWriter::default().document("q", &q).fields(&rest).finish()
        };
        let statements: Vec<RawDocumentBuf> = ids.iter().map(statement).collect();
        let options = write::options(AckLevel::Majority);
        let command = RawWriter::writes(&self.collections, "update", &statements, &options);
        write::send(self.collections.database(), action, command).await
    }

    async fn send(
        &self,
        action: &'static str,
        statements: Vec<Document>,
    ) -> Result<Written, StoreError> {
        let name = self.collections.name(names::RECORDS);
        update(self.collections.database(), &name, action, statements, AckLevel::Majority).await
    }
}

/// Builds the statement that sets `seq` to now, and a partition if it is missing.
fn give_seq(record: &Record) -> Document {
    let mut change = doc! { "$currentDate": { SEQ: { "$type": "timestamp" } } };
    if record.placement == Placement::Invalid {
        change.insert("$set", doc! { PARTITION: i32::from(record.partition) });
    }
    doc! {
        "q": {
            ID: Bson::from(&record.id),
            STATUS: PENDING,
            "$or": [
                { SEQ: { "$not": { "$type": "timestamp" } } },
                { SEQ: { "$type": "array" } },
                { SEQ: Bson::Timestamp(NO_SEQ) },
            ],
        },
        "u": change,
        "multi": false,
    }
}

/// Matches a record that has this field twice.
fn has_twice(field: &str) -> Document {
    let fields = doc! { "$objectToArray": "$$ROOT" };
    let of_this_name =
        doc! { "$filter": { "input": fields, "cond": { "$eq": ["$$this.k", field] } } };
    doc! { "$gt": [{ "$size": of_this_name }, 1] }
}

/// Returns an error if a foreign validator rejects the statement.
fn refused(action: &'static str, written: &Written) -> Result<(), StoreError> {
    match written.failed.first() {
        Some((_, code)) => Err(StoreError::Refused { action, code: *code }),
        None => Ok(()),
    }
}

/// Matches a valid partition: any integral number from 0 to 255.
fn placed() -> Document {
    let numbers: Vec<i32> = (0..i32::from(PARTITIONS)).collect();
    doc! { PARTITION: { "$in": numbers, "$not": { "$type": "array" } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repaired_any_is_true_with_a_partition_or_a_seq() {
        for (partition, seq, any) in [(0, 0, false), (1, 0, true), (0, 1, true), (2, 2, true)] {
            assert_eq!(RepairCounts { partition, seq }.any(), any, "{partition} {seq}");
        }
    }
}
