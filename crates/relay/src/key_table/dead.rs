//! The keys that dead records block (`relay.on_dead = "block"`), in a form of their own: they may be
//! very many, and nothing but a change of their records ends their wait.

use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

use postrider_outbox::ids::RecordId;
use postrider_outbox::position::{IndexPlace, IndexRange};
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::DeadBlocker;

/// Keys that are remembered at most, some 80 MB; a scan finds a forgotten one again.
pub(super) const MAX_DEAD_BLOCKED: usize = 200_000;

/// The block of a key by a dead record.
#[derive(Clone, Debug)]
pub(super) struct DeadBlock {
    pub(super) blocker: DeadBlocker,
    /// Since when the relay knows.
    pub(super) since: Instant,
}

/// The keys that dead records block.
#[derive(Debug, Default)]
pub(super) struct DeadBlocked {
    blocks: HashMap<Arc<str>, DeadBlock>,
    /// Their places in `lane_idx`.
    positions: BTreeSet<IndexPlace>,
    by_blocker: HashMap<RecordId, Arc<str>>,
    /// Keys whose records were not read again since they were added.
    unverified: Vec<Arc<str>>,
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

    /// Adds a key, or replaces its blocker.
    pub(super) fn insert(&mut self, key: Arc<str>, blocker: DeadBlocker) {
        let before = self.blocks.get(&key);
        if before.is_some_and(|before| before.blocker == blocker) {
            return;
        }
        let since = before.map_or_else(Instant::now, |before| before.since);
        self.remove(&LaneKey::Keyed(key.clone()));
        self.positions.extend(IndexRange::both_of(&key).map(|range| (range, key.clone())));
        if let Some(other) = self.by_blocker.insert(blocker.id.clone(), key.clone()) {
            // The record has moved to this key.
            self.unverified.push(other);
        }
        self.unverified.push(key.clone());
        self.blocks.insert(key, DeadBlock { blocker, since });
    }

    /// Removes a key. Returns its block.
    pub(super) fn remove(&mut self, key: &LaneKey) -> Option<DeadBlock> {
        let LaneKey::Keyed(key) = key else { return None };
        let block = self.blocks.remove(key)?;
        for range in IndexRange::both_of(key) {
            self.positions.remove(&(range, key.clone()));
        }
        if self.by_blocker.get(&block.blocker.id) == Some(key) {
            self.by_blocker.remove(&block.blocker.id);
        }
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
    ) -> (Vec<(Arc<str>, RecordId)>, Option<IndexPlace>) {
        let places = self.positions.range((stamped_behind(from), Bound::Unbounded)).take(count);
        let places: Vec<&IndexPlace> = places.collect();
        let next = places.last().filter(|_| places.len() == count);
        let keys = places.iter().map(|(_, key)| key);
        (self.with_blockers(keys), next.map(|place| (*place).clone()))
    }

    /// Returns the keys that these records block.
    pub(super) fn blocked_by(&self, ids: &[RecordId]) -> Vec<(Arc<str>, RecordId)> {
        self.with_blockers(ids.iter().filter_map(|id| self.by_blocker.get(id)))
    }

    /// Returns the keys whose records were not read again since they were added, or since the last
    /// call.
    pub(super) fn take_unverified(&mut self) -> Vec<(Arc<str>, RecordId)> {
        let keys = std::mem::take(&mut self.unverified);
        self.with_blockers(keys.iter())
    }

    /// Notes that the records of these keys must be read again.
    pub(super) fn verify_again(&mut self, keys: impl Iterator<Item = Arc<str>>) {
        self.unverified.extend(keys);
    }

    fn with_blockers<'a>(
        &self,
        keys: impl Iterator<Item = &'a Arc<str>>,
    ) -> Vec<(Arc<str>, RecordId)> {
        let block = |key: &Arc<str>| {
            let id = self.blocks.get(key)?.blocker.id.clone();
            Some((key.clone(), id))
        };
        keys.filter_map(block).collect()
    }
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

    fn blocker(id: i64) -> DeadBlocker {
        DeadBlocker { id: RecordId::Int(id), partition: 0 }
    }

    fn names(keys: &[(Arc<str>, RecordId)]) -> Vec<&str> {
        keys.iter().map(|(key, _)| key.as_ref()).collect()
    }

    #[test]
    fn keys_are_read_in_pages_and_each_once() {
        let mut dead = DeadBlocked::default();
        let all: BTreeSet<String> = (0..25).map(|n| format!("k{n}")).collect();
        (0..25).for_each(|n| dead.insert(format!("k{n}").into(), blocker(n)));

        let (mut seen, mut from, mut pages) = (Vec::new(), None, 0);
        loop {
            let (some, next) = dead.some(from.as_ref(), 10);
            seen.extend(some.into_iter().map(|(key, _)| key.to_string()));
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
        let mut dead = DeadBlocked::default();
        dead.insert("k".into(), blocker(1));

        assert!(dead.remove(&key("k")).is_some() && dead.remove(&key("k")).is_none());

        assert_eq!(dead.len(), 0);
        assert!(dead.blocked_by(&[RecordId::Int(1)]).is_empty());
        assert!(dead.take_unverified().is_empty());
        assert_eq!(dead.places_from(&(IndexRange::Unstamped, "".into())).count(), 0);
    }

    #[test]
    fn key_is_unverified_once_until_its_blocker_changes() {
        let mut dead = DeadBlocked::default();
        dead.insert("k".into(), blocker(1));
        assert_eq!(names(&dead.take_unverified()), ["k"]);

        dead.insert("k".into(), blocker(1));
        assert!(dead.take_unverified().is_empty());
        dead.insert("k".into(), blocker(2));

        assert_eq!(names(&dead.take_unverified()), ["k"]);
        assert!(dead.blocked_by(&[RecordId::Int(1)]).is_empty());
        assert_eq!(names(&dead.blocked_by(&[RecordId::Int(2)])), ["k"]);
    }

    #[test]
    fn record_that_moves_to_another_key_leaves_the_first_unverified() {
        let mut dead = DeadBlocked::default();
        dead.insert("old".into(), blocker(1));
        dead.take_unverified();

        dead.insert("new".into(), blocker(1));

        assert_eq!(names(&dead.take_unverified()), ["old", "new"]);
        dead.remove(&key("old"));
        assert_eq!(names(&dead.blocked_by(&[RecordId::Int(1)])), ["new"]);
    }
}
