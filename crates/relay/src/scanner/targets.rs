//! Scans particular keys.

use std::sync::Arc;

use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::{DeadBlocker, ReadLimit, ScanRange, size_of};
use postrider_store::StoreError;

use crate::acquirer::{Acquisition, Origin};
use crate::blocker::Blocker;
use crate::key_table::ScanPoint;
use crate::lane::Lane;
use crate::metrics::ReadSource;
use crate::plan::Plan;
use crate::scanner::planning::RunLimit;
use crate::scanner::{OpenScan, ScanResult, ScanTarget, Scanner};
use crate::settings::Settings;
use crate::sink::Sink;

/// The read and planned records of one target.
struct Answer {
    plan: Plan,
    about: About,
}

/// The target of an answer.
enum About {
    /// A place at which something may be pending.
    Hint,
    /// The lane that asked for more.
    Refill(Arc<Lane>),
    /// A key whose pending records the relay must all learn.
    Key(KeyScan),
}

/// What a scan has shown of its key.
struct KeyScan {
    key: LaneKey,
    partition: u8,
    /// The dead record that blocks it.
    dead: Option<DeadBlocker>,
    /// Whether no record of the key is pending.
    is_empty: bool,
    /// Whether the key may have more records than were read.
    is_cut: bool,
    /// Whether it is known what blocks the key.
    is_known: bool,
}

impl<S: Sink> Scanner<'_, S> {
    /// Reads each target in turn, as long as there is room.
    pub(super) async fn read_targets(
        &self,
        targets: Vec<ScanTarget>,
        mut open: OpenScan<'_>,
        mut result: ScanResult,
    ) -> Result<ScanResult, StoreError> {
        let key_table = &self.context.state.key_table;
        let mut answers = Vec::with_capacity(targets.len());
        for target in targets {
            let is_ours = open.owned.contains(&target.partition());
            let has_room = open.room.bytes > 0;
            result.short |= is_ours && !has_room;
            let places = match &target {
                ScanTarget::Scan(key, _) => key_table.partitions_of(key),
                ScanTarget::At(_) | ScanTarget::Refill(_) => Vec::new(),
            };
            match target.stretch(&places).filter(|_| is_ours && has_room) {
                Some(stretch) => {
                    answers.push(self.read_target(&target, &stretch, &mut open).await?);
                }
                None => self.decline(target, &mut result),
            }
        }
        let OpenScan { snapshot, recoveries, start, .. } = open;
        let point = snapshot.moment().map(|at| ScanPoint { at, start });
        // After the last read has succeeded: otherwise nothing would lease, or release, the rest.
        for Answer { plan, about } in answers {
            match about {
                About::Hint => self.register(plan, recoveries, None, None, &mut result),
                About::Refill(lane) => {
                    self.register(plan, recoveries, Some(lane), None, &mut result);
                }
                About::Key(KeyScan { key, partition, dead, is_empty, is_cut, is_known }) => {
                    if !is_known {
                        let unseen = Blocker::unseen(partition);
                        key_table.block_for_repair(vec![(key.clone(), unseen)]);
                    }
                    let point = point.filter(|_| is_known);
                    self.register(plan, recoveries, None, point.filter(|_| !is_cut), &mut result);
                    // The result is registered, or the key is scanned again.
                    match dead {
                        Some(dead) => key_table.finish_blocked_scan(&key, dead),
                        None => key_table.finish_scan(&key, point.filter(|_| is_empty)),
                    }
                }
            }
        }
        Ok(result)
    }

    async fn read_target(
        &self,
        target: &ScanTarget,
        stretch: &ScanRange<'_>,
        open: &mut OpenScan<'_>,
    ) -> Result<Answer, StoreError> {
        let OpenScan { snapshot, blockers, taken_keys, room, .. } = open;
        let (lane, cap, had) = match target {
            ScanTarget::At(_) | ScanTarget::Scan(..) => (None, Settings::LANE, 0),
            ScanTarget::Refill(lane) => (Some(lane), self.context.refill_size(), lane.had_count()),
        };
        let own = ReadLimit { records: had + cap + 1, bytes: room.bytes };
        let records = snapshot.read(stretch, own).await?;
        self.context.metrics.seen(ReadSource::Scan, records.len());
        let is_cut = own.is_filled_by(&records);
        room.bytes = room.bytes.saturating_sub(size_of(&records));
        let scanned = match target {
            ScanTarget::Scan(key, _) => Some(key),
            ScanTarget::At(_) | ScanTarget::Refill(_) => None,
        };
        let (records, blockers, unknown) =
            self.plan_basis(records, blockers.clone(), stretch, scanned, own, snapshot).await?;
        self.record_places(&records, &blockers);
        let records = self.in_lanes(records);
        let is_empty = records.is_empty();
        let limit = RunLimit { cut_to: cap, whole: cap };
        let plan = self.plan(records, &blockers, taken_keys, lane.map(Arc::as_ref), limit);
        let about = match target {
            ScanTarget::At(_) => About::Hint,
            ScanTarget::Refill(lane) => About::Refill(lane.clone()),
            ScanTarget::Scan(key, _) => About::Key(KeyScan {
                key: key.clone(),
                partition: target.partition(),
                dead: blockers.dead.get(key).cloned(),
                is_empty,
                is_cut,
                is_known: unknown.is_empty() && !blockers.misplaced.contains_key(key),
            }),
        };
        Ok(Answer { plan, about })
    }

    /// Reads nothing of a target: another instance owns its partition now, or there is no room.
    fn decline(&self, target: ScanTarget, result: &mut ScanResult) {
        match target {
            ScanTarget::At(_) => {}
            ScanTarget::Scan(key, _) => self.context.state.key_table.finish_scan(&key, None),
            ScanTarget::Refill(lane) => {
                let (records, more, origin) = (Vec::new(), false, Origin::Refill);
                result.acquisitions.push(Acquisition { lane, records, more, origin });
            }
        }
    }
}
