//! What others read of the book.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;

use bson::Bson;

use crate::ids::RecordId;
use crate::outbox::position::{Place, Position, Range};
use crate::outbox::record::LaneKey;
use crate::outbox::snapshot::{KEYS_BYTES, PassOver};
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::hands::Hands;

/// Keys that one read is asked to pass over at about: what the server turns into index bounds
/// in a millisecond or two.
const PASSED_OVER: usize = 2_000;

/// A blocked key, for operators.
#[derive(Clone, Debug)]
pub struct BlockedKey {
    /// The key, or the record without one.
    pub lane: LaneKey,
    /// Why.
    pub reason: HoldReason,
    /// The `_id` of the record that it waits for.
    pub blocker: RecordId,
    /// The rest, where the relay knows more than the blocker.
    pub wait: Option<Wait>,
}

impl Hands {
    /// The partitions in which anything may be entered.
    pub(in crate::relay) fn owned(&self) -> Vec<u8> {
        let book = self.book();
        (0..=u8::MAX).filter(|partition| book.owns(*partition)).collect()
    }

    /// The partitions in which anything is in hand, or may be still.
    pub fn in_hand(&self) -> [bool; 256] {
        let book = self.book();
        let mut in_hand = book.owned;
        let suspects = book.suspects.values().map(|wait| wait.blocker.partition);
        for partition in book.busy.values().map(|lane| lane.partition).chain(suspects) {
            in_hand[usize::from(partition)] = true;
        }
        in_hand
    }

    /// Some records that are leased, in the order of their ids' text.
    pub fn some_in_hand(&self, count: usize) -> Vec<RecordId> {
        let mut ids: Vec<RecordId> =
            self.book().busy.values().flat_map(|lane| lane.in_hand()).collect();
        ids.sort_by_cached_key(ToString::to_string);
        ids.truncate(count);
        ids
    }

    /// The keys in hand, and those that wait for their turn to go alone.
    pub fn spoken_for(&self) -> HashSet<LaneKey> {
        let book = self.book();
        book.busy.keys().chain(book.suspects.keys()).cloned().collect()
    }

    /// The keys that wait for a record which a later read can be compared with, in the order of
    /// their places: so many behind this one. Answers also the place to go on behind, if any.
    pub fn waiting(
        &self,
        from: Option<&Place>,
        count: usize,
    ) -> (Vec<(LaneKey, Blocker)>, Option<Place>) {
        let book = self.book();
        let (mut found, mut bytes) = (Vec::new(), 0);
        // Each key once, by its partition.
        let first = (Range::Partition(0), "".into());
        let from = from.map_or(Bound::Included(first), |from| Bound::Excluded(from.clone()));
        for place in book.places.range((from, Bound::Unbounded)) {
            let key = LaneKey::Keyed(place.1.clone());
            let Some(wait) = book.wait(&key) else { continue };
            if wait.blocker.is_comparable() {
                bytes += key.as_str().len();
                found.push((key, wait.blocker.clone()));
            }
            if found.len() >= count || bytes >= KEYS_BYTES {
                return (found, Some(place.clone()));
            }
        }
        (found, None)
    }

    /// Some of the records without a key that wait, from this one of them on, which no round of reads
    /// meets while the stream carries the records.
    pub(in crate::relay) fn waiting_singles(
        &self,
        from: usize,
        count: usize,
    ) -> Vec<(LaneKey, Blocker)> {
        let book = self.book();
        let singles = book.held.iter().filter(|(key, wait)| {
            matches!(key, LaneKey::Single(_)) && wait.blocker.is_comparable() && book.follows
        });
        let some = singles.skip(from).take(count);
        some.map(|(key, wait)| (key.clone(), wait.blocker.clone())).collect()
    }

    /// The keys that the dead block, and by which record: those that a recheck compares by id.
    pub(in crate::relay) fn dead_blockers(&self) -> Vec<(LaneKey, Blocker)> {
        let book = self.book();
        let blocked = book.held.iter().filter(|(_, wait)| wait.reason == HoldReason::Blocked);
        blocked.map(|(key, wait)| (key.clone(), wait.blocker.clone())).collect()
    }

    /// Blocked keys, up to `limit`; one key where one is named.
    pub fn blocked_keys(&self, key: Option<&str>, limit: usize) -> Vec<BlockedKey> {
        let book = self.book();
        let is_asked = |lane: &LaneKey| key.is_none_or(|key| lane.as_str() == key);
        let of_dead = book.blocked.iter().filter(|(lane, _)| is_asked(lane));
        let of_dead = of_dead.map(|(lane, blocker)| {
            let (lane, blocker) = (lane.clone(), blocker.clone());
            BlockedKey { lane, reason: HoldReason::Blocked, blocker, wait: None }
        });
        let waits = book.held.iter().chain(&book.suspects).filter(|(lane, _)| is_asked(lane));
        let waits = waits.map(|(lane, wait)| {
            let (reason, blocker) = (wait.reason, wait.blocker.id.clone());
            BlockedKey { lane: lane.clone(), reason, blocker, wait: Some(wait.clone()) }
        });
        of_dead.chain(waits).take(limit).collect()
    }

    /// The keys that a page from there on need not show.
    pub fn passed_over(&self, from: &Position) -> PassOver {
        let book = self.book();
        let mut over = PassOver::default();
        let mut bytes = 0;
        let (first, mut last) = (from.place(), None);
        let is_on_the_way =
            |place: &&Place| (place.0 == Range::Unstamped) == (first.0 == Range::Unstamped);
        for place in book.places.range(first.clone()..).take_while(is_on_the_way) {
            let is_full = over.keys.len() >= PASSED_OVER || bytes >= KEYS_BYTES / 2;
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

    /// The blockers of some keys that wait for this reason.
    pub fn blockers(&self, reason: HoldReason, limit: usize) -> Vec<RecordId> {
        let book = self.book();
        let waits = book.held.values().chain(book.suspects.values());
        let waits = waits.filter(|wait| wait.reason == reason).take(limit);
        waits.map(|wait| wait.blocker.id.clone()).collect()
    }

    /// How many keys are blocked for each reason.
    pub fn held(&self) -> Vec<(HoldReason, usize)> {
        let book = self.book();
        let mut counts: HashMap<HoldReason, usize> = HashMap::new();
        for wait in book.held.values() {
            *counts.entry(wait.reason).or_default() += 1;
        }
        counts.insert(HoldReason::Suspect, book.suspects.len());
        *counts.entry(HoldReason::Blocked).or_default() += book.blocked.len();
        let count = |reason| counts.get(&reason).copied().unwrap_or(0);
        HoldReason::ALL.map(|reason| (reason, count(reason))).to_vec()
    }
}
