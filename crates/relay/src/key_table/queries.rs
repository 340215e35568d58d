//! Read-only queries of the key table.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use bson::Bson;
use postrider_outbox::ids::RecordId;
use postrider_outbox::position::{IndexPlace, IndexRange, Position};
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::{DeadBlocker, MAX_KEYS_BYTES, SkippedKeys};

use crate::blocker::{BlockReason, Blocker, KeyBlock};
use crate::key_table::KeyTable;
use crate::key_table::dead::stamped_behind;

/// Keys that one read is asked to skip, approximately: as many as the server turns into index
/// bounds in a millisecond or two.
const MAX_SKIPPED_KEYS: usize = 2_000;

/// A blocked key, for operators.
#[derive(Clone, Debug)]
pub struct BlockedKey {
    /// The key, or the record without one.
    pub lane: LaneKey,
    /// The reason.
    pub reason: BlockReason,
    /// The `_id` of the record that it waits for.
    pub blocker: RecordId,
    /// The details.
    pub wait: KeyBlock,
}

impl KeyTable {
    /// Returns the partitions in which keys may be registered.
    pub(crate) fn owned(&self) -> Vec<u8> {
        let entries = self.entries.lock();
        (0..=u8::MAX).filter(|partition| entries.owns(*partition)).collect()
    }

    /// Returns the partitions in which anything is or may be in flight.
    pub fn partitions_in_flight(&self) -> [bool; 256] {
        let entries = self.entries.lock();
        let mut in_flight = entries.owned;
        let quarantined = entries.quarantined.values().map(|wait| wait.blocker.partition);
        for partition in entries.lanes.values().map(|lane| lane.partition).chain(quarantined) {
            in_flight[usize::from(partition)] = true;
        }
        in_flight
    }

    /// Returns some leased records, in the order of the text of their ids.
    pub fn sample_in_flight(&self, count: usize) -> Vec<RecordId> {
        let mut ids: Vec<RecordId> =
            self.entries.lock().lanes.values().flat_map(|lane| lane.in_flight()).collect();
        ids.sort_by_cached_key(ToString::to_string);
        ids.truncate(count);
        ids
    }

    /// Returns the keys in flight or in quarantine.
    pub fn taken_keys(&self) -> HashSet<LaneKey> {
        let entries = self.entries.lock();
        entries.lanes.keys().chain(entries.quarantined.keys()).cloned().collect()
    }

    /// Returns this many keys behind the given place, in the order of places, that wait for a
    /// record which a later read can be compared with. Returns also the place to continue behind,
    /// if any.
    pub fn comparable_blockers(
        &self,
        from: Option<&IndexPlace>,
        count: usize,
    ) -> (Vec<(LaneKey, Blocker)>, Option<IndexPlace>) {
        let entries = self.entries.lock();
        let (mut found, mut bytes) = (Vec::new(), 0);
        for place in entries.positions.range((stamped_behind(from), Bound::Unbounded)) {
            let key = LaneKey::Keyed(place.1.clone());
            let Some(wait) = entries.block_of(&key) else { continue };
            if wait.blocker.is_comparable() {
                bytes += key.as_str().len();
                found.push((key, wait.blocker.clone()));
            }
            if found.len() >= count || bytes >= MAX_KEYS_BYTES {
                return (found, Some(place.clone()));
            }
        }
        (found, None)
    }

    /// Returns some of the blocked records without a key, from this one on. No round of reads meets
    /// them while the stream carries the records.
    pub(crate) fn comparable_singles(&self, from: usize, count: usize) -> Vec<(LaneKey, Blocker)> {
        let entries = self.entries.lock();
        let singles = entries.blocked.iter().filter(|(key, wait)| {
            matches!(key, LaneKey::Single(_)) && wait.blocker.is_comparable() && entries.follows
        });
        let some = singles.skip(from).take(count);
        some.map(|(key, wait)| (key.clone(), wait.blocker.clone())).collect()
    }

    /// Returns how many keys dead records block.
    pub(crate) fn dead_count(&self) -> usize {
        self.entries.lock().dead.len()
    }

    /// Returns whether there are more keys that dead records block than are remembered.
    pub(crate) fn dead_overflows(&self) -> bool {
        self.entries.lock().dead.overflows()
    }

    /// Returns this many keys that dead records block, behind the given place. Returns also the place
    /// to continue behind, if any.
    pub(crate) fn dead_blocked(
        &self,
        from: Option<&IndexPlace>,
        count: usize,
    ) -> (Vec<Arc<str>>, Option<IndexPlace>) {
        self.entries.lock().dead.some(from, count)
    }

    /// Returns blocked keys, up to `limit`, or one key.
    pub fn blocked_keys(&self, key: Option<&str>, limit: usize) -> Vec<BlockedKey> {
        let entries = self.entries.lock();
        let is_requested = |lane: &LaneKey| key.is_none_or(|key| lane.as_str() == key);
        let of_dead = entries.dead.iter().filter(|(name, _)| key.is_none_or(|key| key == &***name));
        let of_dead = of_dead.map(|(key, dead)| {
            let DeadBlocker { id, partition } = dead.blocker.clone();
            let (lane, reason) = (LaneKey::Keyed(key.clone()), BlockReason::Blocked);
            let mut wait = KeyBlock::new(reason, Blocker::dead(id.clone(), partition), None);
            wait.since = dead.since;
            BlockedKey { lane, reason, blocker: id, wait }
        });
        let waits = entries
            .blocked
            .iter()
            .chain(&entries.quarantined)
            .filter(|(lane, _)| is_requested(lane));
        let waits = waits.map(|(lane, wait)| {
            let (reason, blocker) = (wait.reason, wait.blocker.id.clone());
            BlockedKey { lane: lane.clone(), reason, blocker, wait: wait.clone() }
        });
        // They may be very many, and hide the others.
        waits.chain(of_dead).take(limit).collect()
    }

    /// Returns the keys that a page from there on can skip.
    pub fn keys_to_skip(&self, from: &Position) -> SkippedKeys {
        let entries = self.entries.lock();
        let mut over = SkippedKeys::default();
        let mut bytes = 0;
        let (first, mut last) = (from.place(), None);
        let is_on_the_way = |place: &&IndexPlace| {
            (place.0 == IndexRange::Unstamped) == (first.0 == IndexRange::Unstamped)
        };
        let places =
            in_order(entries.positions.range(first.clone()..), entries.dead.places_from(&first));
        for place in places.take_while(is_on_the_way) {
            let is_full = over.keys.len() >= MAX_SKIPPED_KEYS || bytes >= MAX_KEYS_BYTES / 2;
            if is_full {
                over.until = last;
                break;
            }
            bytes += place.1.len();
            over.keys.push(Bson::String(place.1.to_string()));
            last = Some(place.clone());
        }
        over
    }

    /// Returns the blockers of some keys that wait for this reason.
    pub fn blockers(&self, reason: BlockReason, limit: usize) -> Vec<RecordId> {
        let entries = self.entries.lock();
        let waits = entries.blocked.values().chain(entries.quarantined.values());
        let waits = waits.filter(|wait| wait.reason == reason).take(limit);
        waits.map(|wait| wait.blocker.id.clone()).collect()
    }

    /// Returns how many keys are blocked for each reason.
    pub fn counts_by_reason(&self) -> Vec<(BlockReason, usize)> {
        let entries = self.entries.lock();
        let mut counts: HashMap<BlockReason, usize> = HashMap::new();
        for wait in entries.blocked.values() {
            *counts.entry(wait.reason).or_default() += 1;
        }
        counts.insert(BlockReason::Quarantined, entries.quarantined.len());
        counts.insert(BlockReason::Blocked, entries.dead.len());
        let count = |reason| counts.get(&reason).copied().unwrap_or(0);
        BlockReason::ALL.map(|reason| (reason, count(reason))).to_vec()
    }

    /// Returns whether more keys may be blocked than are counted.
    pub fn counts_are_at_least(&self) -> bool {
        self.entries.lock().is_full()
    }
}

/// Merges two sequences in their order.
fn in_order<'a, T: Ord + 'a>(
    one: impl Iterator<Item = &'a T>,
    other: impl Iterator<Item = &'a T>,
) -> impl Iterator<Item = &'a T> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(first), Some(second)) if first <= second => one.next(),
        (Some(_), None) => one.next(),
        _ => other.next(),
    })
}
