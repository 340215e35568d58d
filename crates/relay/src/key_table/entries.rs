//! The entries of the key table, and the rules by which they change.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bson::Timestamp;
use postrider_outbox::ids::RecordId;
use postrider_outbox::position::{IndexPlace, IndexRange};
use postrider_outbox::record::{LaneKey, Record};
use postrider_outbox::snapshot::DeadBlocker;

use crate::blocker::{Blocker, KeyBlock};
use crate::key_table::dead::DeadBlocked;
use crate::lane::Lane;
use crate::partition;

/// Other blocks that are remembered at most, some 40 MB; a scan finds a forgotten one again.
const MAX_REMEMBERED: usize = 100_000;

/// The entries. A key is in at most one of the first four maps.
#[derive(Debug)]
pub(super) struct Entries {
    /// In which partitions keys may be registered as in flight or quarantined.
    pub(super) owned: [bool; 256],
    pub(super) lanes: HashMap<LaneKey, Arc<Lane>>,
    /// Keys that wait for their turn in quarantine.
    pub(super) quarantined: HashMap<LaneKey, KeyBlock>,
    pub(super) blocked: HashMap<LaneKey, KeyBlock>,
    /// Keys that dead records block.
    pub(super) dead: DeadBlocked,
    /// The keys of the other maps by their place in `lane_idx`. (A record that its producer has put
    /// into another partition is not skipped there.)
    pub(super) positions: BTreeSet<IndexPlace>,
    /// No block ends before.
    pub(super) next_due: Option<Instant>,
    pub(super) recoveries: Recoveries,
    /// Whether the change stream carries the records, or is about to. Then no key is released
    /// before its pending records are known.
    pub(super) follows: bool,
    /// Keys that must be read before any of their records is acquired; only while it `follows`.
    pub(super) pending_scans: HashMap<LaneKey, PendingScan>,
    /// The latest withheld event of each key: a read counts at this moment or later.
    pub(super) withheld: HashMap<LaneKey, Timestamp>,
    /// In which partitions keys have records, other than the hash of the key.
    pub(super) strays: HashMap<LaneKey, Strays>,
    /// How often such a partition was recorded.
    pub(super) stray_count: StrayCount,
    /// Whether there ever was one.
    pub(super) has_strays: bool,
    /// Keys whose partitions a pass has not shown since it read them: all their partitions must be
    /// read.
    pub(super) unplaced: HashSet<LaneKey>,
    /// When keys were read: their events up to then are known.
    pub(super) covered: HashMap<LaneKey, Timestamp>,
    /// Whether a block was not recorded for lack of room.
    pub(super) is_over_capacity: bool,
    /// Whether everything was read since it follows: the stream carries all records.
    pub(super) is_live: bool,
    /// How often it began or ended to follow: earlier reads say nothing about the time after.
    pub(super) period: LivePeriod,
    /// The latest event of all.
    pub(super) handled_until: Option<Timestamp>,
}

/// How often some sink came up: a sink that was found down before the latest time may be up now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recoveries(pub(super) u64);

/// The period between two changes of what finds the records: rotations or the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LivePeriod(u64);

impl LivePeriod {
    /// Returns the following period.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// How often a key was found with records in a partition other than the hash of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StrayCount(pub(super) u64);

/// The partitions other than the hash of the key in which a key has records.
#[derive(Debug, Default)]
pub(super) struct Strays {
    pub(super) partitions: BTreeSet<u8>,
    /// The latest time that one was recorded: a read that began before did not cover it.
    pub(super) noted: StrayCount,
}

/// The state of the key table when a scan begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanStart {
    pub(crate) period: LivePeriod,
    pub(super) strays: StrayCount,
    /// Whether the stream carries the records, or is about to.
    pub(crate) follows: bool,
    /// The latest event that was handled.
    pub(crate) handled_until: Option<Timestamp>,
}

/// When a key was read, and the state of the table when that read began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScanPoint {
    pub(crate) at: Timestamp,
    pub(crate) start: ScanStart,
}

/// Where a key, or a record without one, must be read.
#[derive(Clone, Debug)]
pub(super) struct PendingScan {
    pub(super) partition: u8,
    pub(super) id: RecordId,
    /// Whether a read is under way.
    pub(super) is_requested: bool,
    /// A read counts if it shows this event, and so all before it.
    pub(super) since: Option<Timestamp>,
}

impl Default for Entries {
    fn default() -> Self {
        Self {
            owned: [false; 256],
            lanes: HashMap::new(),
            quarantined: HashMap::new(),
            blocked: HashMap::new(),
            dead: DeadBlocked::default(),
            positions: BTreeSet::new(),
            next_due: None,
            recoveries: Recoveries::default(),
            follows: false,
            pending_scans: HashMap::new(),
            withheld: HashMap::new(),
            strays: HashMap::new(),
            stray_count: StrayCount::default(),
            has_strays: false,
            unplaced: HashSet::new(),
            covered: HashMap::new(),
            is_over_capacity: false,
            is_live: false,
            period: LivePeriod::default(),
            handled_until: None,
        }
    }
}

impl Entries {
    pub(super) fn owns(&self, partition: u8) -> bool {
        self.owned[usize::from(partition)]
    }

    /// Removes the keys that wait in partitions of other instances.
    pub(super) fn remove_foreign(&mut self) {
        let held = self.blocked.iter().map(|(key, wait)| match key {
            LaneKey::Keyed(name) => (key, partition::of_key(name)),
            LaneKey::Single(_) => (key, wait.blocker.partition),
        });
        let quarantined = self.quarantined.iter().map(|(key, wait)| (key, wait.blocker.partition));
        let foreign = held.chain(quarantined).filter(|(_, partition)| !self.owns(*partition));
        let foreign = foreign.map(|(key, _)| key.clone());
        let dead = self.dead.iter().filter(|(key, _)| !self.owns(partition::of_key(key)));
        let dead = dead.map(|(key, _)| LaneKey::Keyed(key.clone()));
        let foreign: Vec<LaneKey> = foreign.chain(dead).collect();
        foreign.iter().for_each(|key| self.remove(key));
    }

    pub(super) fn index(&mut self, key: &LaneKey) {
        if let LaneKey::Keyed(name) = key {
            self.positions.extend(IndexRange::both_of(name).map(|range| (range, name.clone())));
        }
        self.skipped_from_now_on(key);
    }

    /// Notes that the remaining pages of a pass skip a key, in any partition.
    fn skipped_from_now_on(&mut self, key: &LaneKey) {
        if self.follows && self.has_strays && !self.is_live && matches!(key, LaneKey::Keyed(_)) {
            self.unplaced.insert(key.clone());
            // A read of the key that is under way does not cover them.
            self.stray_count.0 += 1;
            self.strays.entry(key.clone()).or_default().noted = self.stray_count;
        }
    }

    pub(super) fn block(&mut self, key: LaneKey, mut wait: KeyBlock) {
        let before = self.blocked.get(&key);
        if self.lanes.contains_key(&key) || self.quarantined.contains_key(&key) {
            return;
        }
        if before.is_none() && self.blocked.len() >= MAX_REMEMBERED {
            self.is_over_capacity = true;
            return;
        }
        if let Some(before) = before.filter(|before| before.blocker.id == wait.blocker.id) {
            wait.since = before.since;
        }
        self.next_due = match (self.next_due, wait.until) {
            (Some(due), Some(until)) => Some(due.min(until)),
            (due, until) => due.or(until),
        };
        self.dead.remove(&key);
        self.index(&key);
        self.pending_scans.remove(&key);
        self.blocked.insert(key, wait);
    }

    /// Returns whether a key waits for exactly this head, for a reason that only the relay knows.
    pub(super) fn is_blocked_by_relay(
        &self,
        key: &LaneKey,
        head: impl FnOnce() -> Blocker,
    ) -> bool {
        let wait = self.blocked.get(key).filter(|wait| wait.reason.is_of_the_relay());
        wait.is_some_and(|wait| wait.blocker.may_be(&head()))
    }

    pub(super) fn register(&mut self, lane: &Arc<Lane>, head: &Record) -> bool {
        let key = &lane.key;
        if !self.owns(lane.partition)
            || self.lanes.contains_key(key)
            || self.quarantined.contains_key(key)
            || self.is_blocked_by_relay(key, || Blocker::of(head))
        {
            return false;
        }
        self.blocked.remove(key);
        self.dead.remove(key);
        self.pending_scans.remove(key);
        self.index(key);
        self.lanes.insert(key.clone(), lane.clone());
        true
    }

    /// Returns whether a read of a key shows all its withheld events.
    pub(super) fn is_conclusive(&self, key: &LaneKey, read: ScanPoint) -> bool {
        let shows = |event: &Timestamp| *event <= read.at;
        let is_everywhere =
            self.strays.get(key).is_none_or(|strays| strays.noted <= read.start.strays);
        self.follows
            && self.period == read.start.period
            && is_everywhere
            && self.withheld.get(key).is_none_or(shows)
            && self.pending_scans.get(key).is_some_and(|one| one.since.as_ref().is_none_or(shows))
    }

    pub(super) fn is_tracked(&self, key: &LaneKey) -> bool {
        self.is_registered(key) || self.pending_scans.contains_key(key)
    }

    fn is_registered(&self, key: &LaneKey) -> bool {
        self.lanes.contains_key(key) || self.waits(key)
    }

    /// Returns whether a key is blocked, or in quarantine.
    pub(super) fn waits(&self, key: &LaneKey) -> bool {
        self.block_of(key).is_some() || self.dead.get(key).is_some()
    }

    /// Returns the partition and the record of a registered key.
    pub(super) fn location(&self, key: &LaneKey) -> Option<(u8, RecordId)> {
        if let Some(lane) = self.lanes.get(key) {
            return Some((lane.partition, lane.single()));
        }
        if let Some(dead) = self.dead.get(key) {
            return Some((dead.blocker.partition, dead.blocker.id.clone()));
        }
        let wait = self.block_of(key)?;
        Some((wait.blocker.partition, wait.blocker.id.clone()))
    }

    /// Removes a key whose pending records are not known: while the stream carries the records, it
    /// must be read.
    pub(super) fn release(&mut self, key: &LaneKey) {
        let place = self.location(key).filter(|_| self.follows);
        self.remove(key);
        if let Some((partition, id)) = place {
            self.require_scan(key.clone(), partition, id);
        }
    }

    /// Notes a partition in which a key has records, if that is not the hash of the key.
    pub(super) fn record_stray(&mut self, key: &LaneKey, partition: u8) {
        let LaneKey::Keyed(name) = key else { return };
        self.has_strays |= partition != partition::of_key(name);
        if self.follows && partition != partition::of_key(name) {
            self.is_over_capacity |= self.strays.len() >= MAX_REMEMBERED;
            let strays = self.strays.entry(key.clone()).or_default();
            if strays.partitions.insert(partition) {
                self.stray_count.0 += 1;
                strays.noted = self.stray_count;
                // Its reads did not cover that partition.
                self.covered.remove(key);
            }
        }
    }

    pub(super) fn strays_of(&self, key: &LaneKey) -> BTreeSet<u8> {
        self.strays.get(key).map(|strays| strays.partitions.clone()).unwrap_or_default()
    }

    pub(super) fn require_scan(&mut self, key: LaneKey, partition: u8, id: RecordId) {
        self.record_stray(&key, partition);
        let is_registered = self.is_registered(&key);
        let strays = self.strays_of(&key);
        let own = match &key {
            LaneKey::Keyed(name) => partition::of_key(name),
            LaneKey::Single(_) => partition,
        };
        let all = [partition, own].into_iter().chain(strays);
        let ours = all.into_iter().find(|partition| self.owns(*partition));
        if let Some(partition) = ours.filter(|_| self.follows && !is_registered) {
            let since = self.handled_until;
            let unscanned = PendingScan { partition, id, is_requested: false, since };
            self.pending_scans.entry(key).or_insert(unscanned);
        }
    }

    /// Blocks keys by their dead records. Returns whether there was room for all.
    pub(super) fn block_by_dead(&mut self, keys: Vec<(LaneKey, DeadBlocker)>) -> bool {
        let mut has_room = true;
        for (lane, dead) in keys {
            let LaneKey::Keyed(key) = &lane else { continue };
            self.record_stray(&lane, dead.partition);
            // (Partitions may be lost while a scan reads.)
            let places = [partition::of_key(key), dead.partition];
            let is_ours = places.into_iter().chain(self.strays_of(&lane)).any(|it| self.owns(it));
            if !is_ours || self.lanes.contains_key(&lane) || self.quarantined.contains_key(&lane) {
                continue;
            }
            if !self.dead.has_room_for(key, &dead) {
                self.is_over_capacity = true;
                has_room = false;
                continue;
            }
            if self.blocked.contains_key(&lane) {
                self.remove(&lane);
            }
            self.skipped_from_now_on(&lane);
            self.pending_scans.remove(&lane);
            self.dead.insert(key.clone(), dead);
        }
        has_room
    }

    /// Returns whether there was no room for all blocked keys: they are at least as many as these.
    pub(super) fn is_full(&self) -> bool {
        self.blocked.len() >= MAX_REMEMBERED || self.dead.is_cut()
    }

    /// Returns the block of a key, including a wait for its turn in quarantine; not by a dead
    /// record.
    pub(super) fn block_of(&self, key: &LaneKey) -> Option<&KeyBlock> {
        self.blocked.get(key).or_else(|| self.quarantined.get(key))
    }

    pub(super) fn remove(&mut self, key: &LaneKey) {
        self.lanes.remove(key);
        self.quarantined.remove(key);
        self.blocked.remove(key);
        self.dead.remove(key);
        if let LaneKey::Keyed(key) = key {
            for range in IndexRange::both_of(key) {
                self.positions.remove(&(range, key.clone()));
            }
        }
    }

    pub(super) fn release_blocked(&mut self, which: impl Fn(&KeyBlock) -> bool) -> bool {
        let released: Vec<LaneKey> = self
            .blocked
            .iter()
            .filter(|(_, wait)| which(wait))
            .map(|(key, _)| key.clone())
            .collect();
        released.iter().for_each(|key| self.release(key));
        !released.is_empty()
    }
}
