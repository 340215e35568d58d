//! Repairs records before their first delivery (invalid partition, missing `seq`), promotes
//! scheduled records, and marks records dead that cannot be leased.

use std::collections::{BTreeMap, HashSet};

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, doc};
use postrider_store::StoreError;
use postrider_store::codes::TOO_LARGE_CODES;
use postrider_store::write::{self, AckLevel, Written, update};

use crate::collections::{Collections, Find, names};
use crate::fields::{
    ID, LEASE_ID, LEASE_OWNER, LEASE_UNTIL, PARTITION, PENDING, SCHEDULED, SEQ, STATUS, VISIBLE_AT,
    exactly,
};
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

/// Why a record is marked dead that was not leased for a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unleasable {
    /// It can be neither leased nor corrected.
    Unfit(Unfit),
    /// It is quarantined and has used up its attempts.
    Exhausted {
        /// Whether its last lease may not have expired, but the owner of that lease is dead.
        is_owner_dead: bool,
    },
    /// It has no room for the fields of a lease, a partition or a `seq`.
    Oversized,
}

impl Unleasable {
    fn action(self) -> &'static str {
        match self {
            Self::Unfit(_) => "dead-letter an invalid record",
            Self::Exhausted { .. } => "dead-letter a poison record",
            Self::Oversized => "dead-letter an oversized record",
        }
    }

    /// Matches the record while this holds.
    fn filter(self, record: &Record) -> RawDocumentBuf {
        let id = record.id.condition();
        let filter = match self {
            Self::Unfit(Unfit::Nameless) => return with_status(&RawId::of(&record.raw), PENDING),
            Self::Unfit(Unfit::Twice(field)) => {
                doc! { ID: id, STATUS: PENDING, "$expr": has_twice(field) }
            }
            Self::Exhausted { is_owner_dead } => {
                let lease = doc! { ID: id, STATUS: PENDING, LEASE_UNTIL: record.lease_until };
                let ended = match record.lease_owner.filter(|_| is_owner_dead) {
                    Some(owner) => doc! { LEASE_OWNER: owner },
                    None => doc! { "$expr": { "$lte": [format!("${LEASE_UNTIL}"), "$$NOW"] } },
                };
                lease.into_iter().chain(ended).collect()
            }
            Self::Oversized => {
                let waiting = doc! { "$in": [PENDING, SCHEDULED] };
                let rest = match record.seq {
                    Some(seq) => doc! { SEQ: Bson::Timestamp(seq) },
                    None => without_seq(),
                };
                let mut filter = doc! { ID: id, STATUS: waiting, LEASE_ID: Bson::Null };
                filter.extend(rest);
                filter
            }
        };
        RawWriter::default().fields(&filter).finish()
    }
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
            let change = change.into();
            let one = |id| statement(&with_status(id, SCHEDULED), &change);
            self.send_encoded(action, &ids.iter().map(one).collect::<Vec<_>>()).await?
        };
        let failed = written.failed.into_iter();
        let failed = failed.filter_map(|(index, code)| Some((ids.get(index)?.clone(), code)));
        let failed = failed.collect();
        Ok(Promoted { count: written.matched, more, next, failed })
    }

    /// Marks a record dead that cannot be leased, unless it changed meanwhile. Stores as much of the
    /// reason as fits. Returns whether the record was changed.
    ///
    /// # Errors
    ///
    /// [`StoreError::Refused`] if a foreign validator rejects it. An oversized record is not changed
    /// then.
    pub async fn mark_dead(
        &self,
        record: &Record,
        cause: Unleasable,
        reason: &DeadReason,
        blocks: bool,
    ) -> Result<bool, StoreError> {
        let (action, filter) = (cause.action(), cause.filter(record));
        let is_oversized = cause == Unleasable::Oversized;
        let mut refusal = 0;
        for change in smallest_deaths(reason, blocks) {
            let written = self.send_encoded(action, &[statement(&filter, &change)]).await?;
            let Some((_, code)) = written.failed.first() else { return Ok(written.matched == 1) };
            refusal = *code;
            if !is_oversized && !TOO_LARGE_CODES.contains(code) {
                break;
            }
        }
        if is_oversized { Ok(false) } else { Err(StoreError::Refused { action, code: refusal }) }
    }

    /// Returns whether any record is scheduled. This read usually replaces three.
    async fn is_any_scheduled(&self) -> Result<bool, StoreError> {
        let scheduled = doc! { STATUS: exactly(SCHEDULED) };
        let find = Find::ids("read scheduled records", SCHEDULED_INDEX, scheduled);
        Ok(!self.collections.find(Find { limit: 1, ..find }).await?.is_empty())
    }

    async fn scheduled(
        &self,
        filter: Document,
        limit: usize,
        left_out: &HashSet<RawId>,
    ) -> Result<Vec<RawId>, StoreError> {
        let find = Find::ids("read scheduled records", SCHEDULED_INDEX, filter);
        let (order, room) = (doc! { VISIBLE_AT: 1 }, limit + left_out.len());
        let found = self.collections.find(Find { order, limit: room, ..find }).await?;
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
        let next = Find {
            fields: doc! { VISIBLE_AT: 1, ID: 0 },
            order: doc! { VISIBLE_AT: 1 },
            limit: 1,
            ..Find::whole("read the next scheduled record", SCHEDULED_INDEX, later)
        };
        let next = self.collections.find(next).await?;
        Ok(next.first().and_then(|record| record.get_datetime(VISIBLE_AT).ok()))
    }

    /// Sends statements that name ids of any type.
    async fn send_encoded(
        &self,
        action: &'static str,
        statements: &[RawDocumentBuf],
    ) -> Result<Written, StoreError> {
        let options = write::options(AckLevel::Majority);
        let command = RawWriter::writes(&self.collections, "update", statements, &options);
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
    let mut filter = doc! { ID: record.id.condition(), STATUS: PENDING };
    filter.extend(without_seq());
    doc! { "q": filter, "u": change, "multi": false }
}

/// Matches a record without a usable `seq`. (A comparison with null would match fewer.)
fn without_seq() -> Document {
    doc! { "$or": [
        { SEQ: { "$not": { "$type": "timestamp" } } },
        { SEQ: { "$type": "array" } },
        { SEQ: Bson::Timestamp(NO_SEQ) },
    ] }
}

/// Matches a record that has this field twice.
fn has_twice(field: &str) -> Document {
    let fields = doc! { "$objectToArray": "$$ROOT" };
    let of_this_name =
        doc! { "$filter": { "input": fields, "cond": { "$eq": ["$$this.k", field] } } };
    doc! { "$gt": [{ "$size": of_this_name }, 1] }
}

/// Matches the record with this id, of any type, while it has this status.
fn with_status(id: &RawId, status: &str) -> RawDocumentBuf {
    RawWriter::default().equal(ID, id).fields(&doc! { STATUS: status }).finish()
}

/// Builds the statement that changes one record.
fn statement(filter: &RawDocumentBuf, change: &Bson) -> RawDocumentBuf {
    let rest = doc! { "u": change, "multi": false };
    RawWriter::default().document("q", filter).fields(&rest).finish()
}

/// Matches a valid partition: any integral number from 0 to 255.
fn placed() -> Document {
    let numbers: Vec<i32> = (0..i32::from(PARTITIONS)).collect();
    doc! { PARTITION: { "$in": numbers, "$not": { "$type": "array" } } }
}

#[cfg(test)]
mod tests {
    use bson::{Timestamp, rawdoc};

    use super::*;
    use crate::ids::InstanceId;

    #[test]
    fn repaired_any_is_true_with_a_partition_or_a_seq() {
        for (partition, seq, any) in [(0, 0, false), (1, 0, true), (0, 1, true), (2, 2, true)] {
            assert_eq!(RepairCounts { partition, seq }.any(), any, "{partition} {seq}");
        }
    }
    /// The guards of each death. A weaker one could mark a record dead that another instance delivers.
    #[test]
    fn record_is_marked_dead_only_while_the_cause_holds() {
        let owner = InstanceId::fresh();
        let until = DateTime::from_millis(7);
        let seq = Timestamp { time: 1, increment: 2 };
        let read = |document: &Document| Record::read(&RawDocumentBuf::try_from(document).unwrap());
        let record = read(&doc! {
            "_id": 1, "key": "k", "status": "pending", "leaseId": bson::Uuid::new(),
            "leaseUntil": until, "leaseOwner": owner, "seq": seq,
        });
        let expired = doc! { "$lte": ["$leaseUntil", "$$NOW"] };
        let names = doc! { "$objectToArray": "$$ROOT" };
        let keys = doc! { "$filter": { "input": names, "cond": { "$eq": ["$$this.k", "key"] } } };
        let pending = |rest: Document| {
            let guard = doc! { "_id": { "$eq": 1_i64 }, "status": "pending" };
            guard.into_iter().chain(rest).collect::<Document>()
        };

        for (cause, guard) in [
            (
                Unleasable::Unfit(Unfit::Twice("key")),
                pending(doc! { "$expr": { "$gt": [{ "$size": keys }, 1] } }),
            ),
            (
                Unleasable::Exhausted { is_owner_dead: false },
                pending(doc! { "leaseUntil": until, "$expr": expired }),
            ),
            (
                Unleasable::Exhausted { is_owner_dead: true },
                pending(doc! { "leaseUntil": until, "leaseOwner": owner }),
            ),
            (
                Unleasable::Oversized,
                doc! {
                    "_id": { "$eq": 1_i64 }, "status": { "$in": ["pending", "scheduled"] },
                    "leaseId": null, "seq": seq,
                },
            ),
            (Unleasable::Unfit(Unfit::Nameless), doc! { "_id": { "$eq": 1 }, "status": "pending" }),
        ] {
            let expected = RawDocumentBuf::try_from(&guard).unwrap();
            assert_eq!(cause.filter(&record), expected, "{cause:?}");
        }
        let ownerless = read(&doc! { "_id": 1, "leaseId": bson::Uuid::new(), "leaseUntil": until });
        let any = [true, false]
            .map(|is_owner_dead| Unleasable::Exhausted { is_owner_dead }.filter(&ownerless));
        assert_eq!(any[0], any[1], "without an owner only the end of the lease counts");
    }

    #[test]
    fn death_is_one_conditional_update_without_lease_fields() {
        let reason = DeadReason::LeaseExpired { attempts: 3 };
        let filter = rawdoc! { "_id": 1 };

        let sent = statement(&filter, &smallest_deaths(&reason, true)[0]);

        let expected = doc! {
            "q": { "_id": 1 },
            "u": {
                "$set": { "status": "dead", "deadReason": "lease expired: 3 times", "blocks": true },
                "$currentDate": { "deadAt": true },
                "$unset": { "leaseId": "", "leaseUntil": "", "leaseOwner": "" },
            },
            "multi": false,
        };
        assert_eq!(sent, RawDocumentBuf::try_from(&expected).unwrap());
    }
}
