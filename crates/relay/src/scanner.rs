//! Finds what is pending: reads one snapshot (`rotation`, `targets`, `blockers`), plans what may go
//! (`planning`), and registers it in the key table (`registration`).

mod blockers;
mod planning;
mod registration;
mod rotation;
mod snapshot_blockers;
mod targets;

use std::collections::HashSet;
use std::sync::Arc;

use postrider_outbox::position::Position;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::snapshot::{OutboxSnapshot, ReadLimit, ScanRange};
use postrider_outbox::wakeup::ScanHint;
use postrider_store::StoreError;
use tracing::debug;

use crate::acquirer::Acquisition;
use crate::context::RelayContext;
use crate::key_table::{Recoveries, ScanStart};
use crate::lane::Lane;
use crate::quarantine::Candidate;
use crate::repairer::RepairBatch;
use crate::scanner::snapshot_blockers::SnapshotBlockers;
use crate::sink::Sink;

pub(super) use blockers::{MISPLACED_PAGE, blocked_of};

/// Where to scan.
#[derive(Debug)]
pub enum ScanScope {
    /// From this position on, through the owned partitions.
    Rotation(Position),
    /// Particular keys, and records without a key.
    Targets(Vec<ScanTarget>),
}

/// One key to scan, or one record without a key.
#[derive(Clone, Debug)]
pub enum ScanTarget {
    /// A place at which something may be pending.
    At(ScanHint),
    /// A lane in flight that runs short.
    Refill(Arc<Lane>),
    /// A key whose pending records the relay must all learn.
    Scan(LaneKey, ScanHint),
}

impl ScanTarget {
    /// Returns what to read; `None` for a lane without a key, which has no other record. `places`:
    /// the partitions in which a scanned key has records.
    fn stretch<'a>(&'a self, places: &'a [u8]) -> Option<ScanRange<'a>> {
        match self {
            Self::Scan(LaneKey::Keyed(key), _) => Some(ScanRange::Key(places, key)),
            Self::At(ScanHint::Key { partition, key })
            | Self::Scan(_, ScanHint::Key { partition, key }) => {
                Some(ScanRange::Lane(*partition, key))
            }
            Self::At(ScanHint::Record { partition, id })
            | Self::Scan(_, ScanHint::Record { partition, id }) => {
                Some(ScanRange::Record(*partition, id))
            }
            Self::Refill(lane) => match &lane.key {
                LaneKey::Keyed(key) => Some(ScanRange::Lane(lane.partition, key)),
                LaneKey::Single(_) => None,
            },
        }
    }

    /// Returns the partition of the target.
    fn partition(&self) -> u8 {
        match self {
            Self::At(hint) | Self::Scan(_, hint) => hint.partition(),
            Self::Refill(lane) => lane.partition,
        }
    }
}

impl ScanScope {
    /// Returns the lanes in flight that wait for the result.
    fn refills(&self) -> Vec<Arc<Lane>> {
        let Self::Targets(targets) = self else { return Vec::new() };
        let lanes = targets.iter().filter_map(|target| match target {
            ScanTarget::Refill(lane) => Some(lane.clone()),
            ScanTarget::At(_) | ScanTarget::Scan(..) => None,
        });
        lanes.collect()
    }

    /// Returns the keys whose pending records the relay must learn.
    fn scans(&self) -> Vec<LaneKey> {
        let Self::Targets(targets) = self else { return Vec::new() };
        let keys = targets.iter().filter_map(|target| match target {
            ScanTarget::Scan(key, _) => Some(key.clone()),
            ScanTarget::At(_) | ScanTarget::Refill(_) => None,
        });
        keys.collect()
    }
}

/// The registered results of a scan: lanes that are ready to be leased, and more.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// Where the rotation continues; `None` after its end, or for another scan.
    pub next: Option<Position>,
    /// Whether the rotation read as much as one page allows: there is more.
    pub full: bool,
    /// Whether the allowance of bytes was too small for all targets.
    pub short: bool,
    /// Whether it has read all pending records, and all keys that are blocked by a record with an
    /// invalid partition.
    pub is_all: bool,
    /// Keys that the rotation skipped.
    pub skipped: usize,
    /// Records that wait for their turn in quarantine.
    pub candidates: Vec<Candidate>,
    /// Records to correct, or to make dead.
    pub repairs: RepairBatch,
    /// What to lease.
    pub acquisitions: Vec<Acquisition>,
}

impl ScanResult {
    /// Returns whether there is anything to lease. (A repair that changes something requests
    /// another scan itself; one that changes nothing must not.)
    pub fn has_records(&self) -> bool {
        self.acquisitions.iter().any(|acquisition| !acquisition.records.is_empty())
    }

    /// Returns whether the acquirer has anything to do, if only to notify a lane that there is
    /// nothing.
    pub fn wants_acquisition(&self) -> bool {
        !self.acquisitions.is_empty()
    }
}

/// A scan under way: its snapshot, and what was known before the snapshot.
struct OpenScan<'a> {
    snapshot: OutboxSnapshot,
    /// What blocks keys, as of this snapshot.
    blockers: SnapshotBlockers,
    /// Keys that were in flight or in quarantine: a lane that has ended meanwhile has settled
    /// records that the snapshot shows as leased.
    taken_keys: HashSet<LaneKey>,
    recoveries: Recoveries,
    start: ScanStart,
    owned: &'a [u8],
    room: ReadLimit,
}

/// Finds pending records that may go.
#[derive(Debug)]
pub struct Scanner<'a, S> {
    context: &'a RelayContext<S>,
}

impl<'a, S: Sink> Scanner<'a, S> {
    /// Creates a scanner of this relay.
    pub fn new(context: &'a RelayContext<S>) -> Self {
        Self { context }
    }

    /// Reads one snapshot, plans, and registers the keys of what may go, so that the next scan can
    /// begin while this result is leased.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. Nothing has changed then. After a stop it has found nothing.
    pub async fn scan(
        &self,
        scope: ScanScope,
        owned: &[u8],
        room: ReadLimit,
    ) -> Result<ScanResult, StoreError> {
        let (refilled, scanned) = (scope.refills(), scope.scans());
        let result = tokio::select! {
            biased;
            result = self.read(scope, owned, room) => Some(result),
            // A stop does not wait for MongoDB.
            () = self.context.stopping() => None,
        };
        if let Some(Ok(found)) = &result {
            debug!(
                keys = found.acquisitions.len(),
                records = found.acquisitions.iter().map(|one| one.records.len()).sum::<usize>(),
                skipped = found.skipped,
                quarantined = found.candidates.len(),
                "scanned"
            );
        } else {
            // No records for now; the next rotation finds them.
            for lane in refilled {
                lane.add(Vec::new(), false);
            }
            for key in scanned {
                self.context.state.key_table.finish_scan(&key, None);
            }
        }
        result.unwrap_or_else(|| Ok(ScanResult::default()))
    }

    async fn read(
        &self,
        scope: ScanScope,
        owned: &[u8],
        room: ReadLimit,
    ) -> Result<ScanResult, StoreError> {
        let (context, key_table) = (self.context, &self.context.state.key_table);
        // Read before the snapshot.
        let taken_keys = key_table.taken_keys();
        let (recoveries, start) = (key_table.recoveries(), key_table.scan_start());
        let mut snapshot = OutboxSnapshot::begin(&context.collections).await?;
        if !context.settings.is_ordered() {
            snapshot.split_keys();
        }
        let (blockers, misplaced) = self.read_blockers(&mut snapshot, room.records).await?;
        let (exhausted, defective) =
            misplaced.into_iter().partition(|record| record.unfit.is_some());
        let repairs = RepairBatch { defective, exhausted };
        let result = ScanResult { repairs, ..ScanResult::default() };
        // The index ranges of their keys do not contain them.
        key_table.block_for_repair(blockers.misplaced_within(owned));
        let open = OpenScan { snapshot, blockers, taken_keys, recoveries, start, owned, room };
        match scope {
            ScanScope::Rotation(from) => self.rotate(from, open, result).await,
            ScanScope::Targets(targets) => self.read_targets(targets, open, result).await,
        }
    }

    /// Assigns to each record the lane that `relay.ordering` requires.
    fn in_lanes(&self, records: Vec<Record>) -> Vec<Record> {
        records.into_iter().map(|record| self.context.in_lane(record)).collect()
    }
}
