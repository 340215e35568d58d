//! Repairs records that cannot be leased as they are: corrects them, or makes them dead.
//!
//! Repairs run apart from the leases, which must not wait for them: a transaction of the
//! application may lock one of these records for any time.

use std::collections::HashSet;
use std::time::Instant;

use postrider_outbox::fields::{PENDING, SCHEDULED};
use postrider_outbox::ids::RecordId;
use postrider_outbox::reason::DeadReason;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::repair::{Repaired, Unleasable};
use postrider_outbox::undecoded::RawId;
use postrider_store::StoreError;
use tracing::warn;

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::context::RelayContext;
use crate::dead_letter;
use crate::refused_changes::RefusedChanges;
use crate::sink::Sink;

/// Records that a scan found unfit to be leased.
#[derive(Debug, Default)]
pub struct RepairBatch {
    /// Records to correct: with an invalid partition, or without a usable `seq`.
    pub(super) defective: Vec<Record>,
    /// Records to make dead: without attempts left, or malformed.
    pub(super) exhausted: Vec<Record>,
}

impl RepairBatch {
    /// Creates a batch of records to correct.
    pub(super) fn of(defective: Vec<Record>) -> Self {
        Self { defective, exhausted: Vec::new() }
    }

    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.defective.is_empty() && self.exhausted.is_empty()
    }
}

/// Corrects records, and makes dead those that cannot be delivered.
#[derive(Debug)]
pub struct Repairer<'a, S> {
    context: &'a RelayContext<S>,
}

impl<'a, S: Sink> Repairer<'a, S> {
    /// Creates a repairer of this relay.
    pub fn new(context: &'a RelayContext<S>) -> Self {
        Self { context }
    }

    /// Repairs a batch. Returns whether another scan will find more to do.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the next scan finds the records again that were not repaired.
    pub async fn repair(&self, batch: RepairBatch) -> Result<bool, StoreError> {
        let mut is_changed = false;
        for record in batch.exhausted {
            is_changed |= self.mark_exhausted(&record).await?;
        }
        let defective: Vec<&Record> = batch.defective.iter().collect();
        Ok(is_changed | self.correct(&defective).await?)
    }

    /// Makes dead a record that is malformed or has no attempt left. Returns whether it did.
    async fn mark_exhausted(&self, record: &Record) -> Result<bool, StoreError> {
        let (repairs, blocks) = (&self.context.repairs, self.blocks(record));
        let (reason, cause) = match record.unfit {
            Some(unfit) => (DeadReason::Malformed(unfit.malformed()), Unleasable::Unfit(unfit)),
            None => {
                let is_owner_dead = self.context.state.lease_owners.is_dead(record);
                let reason = DeadReason::LeaseExpired { attempts: record.attempt };
                (reason, Unleasable::Exhausted { is_owner_dead })
            }
        };
        match repairs.mark_dead(record, cause, &reason, blocks).await {
            Ok(is_dead) => {
                if is_dead {
                    self.report_death(record, &reason, blocks);
                }
                Ok(is_dead)
            }
            // Neither dead nor deliverable: it waits, and blocks only its key.
            Err(StoreError::Refused { code, .. }) => {
                let state = &self.context.state;
                state.refused_changes.report(record, code);
                let until = Some(Instant::now() + RefusedChanges::RETRY_PAUSE);
                let block = KeyBlock::new(BlockReason::Refused, Blocker::of(record), until);
                state.key_table.block(record.lane.clone(), block);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Adds the missing partition or `seq` to each record. A record without room for it becomes
    /// dead; one that MongoDB refuses to change blocks its key for a while. Returns whether any was
    /// changed.
    pub(super) async fn correct(&self, records: &[&Record]) -> Result<bool, StoreError> {
        if records.is_empty() {
            return Ok(false);
        }
        let state = &self.context.state;
        let Repaired { counts, oversized, refused } = self.context.repairs.repair(records).await?;
        self.context.metrics.repaired(counts);
        let refused: HashSet<&RecordId> = refused
            .into_iter()
            .map(|(record, code)| {
                state.refused_changes.hold(record, code);
                &record.id
            })
            .collect();
        for record in records.iter().filter(|record| !refused.contains(&record.id)) {
            state.misplaced.forget(&record.id);
        }
        let mut is_changed = counts.any();
        for record in records {
            let lane = self.context.settings.lane_of(record.lane.clone(), &record.id);
            state.key_table.record_changed(lane, record.partition, record.id.clone());
        }
        for record in oversized {
            // It was read without its payload, which the dead letter needs.
            let Some(record) = self.context.read(&record.id, PENDING).await? else { continue };
            is_changed |= self.mark_oversized(&record, "its partition or seq").await?;
        }
        Ok(is_changed)
    }

    /// Makes dead a record that has no room for `what`. Returns whether it did.
    pub(super) async fn mark_oversized(
        &self,
        record: &Record,
        what: &str,
    ) -> Result<bool, StoreError> {
        let detail = format!("{what} does not fit into a record of {} bytes", record.size());
        let (reason, blocks) = (DeadReason::TooLarge(detail), self.blocks(record));
        let (repairs, cause) = (&self.context.repairs, Unleasable::Oversized);
        let is_dead = repairs.mark_dead(record, cause, &reason, blocks).await?;
        if is_dead {
            self.report_death(record, &reason, blocks);
        }
        Ok(is_dead)
    }

    /// Makes a scheduled record dead that has no room for a `seq`. Returns whether it did, or
    /// whether the record has changed meanwhile.
    pub(super) async fn mark_unpromotable(&self, id: &RawId) -> Result<bool, StoreError> {
        let Some(id) = id.decoded() else { return Ok(false) };
        match self.context.read(&id, SCHEDULED).await? {
            Some(record) => self.mark_oversized(&record, "its seq").await,
            None => Ok(true),
        }
    }

    fn blocks(&self, record: &Record) -> bool {
        self.context.settings.dead_blocks(&record.lane)
    }

    fn report_death(&self, record: &Record, reason: &DeadReason, blocks: bool) {
        let kind = record.raw.get_str("type").unwrap_or_default();
        let id = record.shown_id();
        let key = match &record.lane {
            LaneKey::Keyed(key) => key,
            LaneKey::Single(_) => id.as_str(),
        };
        warn!(id, key, r#type = kind, %reason, blocks, "record is dead");
        self.context.metrics.dead("");
        dead_letter::queue(self.context, record, reason);
    }
}
