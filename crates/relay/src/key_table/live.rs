//! The state of each key while the change stream carries the records, or is about to.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Timestamp;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Placement, Record};
use postrider_outbox::snapshot::DeadBlocker;

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::key_table::KeyTable;
use crate::key_table::entries::{Entries, LivePeriod, ScanPoint, ScanStart};
use crate::lane::Lane;
use crate::partition;

/// Pause after which a key is read again whose head was being corrected.
const REPAIR_PAUSE: Duration = Duration::from_secs(1);

/// The state of the lane of a record that became pending.
#[derive(Debug)]
pub(crate) enum KeyState {
    /// Nothing of the key is pending: the record is the first.
    Idle,
    /// A lane delivers its records.
    InFlight(Arc<Lane>),
    /// A scan has shown the record already.
    Covered,
    /// The key waits for its blocker or for a scan.
    Blocked,
}

impl KeyTable {
    /// As [`register`](Self::register), for a key whose first pending record is `head`, as of this
    /// read. The lane is incomplete if an event was withheld since.
    #[must_use]
    pub(crate) fn register_scanned(
        &self,
        lane: &Arc<Lane>,
        head: &Record,
        read: ScanPoint,
    ) -> bool {
        let mut entries = self.entries.lock();
        let counts = entries.is_conclusive(&lane.key, read);
        if !entries.register(lane, head) {
            return false;
        }
        let at = read.at;
        if counts {
            entries.withheld.remove(&lane.key);
            entries.unplaced.remove(&lane.key);
            entries.covered.insert(lane.key.clone(), at);
        } else {
            lane.leave_incomplete();
        }
        true
    }

    /// As [`register`](Self::register), for a key of which nothing was pending before `head`.
    /// Returns false if the key is known.
    #[must_use]
    pub(crate) fn register_idle(&self, lane: &Arc<Lane>, head: &Record) -> bool {
        let mut entries = self.entries.lock();
        let is_free = entries.follows && !entries.is_tracked(&lane.key);
        is_free && entries.register(lane, head)
    }

    /// Begins to follow: the stream carries the records from now on, or is about to. Each removed
    /// key must be read, unless nothing of it is pending.
    pub(crate) fn begin_following(&self) {
        let mut entries = self.entries.lock();
        entries.follows = true;
        entries.period = entries.period.next();
        entries.is_over_capacity = entries.dead.overflows();
        if entries.has_strays {
            let waits = entries.blocked.keys().chain(entries.quarantined.keys());
            let dead = entries.dead.iter().map(|(key, _)| LaneKey::Keyed(key.clone()));
            let all: HashSet<LaneKey> =
                entries.lanes.keys().chain(waits).cloned().chain(dead).collect();
            entries.unplaced = all;
        }
        // Events that came meanwhile were only a reason to scan.
        entries.lanes.values().for_each(|lane| lane.leave_incomplete());
    }

    /// Notes that everything was read since it follows: the stream carries all records.
    pub(crate) fn go_live(&self) {
        self.entries.lock().is_live = true;
    }

    /// Returns the period in which the stream carries all records; `None` if it does not.
    pub(crate) fn live_period(&self) -> Option<LivePeriod> {
        let entries = self.entries.lock();
        entries.is_live.then_some(entries.period)
    }

    /// Ends following: rotations find the records.
    pub(crate) fn stop_following(&self) {
        let mut entries = self.entries.lock();
        entries.follows = false;
        entries.period = entries.period.next();
        entries.is_live = false;
        entries.pending_scans.clear();
        entries.withheld.clear();
        entries.covered.clear();
        entries.strays.clear();
        entries.unplaced.clear();
        entries.lanes.values().for_each(|lane| lane.leave_incomplete());
        entries.release_blocked(|wait| wait.reason == BlockReason::Repair);
    }

    /// Returns the state of the lane of a record that became pending at this moment.
    pub(crate) fn state_of(&self, record: &Record, at: Timestamp) -> KeyState {
        let entries = self.entries.lock();
        let key = &record.lane;
        if entries.covered.get(key).is_some_and(|covered| at <= *covered) {
            return KeyState::Covered;
        }
        match entries.lanes.get(key) {
            // It was deleted, and inserted again.
            Some(lane) if lane.expects(&record.id) => KeyState::Blocked,
            Some(lane) => KeyState::InFlight(lane.clone()),
            None if entries.waits(key) || entries.pending_scans.contains_key(key) => {
                KeyState::Blocked
            }
            None => KeyState::Idle,
        }
    }

    /// Notes that an event of a key was withheld: the key must be read, now or when it is
    /// removed.
    pub(crate) fn withhold(&self, key: LaneKey, partition: u8, id: RecordId, at: Timestamp) {
        let mut entries = self.entries.lock();
        if !entries.follows || !entries.owns(partition) {
            return;
        }
        if let Some(lane) = entries.lanes.get(&key) {
            lane.leave_incomplete();
        }
        entries.record_stray(&key, partition);
        let latest = entries.withheld.entry(key.clone()).or_insert(at);
        *latest = (*latest).max(at);
        entries.require_scan(key, partition, id);
    }

    /// Notes the partition of a record, if that is not the hash of its key.
    pub(crate) fn record_partition(&self, record: &Record) {
        if record.placement == Placement::Stamped {
            self.entries.lock().record_stray(&record.lane, record.partition);
        }
    }

    /// Returns the owned partitions in which a key may have records.
    pub(crate) fn partitions_of(&self, key: &LaneKey) -> Vec<u8> {
        let entries = self.entries.lock();
        let mut all = entries.strays_of(key);
        all.insert(partition::of_key(key.as_str()));
        if entries.unplaced.contains(key) {
            all.extend(0..=u8::MAX);
        }
        all.into_iter().filter(|partition| entries.owns(*partition)).collect()
    }

    /// Requires a scan of a key whose pending records a page has not shown.
    pub(crate) fn require_scan(&self, key: LaneKey, partition: u8, id: RecordId) {
        self.entries.lock().require_scan(key, partition, id);
    }

    /// Returns how many keys must be read.
    pub(crate) fn pending_scans(&self) -> usize {
        self.entries.lock().pending_scans.len()
    }

    /// Returns whether a block was not recorded for lack of room, since it follows.
    pub(crate) fn is_over_capacity(&self) -> bool {
        self.entries.lock().is_over_capacity
    }

    /// Takes some of the keys that must be read.
    pub(crate) fn take_pending_scans(&self, count: usize) -> Vec<(LaneKey, u8, RecordId)> {
        let mut entries = self.entries.lock();
        let waiting =
            entries.pending_scans.iter_mut().filter(|(_, one)| !one.is_requested).take(count);
        let asked = waiting.map(|(key, one)| {
            one.is_requested = true;
            (key.clone(), one.partition, one.id.clone())
        });
        asked.collect()
    }

    /// Finishes the read of a key at this moment; its results are registered. If nothing was found,
    /// the key is released, unless an event came since. `None`: the read says nothing.
    pub(crate) fn finish_scan(&self, key: &LaneKey, read: Option<ScanPoint>) {
        let mut entries = self.entries.lock();
        let Some(unscanned) = entries.pending_scans.get_mut(key) else { return };
        unscanned.is_requested = false;
        let Some(read) = read else { return };
        if entries.is_conclusive(key, read) {
            let at = read.at;
            entries.withheld.remove(key);
            entries.unplaced.remove(key);
            entries.covered.insert(key.clone(), at);
            entries.pending_scans.remove(key);
            entries.strays.remove(key);
        }
    }

    /// Finishes the read of a key that a dead record blocks. If there is no room for the key, it
    /// must still be read: nothing of it may be delivered.
    pub(crate) fn finish_blocked_scan(&self, key: &LaneKey, dead: DeadBlocker) {
        let mut entries = self.entries.lock();
        entries.block_by_dead(vec![(key.clone(), dead)]);
        if let Some(unscanned) = entries.pending_scans.get_mut(key) {
            unscanned.is_requested = false;
        }
    }

    /// Returns the current state, for a read that is about to begin.
    pub(crate) fn scan_start(&self) -> ScanStart {
        let Entries { period, stray_count, follows, handled_until, .. } = *self.entries.lock();
        ScanStart { period, strays: stray_count, follows, handled_until }
    }

    /// Notes a change of a record that the stream does not report: its key is read, now or when
    /// it is removed.
    pub(crate) fn record_changed(&self, key: LaneKey, partition: u8, id: RecordId) {
        let mut entries = self.entries.lock();
        if let Some(lane) = entries.lanes.get(&key) {
            lane.leave_incomplete();
        }
        entries.require_scan(key, partition, id);
    }

    /// Notes that the stream was handled up to here.
    pub(crate) fn advance_to(&self, at: Timestamp) {
        let mut entries = self.entries.lock();
        entries.handled_until = entries.handled_until.max(Some(at));
        if !entries.covered.is_empty() {
            entries.covered.retain(|_, covered| *covered >= at);
        }
    }

    /// Returns whether a key is known.
    pub(crate) fn is_tracked(&self, key: &LaneKey) -> bool {
        self.entries.lock().is_tracked(key)
    }

    /// Blocks keys whose heads are being corrected or made dead, while the stream carries the
    /// records. (Otherwise the next rotation finds them.)
    pub(crate) fn block_for_repair(&self, heads: Vec<(LaneKey, Blocker)>) {
        let mut entries = self.entries.lock();
        if !entries.follows {
            return;
        }
        let until = Some(Instant::now() + REPAIR_PAUSE);
        for (key, head) in heads {
            if !entries.waits(&key) {
                entries.block(key, KeyBlock::new(BlockReason::Repair, head, until));
            }
        }
    }

    /// Unblocks the keys that wait for a correction: some were made.
    pub(crate) fn unblock_repaired(&self) {
        self.entries.lock().release_blocked(|wait| wait.reason == BlockReason::Repair);
    }
}
