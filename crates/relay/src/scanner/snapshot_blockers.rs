//! What blocks keys, as of one snapshot.

use std::collections::HashMap;

use bson::Timestamp;
use postrider_outbox::record::LaneKey;
use postrider_outbox::snapshot::DeadBlocker;

use crate::blocker::Blocker;
use crate::partition;

/// The earliest `seq` of misplaced records by key; `None` where they have no `seq` either.
pub(super) type Earliest = HashMap<LaneKey, Option<Timestamp>>;

/// What blocks keys, as of one snapshot.
#[derive(Clone, Debug)]
pub(super) struct SnapshotBlockers {
    pub(super) misplaced: Earliest,
    /// Keys that a dead record blocks, and which; as far as read.
    pub(super) dead: HashMap<LaneKey, DeadBlocker>,
    /// Whether these are all misplaced records.
    pub(super) has_all_misplaced: bool,
    /// Whether these are all keys that dead records block.
    pub(super) has_all_dead: bool,
}

impl SnapshotBlockers {
    /// Creates the state in which nothing blocks any key.
    pub(super) fn none() -> Self {
        let (misplaced, dead) = (Earliest::new(), HashMap::new());
        Self { misplaced, dead, has_all_misplaced: true, has_all_dead: true }
    }

    /// Returns the keys of these partitions that have a record with an invalid partition, as far as
    /// read.
    pub(super) fn misplaced_within(&self, owned: &[u8]) -> Vec<(LaneKey, Blocker)> {
        let keys = self.misplaced.keys().filter_map(|lane| match lane {
            LaneKey::Keyed(key) => Some((lane, partition::of_key(key))),
            // Read by its id, whatever its partition.
            LaneKey::Single(_) => None,
        });
        let ours = keys.filter(|(_, partition)| owned.contains(partition));
        ours.map(|(lane, partition)| (lane.clone(), Blocker::unseen(partition))).collect()
    }
}
