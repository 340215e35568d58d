//! Registers the results of a scan in the key table: lanes that will be leased, and blocked keys.

use std::sync::Arc;
use std::time::Instant;

use postrider_outbox::record::{LaneKey, Record};

use crate::acquirer::{Acquisition, Origin};
use crate::addressing;
use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::key_table::{Recoveries, ScanPoint};
use crate::lane::Lane;
use crate::plan::{BlockedLane, Plan, Run};
use crate::quarantine::Quarantine;
use crate::scanner::snapshot_blockers::SnapshotBlockers;
use crate::scanner::{ScanResult, Scanner};
use crate::sink::Sink;

impl<S: Sink> Scanner<'_, S> {
    /// Registers a plan: its blocked keys and the lanes of its runs. Adds what remains to be done
    /// to `result`. `refill` is the lane that asked for more of its key. `point` is given if the
    /// scan has read all pending records of its keys at that moment, so that the change stream may
    /// bring the following ones.
    pub(crate) fn register(
        &self,
        plan: Plan,
        recoveries: Recoveries,
        refill: Option<Arc<Lane>>,
        point: Option<ScanPoint>,
        result: &mut ScanResult,
    ) {
        let key_table = &self.context.state.key_table;
        let heads = plan.defective.iter().chain(&plan.exhausted).chain(&plan.stopped);
        let stopped = heads.map(|record| (record.lane.clone(), Blocker::of(record)));
        let stopped: Vec<(LaneKey, Blocker)> = stopped.collect();
        for blocked in plan.blocked {
            self.register_block(blocked, recoveries);
        }
        let quarantine = Quarantine::new(self.context);
        for record in plan.quarantined {
            // A candidate that waits already is read again if many keys are blocked.
            if key_table.register_quarantined(&record.lane, Blocker::of(&record)) {
                result.candidates.push(quarantine.candidate(&record));
            }
        }
        for record in plan.defective {
            match self.context.state.refused_changes.held_until(&record.id) {
                None => result.repairs.defective.push(record),
                until => {
                    let block = KeyBlock::new(BlockReason::Refused, Blocker::of(&record), until);
                    key_table.block(record.lane, block);
                }
            }
        }
        result.repairs.exhausted.extend(plan.exhausted);
        let mut runs = plan.runs.into_iter();
        if let Some(lane) = refill {
            let run = runs.next().map(|run| (run.records, run.more));
            let (records, more) = run.unwrap_or_default();
            self.reserve(&records);
            result.acquisitions.push(Acquisition { lane, records, more, origin: Origin::Refill });
        }
        for Run { lane, records, more, is_whole } in runs {
            let lane = Lane::new(lane, records[0].partition);
            let point = point.filter(|_| is_whole);
            lane.begin(&records, point.is_some());
            let is_registered = match point {
                Some(point) => key_table.register_scanned(&lane, &records[0], point),
                None => key_table.register(&lane, &records[0]),
            };
            if is_registered {
                self.reserve(&records);
                let origin = Origin::NewLane;
                result.acquisitions.push(Acquisition { lane, records, more, origin });
            }
        }
        key_table.block_for_repair(stopped);
    }

    fn register_block(&self, blocked: BlockedLane, recoveries: Recoveries) {
        let BlockedLane { head, reason, until } = blocked;
        let key_table = &self.context.state.key_table;
        let until = until.map(|until| Instant::now() + self.context.clock.until(until));
        let mut block = KeyBlock::new(reason, Blocker::of(&head), until);
        if reason == BlockReason::Leased && self.context.state.lease_owners.is_dead(&head) {
            // Found dead since it was planned: read again at once.
            block.until = Some(Instant::now());
        }
        match reason {
            BlockReason::DestinationDown => {
                addressing::block_for_destination(self.context, &head);
            }
            BlockReason::SinkDown => {
                block.sink = addressing::sink_name(self.context, &head).map(Into::into);
                key_table.block_for_sink(head.lane, block, recoveries);
            }
            _ => key_table.block(head.lane, block),
        }
    }

    /// Counts records as in flight: there may be no room for others.
    pub(crate) fn reserve(&self, records: &[Record]) {
        records.iter().for_each(|record| self.context.state.in_flight.add(record));
    }

    /// Notes which of these keys have records in other partitions than their own, and which of
    /// them dead records block.
    pub(super) fn record_places(&self, records: &[Record], blockers: &SnapshotBlockers) {
        let key_table = &self.context.state.key_table;
        let mut blocked = Vec::new();
        for record in records {
            key_table.record_partition(record);
            if let Some(dead) = blockers.dead.get(&record.lane) {
                blocked.push((record.lane.clone(), dead.clone()));
            }
        }
        key_table.block_by_dead(blocked);
    }
}
