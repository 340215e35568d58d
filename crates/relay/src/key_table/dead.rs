//! The keys that dead records block (`relay.on_dead = "block"`), in a form of their own: they may be
//! very many, and nothing but a change of their records ends their wait.

use std::collections::hash_map::RandomState;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasher;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use bson::Bson;
use postrider_outbox::ids::RecordId;
use postrider_outbox::position::{IndexPlace, IndexRange};
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::DeadBlocker;

/// Keys that are remembered at most, some 80 MB; a scan finds a forgotten one again.
pub(super) const MAX_DEAD_BLOCKED: usize = 200_000;

/// Bytes of the texts of keys and ids that are remembered at most: each may have many.
pub(super) const MAX_DEAD_BYTES: usize = 128 << 20;

/// The block of a key by a dead record.
#[derive(Clone, Debug)]
pub(super) struct DeadBlock {
    pub(super) blocker: DeadBlocker,
    /// Since when the relay knows.
    pub(super) since: Instant,
    /// Whether its records must be read again.
    is_unverified: bool,
}

/// The keys that dead records block.
#[derive(Debug, Default)]
pub(super) struct DeadBlocked {
    blocks: HashMap<Arc<str>, DeadBlock>,
    /// Their places in `lane_idx`.
    positions: BTreeSet<IndexPlace>,
    /// The keys by a hash of the `_id` of their blocker, which can be long. Several keys can have the
    /// same: a record that moves to another key leaves the first one behind.
    by_blocker: BTreeSet<(u64, Arc<str>)>,
    hasher: RandomState,
    /// Bytes of the texts of the keys and of the ids of their blockers.
    bytes: usize,
    /// Whether a key was left out for lack of room, since all were read.
    is_cut: bool,
    /// The keys whose records must be read again, the oldest first; `None` while all are read in
    /// rounds. (Some of them may be verified or removed meanwhile.)
    unverified: Option<VecDeque<Arc<str>>>,
}

impl DeadBlocked {
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn get(&self, key: &LaneKey) -> Option<&DeadBlock> {
        match key {
            LaneKey::Keyed(key) => self.blocks.get(key),
            LaneKey::Single(_) => None,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, &DeadBlock)> {
        self.blocks.iter()
    }

    /// Returns whether a key can be added, or get this blocker. Notes if it cannot.
    pub(super) fn has_room_for(&mut self, key: &str, blocker: &DeadBlocker) -> bool {
        let (keys, bytes) = match self.blocks.get(key) {
            Some(before) => (0, bytes_of(key, &before.blocker)),
            None => (1, 0),
        };
        let more = bytes_of(key, blocker).saturating_sub(bytes);
        let fits = more == 0 || self.bytes + more <= MAX_DEAD_BYTES;
        let has_room = fits && self.len() + keys <= MAX_DEAD_BLOCKED;
        self.is_cut |= !has_room;
        has_room
    }

    /// Returns whether keys were left out for lack of room, since all were read.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Returns whether keys were left out, and there is still no room.
    pub(super) fn overflows(&self) -> bool {
        self.is_cut && self.len() >= MAX_DEAD_BLOCKED
    }

    /// Notes that all were read, and that there was room for them.
    pub(super) fn has_all(&mut self) {
        self.is_cut = false;
    }

    /// Adds a key, or replaces its blocker, if there [is room](Self::has_room_for).
    pub(super) fn insert(&mut self, key: Arc<str>, blocker: DeadBlocker) {
        let before = self.blocks.get(&key);
        if before.is_some_and(|before| before.blocker == blocker) {
            return;
        }
        let since = before.map_or_else(Instant::now, |before| before.since);
        self.remove(&LaneKey::Keyed(key.clone()));
        self.positions.extend(IndexRange::both_of(&key).map(|range| (range, key.clone())));
        if !is_nameless(&blocker.id) {
            self.by_blocker.insert((self.hasher.hash_one(&blocker.id), key.clone()));
        }
        self.bytes += bytes_of(&key, &blocker);
        let block = DeadBlock { blocker, since, is_unverified: false };
        self.blocks.insert(key.clone(), block);
        self.verify([key]);
    }

    /// Removes a key. Returns its block.
    pub(super) fn remove(&mut self, key: &LaneKey) -> Option<DeadBlock> {
        let LaneKey::Keyed(key) = key else { return None };
        let block = self.blocks.remove(key)?;
        self.bytes -= bytes_of(key, &block.blocker);
        for range in IndexRange::both_of(key) {
            self.positions.remove(&(range, key.clone()));
        }
        self.by_blocker.remove(&(self.hasher.hash_one(&block.blocker.id), key.clone()));
        Some(block)
    }

    /// Returns the places of all keys from this one on.
    pub(super) fn places_from(&self, first: &IndexPlace) -> impl Iterator<Item = &IndexPlace> {
        self.positions.range(first.clone()..)
    }

    /// Returns this many keys behind the given place, each once, in the order of places. Returns
    /// also the place to continue behind, if any.
    pub(super) fn some(
        &self,
        from: Option<&IndexPlace>,
        count: usize,
    ) -> (Vec<Arc<str>>, Option<IndexPlace>) {
        let places = self.positions.range((stamped_behind(from), Bound::Unbounded)).take(count);
        let places: Vec<&IndexPlace> = places.collect();
        let next = places.last().filter(|_| places.len() == count);
        let keys = places.iter().map(|(_, key)| key.clone());
        (keys.collect(), next.map(|place| (*place).clone()))
    }

    /// Returns the keys that records with these ids block, and perhaps a few others. The keys of
    /// records without a readable id are read again later.
    pub(super) fn blocked_by(&mut self, ids: &[RecordId]) -> Vec<Arc<str>> {
        if ids.iter().any(is_nameless) {
            let nameless = self.blocks.iter().filter(|(_, block)| is_nameless(&block.blocker.id));
            let nameless: Vec<Arc<str>> = nameless.map(|(key, _)| key.clone()).collect();
            self.verify(nameless);
        }
        let keys_of = |id| {
            let hash = self.hasher.hash_one(id);
            let from = self.by_blocker.range((hash, "".into())..);
            from.take_while(move |(its, _)| *its == hash).map(|(_, key)| key.clone())
        };
        ids.iter().flat_map(keys_of).collect()
    }

    /// From now on notes which keys must be read again: first all.
    pub(super) fn verify_all(&mut self) {
        self.blocks.values_mut().for_each(|block| block.is_unverified = true);
        self.unverified = Some(self.blocks.keys().cloned().collect());
    }

    /// No longer notes which keys must be read again: all are.
    pub(super) fn stop_verifying(&mut self) {
        self.unverified = None;
    }

    /// Notes that the records of these keys must be read again.
    pub(super) fn verify(&mut self, keys: impl IntoIterator<Item = Arc<str>>) {
        let Some(unverified) = &mut self.unverified else { return };
        for key in keys {
            let block = self.blocks.get_mut(&key).filter(|block| !block.is_unverified);
            if let Some(block) = block {
                block.is_unverified = true;
                unverified.push_back(key);
            }
        }
    }

    /// Takes this many of the keys whose records must be read again.
    pub(super) fn take_unverified(&mut self, count: usize) -> Vec<Arc<str>> {
        let mut taken = Vec::new();
        while taken.len() < count
            && let Some(key) = self.unverified.as_mut().and_then(VecDeque::pop_front)
        {
            let block = self.blocks.get_mut(&key).filter(|block| block.is_unverified);
            if let Some(block) = block {
                block.is_unverified = false;
                taken.push(key);
            }
        }
        taken
    }

    /// Returns whether the records of any keys must be read again.
    pub(super) fn has_unverified(&self) -> bool {
        self.unverified.as_ref().is_some_and(|keys| !keys.is_empty())
    }
}

fn bytes_of(key: &str, blocker: &DeadBlocker) -> usize {
    let id = match &blocker.id {
        RecordId::String(text) => text.len(),
        RecordId::Other(value) => value.to_string().len(),
        RecordId::Uuid(_) | RecordId::ObjectId(_) | RecordId::Int(_) => 0,
    };
    key.len() + id
}

/// Returns whether the `_id` of a record cannot be read: all such records have this one.
fn is_nameless(id: &RecordId) -> bool {
    matches!(id, RecordId::Other(value) if **value == Bson::Null)
}

/// Returns the start of the places behind this one, or of all: a key has one in its partition.
pub(super) fn stamped_behind(from: Option<&IndexPlace>) -> Bound<IndexPlace> {
    let first = (IndexRange::Partition(0), "".into());
    from.map_or(Bound::Included(first), |from| Bound::Excluded(from.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> LaneKey {
        LaneKey::Keyed(name.into())
    }

    fn blocker(id: impl Into<Bson>) -> DeadBlocker {
        DeadBlocker { id: RecordId::from(id.into()), partition: 0 }
    }

    fn names(keys: &[Arc<str>]) -> Vec<&str> {
        keys.iter().map(AsRef::as_ref).collect()
    }

    /// While a stream reports changes.
    fn watched() -> DeadBlocked {
        let mut dead = DeadBlocked::default();
        dead.verify_all();
        dead
    }

    fn named(dead: &mut DeadBlocked, id: impl Into<Bson>) -> Vec<String> {
        let keys = dead.blocked_by(&[RecordId::from(id.into())]);
        keys.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn keys_are_read_in_pages_and_each_once() {
        let mut dead = DeadBlocked::default();
        let all: BTreeSet<String> = (0..25).map(|n| format!("k{n}")).collect();
        (0..25).for_each(|n| dead.insert(format!("k{n}").into(), blocker(n)));

        let (mut seen, mut from, mut pages) = (Vec::new(), None, 0);
        loop {
            let (some, next) = dead.some(from.as_ref(), 10);
            seen.extend(some.into_iter().map(|key| key.to_string()));
            pages += 1;
            match next {
                Some(_) => from = next,
                None => break,
            }
        }

        assert_eq!((seen.len(), pages), (25, 3));
        assert_eq!(BTreeSet::from_iter(seen), all);
    }

    #[test]
    fn removed_key_leaves_nothing_behind() {
        let mut dead = watched();
        dead.insert("k".into(), blocker(1));

        assert!(dead.remove(&key("k")).is_some() && dead.remove(&key("k")).is_none());

        assert_eq!(dead.len(), 0);
        assert!(named(&mut dead, 1).is_empty() && dead.by_blocker.is_empty());
        assert!(dead.take_unverified(9).is_empty() && !dead.has_unverified());
        assert_eq!(dead.places_from(&(IndexRange::Unstamped, "".into())).count(), 0);
    }

    #[test]
    fn key_is_unverified_once_until_its_blocker_changes() {
        let mut dead = watched();
        dead.insert("k".into(), blocker(1));
        assert_eq!(names(&dead.take_unverified(9)), ["k"]);

        dead.insert("k".into(), blocker(1));
        assert!(dead.take_unverified(9).is_empty());
        dead.insert("k".into(), blocker(2));
        dead.verify(["k".into(), "unknown".into()]);

        assert_eq!(names(&dead.take_unverified(9)), ["k"]);
        assert!(dead.take_unverified(9).is_empty());
        assert!(named(&mut dead, 1).is_empty());
        assert_eq!(named(&mut dead, 2), ["k"]);
    }

    #[test]
    fn long_keys_and_ids_fill_the_table_before_it_has_many() {
        let long = |n: usize| blocker("i".repeat(MAX_DEAD_BYTES / 4 * n - 1));
        let mut dead = DeadBlocked::default();
        dead.insert("a".into(), long(2));
        assert!(dead.has_room_for("b", &long(2)) && !dead.is_cut());
        dead.insert("b".into(), long(2));

        assert!(!dead.has_room_for("c", &blocker(1)) && dead.is_cut());
        assert!(!dead.has_room_for("b", &long(3)));
        assert!(dead.has_room_for("b", &long(1)) && dead.is_cut());
        dead.insert("b".into(), long(1));

        assert!(dead.has_room_for("c", &long(1)));
        dead.has_all();
        assert!(!dead.is_cut());
        assert!(["a", "b"].iter().all(|name| dead.remove(&key(name)).is_some()));
        assert_eq!(dead.bytes, 0);
    }

    /// What has changed before the stream was opened is not in it.
    #[test]
    fn all_keys_are_unverified_in_parts_once_a_stream_is_open() {
        let mut dead = DeadBlocked::default();
        (0..25).for_each(|n| dead.insert(format!("k{n}").into(), blocker(n)));
        assert!(!dead.has_unverified(), "they are read in rounds");

        dead.verify_all();
        dead.insert("added".into(), blocker(25));
        let mut parts = Vec::new();
        while dead.has_unverified() {
            parts.push(dead.take_unverified(10));
        }

        assert_eq!(parts.iter().map(Vec::len).collect::<Vec<_>>(), [10, 10, 6]);
        assert_eq!(parts.concat().iter().collect::<BTreeSet<_>>().len(), 26);
        assert_eq!(parts.concat().last().map(AsRef::as_ref), Some("added"));
        dead.stop_verifying();
        dead.verify(["added".into()]);
        assert!(!dead.has_unverified());
    }

    /// It was given another key, and then the first one again, while scans had read it in either.
    #[test]
    fn record_names_each_key_that_it_was_found_to_block() {
        for first in ["old", "new"] {
            let mut dead = watched();
            dead.insert("old".into(), blocker(1));
            dead.insert("new".into(), blocker(1));
            assert_eq!(named(&mut dead, 1), ["new", "old"]);

            dead.remove(&key(first));

            let other = if first == "old" { "new" } else { "old" };
            assert_eq!(named(&mut dead, 1), [other]);
        }
    }

    /// One of them may be the one that has changed.
    #[test]
    fn keys_of_records_without_a_readable_id_are_unverified_when_one_changes() {
        let mut dead = watched();
        dead.insert("named".into(), blocker(1));
        (0..3).for_each(|n| dead.insert(format!("k{n}").into(), blocker(Bson::Null)));
        assert_eq!(dead.take_unverified(9).len(), 4);

        for _ in 0..2 {
            assert!(named(&mut dead, Bson::Null).is_empty());
        }

        let mut unverified = dead.take_unverified(9);
        unverified.sort();
        assert_eq!(names(&unverified), ["k0", "k1", "k2"]);
    }
}
