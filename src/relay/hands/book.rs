//! The book itself: what is entered, and under which rules.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use bson::Timestamp;

use crate::ids::RecordId;
use crate::outbox::position::{Place, Range};
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::Dead;
use crate::partition;
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::lane::Lane;

/// Waits that are remembered at most, some 20 MB; one that is forgotten is met and noted again.
const REMEMBERED: usize = 100_000;

/// A key stands in one of the three.
#[derive(Debug)]
pub(super) struct Book {
    /// In which partitions anything may be entered as busy, or to become so.
    pub(super) owned: [bool; 256],
    pub(super) busy: HashMap<LaneKey, Arc<Lane>>,
    /// Those that wait for their turn to go alone.
    pub(super) suspects: HashMap<LaneKey, Wait>,
    pub(super) held: HashMap<LaneKey, Wait>,
    /// All keys by their places in `lane_idx`. (One that its producer has put elsewhere is not
    /// passed over where it is, and no more.)
    pub(super) places: BTreeSet<Place>,
    /// No wait ends before.
    pub(super) next_due: Option<Instant>,
    pub(super) openings: Openings,
    /// Which keys the dead block, as the latest rotation read them; for operators alone.
    pub(super) blocked: Vec<(LaneKey, RecordId)>,
    /// Whether the change stream carries the records, or is about to: no key is free then before
    /// what it has pending is known.
    pub(super) follows: bool,
    /// Keys that must be read before anything of theirs is taken; only while it `follows`.
    pub(super) unscanned: HashMap<LaneKey, Unscanned>,
    /// The latest event of each key that was not taken: a read counts at this moment or later.
    pub(super) withheld: HashMap<LaneKey, Timestamp>,
    /// In which partitions keys have records that are not the hash of the key.
    pub(super) strays: HashMap<LaneKey, Strays>,
    /// How often one of these was noted.
    pub(super) strays_noted: StraysNoted,
    /// Whether there ever was one.
    pub(super) has_strays: bool,
    /// Keys of which a pass has not shown in which partitions they have records, since it went over them:
    /// they are to be read in all.
    pub(super) unplaced: HashSet<LaneKey>,
    /// When keys were read: their events up to then say nothing new.
    pub(super) covered: HashMap<LaneKey, Timestamp>,
    /// Whether a wait was not noted for want of room.
    pub(super) is_overfull: bool,
    /// Whether everything was read since it follows: the stream carries all records.
    pub(super) is_live: bool,
    /// How often it began or ended to follow: what was read before says nothing of the time after.
    pub(super) period: Period,
    /// The latest event of all.
    pub(super) heard: Option<Timestamp>,
}

/// How often some sink came up: what was found paused before the latest time may not be so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Openings(pub(super) u64);

/// The time between two changes of what finds the records: rotations or the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::relay) struct Period(u64);

impl Period {
    /// The one that follows.
    pub(in crate::relay) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// How often a partition was noted in which a key has records that is not the hash of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StraysNoted(pub(super) u64);

/// The partitions in which a key has records, that are not the hash of the key.
#[derive(Debug, Default)]
pub(super) struct Strays {
    pub(super) partitions: BTreeSet<u8>,
    /// The latest that was noted: a read that was begun before has not looked there.
    pub(super) noted: StraysNoted,
}

/// What the book knows when a read is begun.
#[derive(Clone, Copy, Debug)]
pub(in crate::relay) struct Begun {
    pub(super) period: Period,
    pub(super) strays: StraysNoted,
    /// Whether the stream carries the records, or is about to.
    pub(in crate::relay) follows: bool,
    /// The latest event of all that were handled.
    pub(in crate::relay) heard: Option<Timestamp>,
}

/// When a key was read, and what was known when that was begun.
#[derive(Clone, Copy, Debug)]
pub(in crate::relay) struct Read {
    pub(in crate::relay) at: Timestamp,
    pub(in crate::relay) begun: Begun,
}

/// Where a key is to be read, or a record without one.
#[derive(Clone, Debug)]
pub(super) struct Unscanned {
    pub(super) partition: u8,
    pub(super) id: RecordId,
    /// Whether a read is under way.
    pub(super) is_asked: bool,
    /// A read counts that shows this event, and so all before it.
    pub(super) since: Option<Timestamp>,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            owned: [false; 256],
            busy: HashMap::new(),
            suspects: HashMap::new(),
            held: HashMap::new(),
            places: BTreeSet::new(),
            next_due: None,
            openings: Openings::default(),
            blocked: Vec::new(),
            follows: false,
            unscanned: HashMap::new(),
            withheld: HashMap::new(),
            strays: HashMap::new(),
            strays_noted: StraysNoted::default(),
            has_strays: false,
            unplaced: HashSet::new(),
            covered: HashMap::new(),
            is_overfull: false,
            is_live: false,
            period: Period::default(),
            heard: None,
        }
    }
}

impl Book {
    pub(super) fn owns(&self, partition: u8) -> bool {
        self.owned[usize::from(partition)]
    }

    /// Strikes off the keys that wait in partitions that are not ours.
    pub(super) fn strike_foreign(&mut self) {
        let held = self.held.iter().map(|(key, wait)| match key {
            LaneKey::Keyed(name) => (key, partition::of_key(name)),
            LaneKey::Single(_) => (key, wait.blocker.partition),
        });
        let suspects = self.suspects.iter().map(|(key, wait)| (key, wait.blocker.partition));
        let foreign = held.chain(suspects).filter(|(_, partition)| !self.owns(*partition));
        let foreign: Vec<LaneKey> = foreign.map(|(key, _)| key.clone()).collect();
        foreign.iter().for_each(|key| self.strike(key));
    }

    pub(super) fn put(&mut self, key: &LaneKey) {
        if let LaneKey::Keyed(name) = key {
            self.places.extend(Range::both_of(name).map(|range| (range, name.clone())));
            // The pages of a pass that are still to come go over it, in whatever partition.
            if self.follows && self.has_strays && !self.is_live {
                self.unplaced.insert(key.clone());
            }
        }
    }

    pub(super) fn hold(&mut self, key: LaneKey, mut wait: Wait) {
        let before = self.held.get(&key);
        if self.busy.contains_key(&key) || self.suspects.contains_key(&key) {
            return;
        }
        if before.is_none() && self.held.len() >= REMEMBERED {
            self.is_overfull = true;
            return;
        }
        if let Some(before) = before.filter(|before| before.blocker.id == wait.blocker.id) {
            wait.since = before.since;
        }
        self.next_due = match (self.next_due, wait.until) {
            (Some(due), Some(until)) => Some(due.min(until)),
            (due, until) => due.or(until),
        };
        self.put(&key);
        self.unscanned.remove(&key);
        self.held.insert(key, wait);
    }

    /// Whether a key waits for this very head, for a reason that the relay alone knows.
    pub(super) fn rests(&self, key: &LaneKey, head: impl FnOnce() -> Blocker) -> bool {
        let wait = self.held.get(key).filter(|wait| wait.reason.is_of_the_relay());
        wait.is_some_and(|wait| wait.blocker.may_be(&head()))
    }

    pub(super) fn claim(&mut self, lane: &Arc<Lane>, head: &Record) -> bool {
        let key = &lane.key;
        if !self.owns(lane.partition)
            || self.busy.contains_key(key)
            || self.suspects.contains_key(key)
            || self.rests(key, || Blocker::of(head))
        {
            return false;
        }
        self.held.remove(key);
        self.unscanned.remove(key);
        self.put(key);
        self.busy.insert(key.clone(), lane.clone());
        true
    }

    /// Whether a read of a key that is to be read shows all that was withheld.
    pub(super) fn counts(&self, key: &LaneKey, read: Read) -> bool {
        let shows = |event: &Timestamp| *event <= read.at;
        let is_everywhere =
            self.strays.get(key).is_none_or(|strays| strays.noted <= read.begun.strays);
        self.follows
            && self.period == read.begun.period
            && is_everywhere
            && self.withheld.get(key).is_none_or(shows)
            && self.unscanned.get(key).is_some_and(|one| one.since.as_ref().is_none_or(shows))
    }

    pub(super) fn is_entered(&self, key: &LaneKey) -> bool {
        self.busy.contains_key(key) || self.wait(key).is_some() || self.unscanned.contains_key(key)
    }

    /// Where a key lies that is in the book.
    pub(super) fn place(&self, key: &LaneKey) -> Option<(u8, RecordId)> {
        if let Some(lane) = self.busy.get(key) {
            return Some((lane.partition, lane.single()));
        }
        let wait = self.wait(key)?;
        Some((wait.blocker.partition, wait.blocker.id.clone()))
    }

    /// Strikes a key off of which it is not known what it has pending: while the stream carries the
    /// records, it is to be read.
    pub(super) fn release(&mut self, key: &LaneKey) {
        let place = self.place(key).filter(|_| self.follows);
        self.strike(key);
        if let Some((partition, id)) = place {
            self.must_scan(key.clone(), partition, id);
        }
    }

    /// Notes a partition in which a key has records, where that is not the hash of the key.
    pub(super) fn note_stray(&mut self, key: &LaneKey, partition: u8) {
        let LaneKey::Keyed(name) = key else { return };
        self.has_strays |= partition != partition::of_key(name);
        if self.follows && partition != partition::of_key(name) {
            self.is_overfull |= self.strays.len() >= REMEMBERED;
            let strays = self.strays.entry(key.clone()).or_default();
            if strays.partitions.insert(partition) {
                self.strays_noted.0 += 1;
                strays.noted = self.strays_noted;
                // Its reads did not look there.
                self.covered.remove(key);
            }
        }
    }

    pub(super) fn strays_of(&self, key: &LaneKey) -> BTreeSet<u8> {
        self.strays.get(key).map(|strays| strays.partitions.clone()).unwrap_or_default()
    }

    pub(super) fn must_scan(&mut self, key: LaneKey, partition: u8, id: RecordId) {
        self.note_stray(&key, partition);
        let is_entered = self.busy.contains_key(&key) || self.wait(&key).is_some();
        let strays = self.strays_of(&key);
        let own = match &key {
            LaneKey::Keyed(name) => partition::of_key(name),
            LaneKey::Single(_) => partition,
        };
        let all = [partition, own].into_iter().chain(strays);
        let ours = all.into_iter().find(|partition| self.owns(*partition));
        if let Some(partition) = ours.filter(|_| self.follows && !is_entered) {
            let since = self.heard;
            let unscanned = Unscanned { partition, id, is_asked: false, since };
            self.unscanned.entry(key).or_insert(unscanned);
        }
    }

    pub(super) fn hold_blocked(&mut self, keys: Vec<(LaneKey, Dead)>) {
        for (key, dead) in keys {
            self.note_stray(&key, dead.partition);
            let blocker = Blocker::dead(dead.id, dead.partition);
            self.hold(key, Wait::new(HoldReason::Blocked, blocker, None));
        }
    }

    /// The wait of a key, be it for its turn to go alone.
    pub(super) fn wait(&self, key: &LaneKey) -> Option<&Wait> {
        self.held.get(key).or_else(|| self.suspects.get(key))
    }

    pub(super) fn strike(&mut self, key: &LaneKey) {
        self.busy.remove(key);
        self.suspects.remove(key);
        self.held.remove(key);
        if let LaneKey::Keyed(key) = key {
            for range in Range::both_of(key) {
                self.places.remove(&(range, key.clone()));
            }
        }
    }

    pub(super) fn strike_held(&mut self, which: impl Fn(&Wait) -> bool) -> bool {
        let struck: Vec<LaneKey> =
            self.held.iter().filter(|(_, wait)| which(wait)).map(|(key, _)| key.clone()).collect();
        struck.iter().for_each(|key| self.release(key));
        !struck.is_empty()
    }
}
