//! The key table: which keys are in flight, which are blocked, and by what.
//!
//! While rotations find the records, the table saves reads: a rotation skips its keys. It never
//! decides that a record must wait. An entry ends when its time is over, when its sink is up, and
//! when `recheck` or `dead_blockers` finds that the blocker is gone, has changed, or is no longer
//! the first of its key. A snapshot that shows the key ready takes precedence.
//!
//! While the change stream carries the records, a key that is not in the table has nothing pending
//! (`key_table::live`).

mod dead;
mod entries;
mod live;
mod queries;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::snapshot::DeadBlocker;
use postrider_outbox::wakeup::ScanHint;

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::key_table::entries::Entries;
use crate::lane::Lane;
use crate::sink::Address;

pub use entries::Recoveries;
pub(super) use entries::{LivePeriod, ScanPoint, ScanStart};
pub(super) use live::KeyState;
pub use queries::BlockedKey;

/// The keys of one relay. The order depends on the prefix rule, not on this table.
#[derive(Debug, Default)]
pub struct KeyTable {
    entries: Mutex<Entries>,
}

impl KeyTable {
    /// Sets the partitions in which keys may be registered. Lanes of other partitions end as soon
    /// as the outcome of what is under way is known; blocked keys there are removed.
    pub fn set_owned(&self, partitions: &[u8]) {
        let mut entries = self.entries.lock();
        entries.owned = [false; 256];
        for partition in partitions {
            entries.owned[usize::from(*partition)] = true;
        }
        for lane in entries.lanes.values() {
            if !entries.owns(lane.partition) {
                lane.revoke();
            }
        }
        entries.remove_foreign();
    }

    /// Registers `lane`, unless its key is in flight or in quarantine, or in a partition of another
    /// instance.
    ///
    /// A snapshot has shown that its head is ready, which ends a known block. Only a reason of that
    /// head that the relay alone knows takes precedence.
    #[must_use]
    pub fn register(&self, lane: &Arc<Lane>, head: &Record) -> bool {
        self.entries.lock().register(lane, head)
    }

    /// Registers a key that waits for its turn in quarantine. Returns false if it is registered
    /// already, or if another instance owns its partition.
    #[must_use]
    pub fn register_quarantined(&self, key: &LaneKey, head: Blocker) -> bool {
        let mut entries = self.entries.lock();
        let is_registered =
            entries.lanes.contains_key(key) || entries.quarantined.contains_key(key);
        let rests = entries.is_blocked_by_relay(key, || head.clone());
        if !entries.owns(head.partition) || is_registered || rests {
            return false;
        }
        entries
            .quarantined
            .insert(key.clone(), KeyBlock::new(BlockReason::Quarantined, head, None));
        entries.blocked.remove(key);
        entries.dead.remove(key);
        entries.pending_scans.remove(key);
        entries.index(key);
        true
    }

    /// Registers `lane` if its key still waits for the turn of this record, as it was read, and
    /// this instance still owns its partition.
    #[must_use]
    pub fn start_quarantined(&self, lane: &Arc<Lane>, head: &Blocker) -> bool {
        let mut entries = self.entries.lock();
        let waits = entries.quarantined.get(&lane.key).is_some_and(|wait| wait.blocker == *head);
        if !entries.owns(lane.partition) || !waits {
            return false;
        }
        entries.remove(&lane.key);
        entries.index(&lane.key);
        entries.lanes.insert(lane.key.clone(), lane.clone());
        true
    }

    /// Returns the lane in flight for this key.
    pub fn lane(&self, key: &LaneKey) -> Option<Arc<Lane>> {
        self.entries.lock().lanes.get(key).cloned()
    }

    /// Blocks a key, unless it is in flight.
    pub fn block(&self, key: LaneKey, wait: KeyBlock) {
        self.entries.lock().block(key, wait);
    }

    /// Returns how often some sink came up until now, for [`block_for_sink`](Self::block_for_sink).
    pub fn recoveries(&self) -> Recoveries {
        self.entries.lock().recoveries
    }

    /// Blocks a key whose sink was found paused after `as_of` was read. If a sink came up since, it
    /// may be this one: the key is scanned instead, or it would stay blocked.
    pub fn block_for_sink(&self, key: LaneKey, wait: KeyBlock, as_of: Recoveries) {
        let mut entries = self.entries.lock();
        if entries.recoveries == as_of {
            entries.block(key, wait)
        } else {
            entries.require_scan(key, wait.blocker.partition, wait.blocker.id)
        }
    }

    /// Unblocks all keys that wait for a sink: one is up.
    pub fn unblock_sinks(&self) {
        let mut entries = self.entries.lock();
        entries.recoveries.0 += 1;
        entries.release_blocked(|wait| wait.reason == BlockReason::SinkDown);
    }

    /// Unblocks all keys that wait for the end of a lease: its owner may be dead.
    pub(crate) fn unblock_leased(&self) {
        self.entries.lock().release_blocked(|wait| wait.reason == BlockReason::Leased);
    }

    /// Unblocks all keys that wait for a destination: it confirms again.
    pub(crate) fn unblock_destination(&self, sink: &str, destination: &Address) {
        self.entries.lock().release_blocked(|wait| wait.is_for(sink, destination));
    }

    /// Unblocks one key of each of these destinations, if possible one whose record is not
    /// suspected itself, and of these the one that was read the longest ago.
    pub(crate) fn unblock_for_probes(
        &self,
        sink: &str,
        destinations: &[Address],
        is_suspected: impl Fn(&RecordId) -> bool,
    ) -> Vec<(LaneKey, Blocker)> {
        let mut entries = self.entries.lock();
        let rank = |wait: &KeyBlock| (is_suspected(&wait.blocker.id), wait.since);
        let mut first: HashMap<&Address, (&LaneKey, &KeyBlock)> = HashMap::new();
        let wanted: HashSet<&Address> = destinations.iter().collect();
        for (key, wait) in &entries.blocked {
            let Some(destination) = &wait.destination else { continue };
            if !wanted.contains(destination) || wait.sink.as_deref() != Some(sink) {
                continue;
            }
            let known = first.entry(destination).or_insert((key, wait));
            if rank(wait) < rank(known.1) {
                *known = (key, wait);
            }
        }
        let called: Vec<_> =
            first.into_values().map(|(key, wait)| (key.clone(), wait.blocker.clone())).collect();
        called.iter().for_each(|(key, _)| entries.release(key));
        called
    }

    /// Removes a key: all its pending records may be acquired.
    pub fn release(&self, key: &LaneKey) {
        self.entries.lock().release(key);
    }

    /// Removes the key of a lane that has ended. `is_complete`: nothing of it is pending, as far as
    /// the stream was handled.
    pub(super) fn end_lane(&self, lane: &Lane, is_complete: bool) {
        let mut entries = self.entries.lock();
        if is_complete && !entries.withheld.contains_key(&lane.key) {
            entries.remove(&lane.key);
            entries.strays.remove(&lane.key);
        } else {
            entries.release(&lane.key);
        }
    }

    /// Removes a blocked key; one in flight stays.
    pub fn unblock(&self, key: &LaneKey) {
        let mut entries = self.entries.lock();
        if !entries.lanes.contains_key(key) {
            entries.release(key);
        }
    }

    /// Removes the keys whose block is over by now. Returns whether there were any.
    pub fn unblock_due(&self, now: Instant) -> bool {
        let mut entries = self.entries.lock();
        if entries.next_due.is_none_or(|due| now < due) {
            return false;
        }
        let any = entries.release_blocked(|wait| wait.until.is_some_and(|until| until <= now));
        entries.next_due = entries.blocked.values().filter_map(|wait| wait.until).min();
        any
    }

    /// Unblocks a key that still waits for this blocker, unchanged. Returns whether it did.
    pub fn unblock_from(&self, key: &LaneKey, blocker: &Blocker) -> bool {
        let mut entries = self.entries.lock();
        let waits = entries.block_of(key).is_some_and(|wait| wait.blocker == *blocker);
        if waits {
            entries.release(key);
        }
        waits
    }

    /// Updates the blocker of a key that was written since, with the state that a read has shown:
    /// later reads are compared with this one.
    pub(super) fn update_blocker(&self, key: &LaneKey, blocker: &Blocker, seen: Blocker) {
        let mut entries = self.entries.lock();
        if let Some(wait) = entries.blocked.get_mut(key).filter(|wait| wait.blocker == *blocker) {
            wait.blocker = seen;
        }
    }

    /// Blocks these keys by their dead records, unless they are in flight. Returns whether there was
    /// room for all.
    pub(crate) fn block_by_dead(&self, keys: Vec<(LaneKey, DeadBlocker)>) -> bool {
        self.entries.lock().block_by_dead(keys)
    }

    /// Notes that all keys that dead records block were read, and that there was room for them.
    pub(crate) fn has_all_dead(&self) {
        self.entries.lock().dead.has_all();
    }

    /// Unblocks a key that dead records have blocked. Returns where it is.
    pub(crate) fn unblock_from_dead(&self, key: &Arc<str>) -> Option<ScanHint> {
        let mut entries = self.entries.lock();
        let key = LaneKey::Keyed(key.clone());
        let DeadBlocker { id, partition } = entries.dead.get(&key)?.blocker.clone();
        entries.release(&key);
        Some(ScanHint::of(partition, key, id))
    }

    /// Notes which dead record still blocks a key, if one was known to.
    pub(crate) fn update_dead(&self, key: &LaneKey, blocker: DeadBlocker) {
        let mut entries = self.entries.lock();
        let LaneKey::Keyed(name) = key else { return };
        if entries.dead.get(key).is_none() {
            return;
        }
        if entries.dead.has_room_for(name, &blocker) {
            entries.dead.insert(name.clone(), blocker);
        } else {
            entries.is_over_capacity = true;
        }
    }

    /// Returns the keys that records with these ids block, and takes some of the keys whose records
    /// must be read again.
    pub(crate) fn take_dead(
        &self,
        changed: &[RecordId],
        count: usize,
    ) -> (Vec<Arc<str>>, Vec<Arc<str>>) {
        let dead = &mut self.entries.lock().dead;
        (dead.blocked_by(changed), dead.take_unverified(count))
    }

    /// Notes that the dead records of these keys must be read again.
    pub(crate) fn verify_dead(&self, keys: impl IntoIterator<Item = Arc<str>>) {
        self.entries.lock().dead.verify(keys);
    }

    /// From now on notes which keys of dead records must be read again: first all.
    pub(crate) fn verify_all_dead(&self) {
        self.entries.lock().dead.verify_all();
    }

    /// No longer notes which keys of dead records must be read again: all are, in rounds.
    pub(crate) fn stop_verifying_dead(&self) {
        self.entries.lock().dead.stop_verifying();
    }

    /// Returns whether the dead records of any keys must be read again.
    pub(crate) fn has_unverified_dead(&self) -> bool {
        self.entries.lock().dead.has_unverified()
    }
}

#[cfg(test)]
mod tests;
