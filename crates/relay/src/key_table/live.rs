//! What is known of each key while the change stream carries the records, or is about to.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Timestamp;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Placement, Record};
use postrider_outbox::snapshot::Dead;

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::key_table::KeyTable;
use crate::key_table::entries::{Entries, LivePeriod, ScanPoint, ScanStart};
use crate::lane::Lane;
use crate::partition;

/// After so long a key is read again whose head was to be corrected.
const REPAIRED: Duration = Duration::from_secs(1);

/// What the key table says of the lane of a record that became pending.
#[derive(Debug)]
pub(crate) enum KeyState {
    /// Nothing of it is pending: the record is the first.
    Idle,
    /// A lane delivers its records.
    InFlight(Arc<Lane>),
    /// A scan has shown the record already.
    Covered,
    /// It waits for its blocker or for a scan.
    Blocked,
}

impl KeyTable {
    /// As [`register`](Self::register), for a key of which `head` is the first of all that it has pending, as of this read:
    /// the lane is incomplete where an event came since that was not taken.
    #[must_use]
    pub(crate) fn register_scanned(
        &self,
        lane: &Arc<Lane>,
        head: &Record,
        read: ScanPoint,
    ) -> bool {
        let mut entries = self.entries();
        let counts = entries.is_conclusive(&lane.key, read);
        if !entries.register(lane, head) {
            return false;
        }
        let at = read.at;
        match counts {
            false => lane.leave_incomplete(),
            true => {
                entries.withheld.remove(&lane.key);
                entries.unplaced.remove(&lane.key);
                entries.covered.insert(lane.key.clone(), at);
            }
        }
        true
    }

    /// As [`register`](Self::register), for a key of which nothing was pending before `head`: false where anything is known
    /// of it.
    #[must_use]
    pub(crate) fn register_idle(&self, lane: &Arc<Lane>, head: &Record) -> bool {
        let mut entries = self.entries();
        let is_free = entries.follows && !entries.is_tracked(&lane.key);
        is_free && entries.register(lane, head)
    }

    /// The stream carries the records from now on, or is about to: each key that is removed is
    /// to be read, unless nothing of it is pending.
    pub(crate) fn begin_following(&self) {
        let mut entries = self.entries();
        entries.follows = true;
        entries.period = entries.period.next();
        entries.is_overfull = false;
        entries.dead_blockers.clear();
        if entries.has_strays {
            let waits = entries.blocked.keys().chain(entries.quarantined.keys());
            let all: HashSet<LaneKey> = entries.lanes.keys().chain(waits).cloned().collect();
            entries.unplaced = all;
        }
        // What came meanwhile was a reason to scan, and no more.
        entries.lanes.values().for_each(|lane| lane.leave_incomplete());
    }

    /// Everything was read since it follows: the stream carries all records.
    pub(crate) fn go_live(&self) {
        self.entries().is_live = true;
    }

    /// Which period it is in which the stream carries all records; `None` where it does not.
    pub(crate) fn live_period(&self) -> Option<LivePeriod> {
        let entries = self.entries();
        entries.is_live.then_some(entries.period)
    }

    /// The stream carries the records no more: rotations find them.
    pub(crate) fn stop_following(&self) {
        let mut entries = self.entries();
        entries.follows = false;
        entries.period = entries.period.next();
        entries.is_live = false;
        entries.pending_scans.clear();
        entries.withheld.clear();
        entries.covered.clear();
        entries.strays.clear();
        entries.unplaced.clear();
        entries.lanes.values().for_each(|lane| lane.leave_incomplete());
        entries.release_blocked(|wait| {
            matches!(wait.reason, BlockReason::Blocked | BlockReason::Repair)
        });
    }

    /// What is known of the lane of a record that became pending at this moment.
    pub(crate) fn state_of(&self, record: &Record, at: Timestamp) -> KeyState {
        let entries = self.entries();
        let key = &record.lane;
        if entries.covered.get(key).is_some_and(|covered| at <= *covered) {
            return KeyState::Covered;
        }
        match entries.lanes.get(key) {
            // It was deleted, and inserted once more.
            Some(lane) if lane.expects(&record.id) => KeyState::Blocked,
            Some(lane) => KeyState::InFlight(lane.clone()),
            None if entries.block_of(key).is_some() || entries.pending_scans.contains_key(key) => {
                KeyState::Blocked
            }
            None => KeyState::Idle,
        }
    }

    /// Notes that an event of a key was not taken: the key is to be read, now or when it is struck
    /// off.
    pub(crate) fn withhold(&self, key: LaneKey, partition: u8, id: RecordId, at: Timestamp) {
        let mut entries = self.entries();
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

    /// Notes in which partition a record lies, where that is not the hash of its key.
    pub(crate) fn record_partition(&self, record: &Record) {
        if record.placement == Placement::Stamped {
            self.entries().record_stray(&record.lane, record.partition);
        }
    }

    /// The partitions of ours in which a key may have records.
    pub(crate) fn partitions_of(&self, key: &LaneKey) -> Vec<u8> {
        let entries = self.entries();
        let mut all = entries.strays_of(key);
        all.insert(partition::of_key(key.as_str()));
        if entries.unplaced.contains(key) {
            all.extend(0..=u8::MAX);
        }
        all.into_iter().filter(|partition| entries.owns(*partition)).collect()
    }

    /// A key of which a page has not shown what it has pending.
    pub(crate) fn require_scan(&self, key: LaneKey, partition: u8, id: RecordId) {
        self.entries().require_scan(key, partition, id);
    }

    /// How many keys are to be read.
    pub(crate) fn pending_scans(&self) -> usize {
        self.entries().pending_scans.len()
    }

    /// Whether a wait was not noted for want of room, since it follows.
    pub(crate) fn is_over_capacity(&self) -> bool {
        self.entries().is_overfull
    }

    /// Some of the keys that are to be read.
    pub(crate) fn take_pending_scans(&self, count: usize) -> Vec<(LaneKey, u8, RecordId)> {
        let mut entries = self.entries();
        let waiting = entries.pending_scans.iter_mut().filter(|(_, one)| !one.is_asked).take(count);
        let asked = waiting.map(|(key, one)| {
            one.is_asked = true;
            (key.clone(), one.partition, one.id.clone())
        });
        asked.collect()
    }

    /// A key was read at this moment, and what was found is entered. Where nothing was, the key is
    /// free, unless an event came since. `None`: the read says nothing.
    pub(crate) fn finish_scan(&self, key: &LaneKey, read: Option<ScanPoint>) {
        let mut entries = self.entries();
        let Some(unscanned) = entries.pending_scans.get_mut(key) else { return };
        unscanned.is_asked = false;
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

    /// What is known now, for a read that is about to begin.
    pub(crate) fn scan_start(&self) -> ScanStart {
        let Entries { period, strays_noted, follows, heard, .. } = *self.entries();
        ScanStart { period, strays: strays_noted, follows, heard }
    }

    /// A record was changed in a way of which the stream says nothing: its key is read, now or when
    /// it is removed.
    pub(crate) fn record_changed(&self, key: LaneKey, partition: u8, id: RecordId) {
        let mut entries = self.entries();
        if let Some(lane) = entries.lanes.get(&key) {
            lane.leave_incomplete();
        }
        entries.require_scan(key, partition, id);
    }

    /// The stream was handled up to here.
    pub(crate) fn advance_to(&self, at: Timestamp) {
        let mut entries = self.entries();
        entries.heard = entries.heard.max(Some(at));
        if !entries.covered.is_empty() {
            entries.covered.retain(|_, covered| *covered >= at);
        }
    }

    /// Whether anything is known of a key.
    pub(crate) fn is_tracked(&self, key: &LaneKey) -> bool {
        self.entries().is_tracked(key)
    }

    /// Lets keys wait whose heads are being corrected, or made dead where they are, while the stream
    /// carries the records. (Else the next rotation meets them.)
    pub(crate) fn block_for_repair(&self, heads: Vec<(LaneKey, Blocker)>) {
        let mut entries = self.entries();
        if !entries.follows {
            return;
        }
        let until = Some(Instant::now() + REPAIRED);
        for (key, head) in heads {
            if entries.block_of(&key).is_none() {
                entries.block(key, KeyBlock::new(BlockReason::Repair, head, until));
            }
        }
    }

    /// Removes the keys that wait for a correction: some were made.
    pub(crate) fn unblock_repaired(&self) {
        self.entries().release_blocked(|wait| wait.reason == BlockReason::Repair);
    }

    /// Lets these keys wait for their dead, where the stream carries the records.
    pub(crate) fn block_by_dead(&self, keys: Vec<(LaneKey, Dead)>) {
        let mut entries = self.entries();
        if entries.follows {
            entries.block_by_dead(keys);
        }
    }
}
