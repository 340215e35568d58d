//! Which lanes this relay is busy with, and which keys are blocked.
//!
//! The book saves reads: a rotation passes over what is in it. It never decides that a record must
//! wait. An entry ends when its time is over, when its sink is up, and when
//! `recheck` finds that the blocker is gone, has changed, or is no longer
//! the first of its key; and a snapshot that shows the key fit to go outranks it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bson::{Bson, Timestamp};

use crate::ids::RecordId;
use crate::outbox::position::{Place, Position, Range};
use crate::outbox::record::{LaneKey, Placement, Record};
use crate::outbox::snapshot::{Dead, KEYS_BYTES, PassOver};
use crate::partition;
use crate::relay::blocker::Blocker;
use crate::relay::lane::Lane;
use crate::sink::Address;

/// Keys that one read is asked to pass over at about: what the server turns into index bounds
/// in a millisecond or two.
const PASSED_OVER: usize = 2_000;

/// Waits that are remembered at most, some 20 MB; one that is forgotten is met and noted again.
const REMEMBERED: usize = 100_000;

/// After so long a key is read again whose head was to be corrected.
const REPAIRED: Duration = Duration::from_secs(1);

/// Why what a key has, or comes into it, is not being delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HoldReason {
    /// Its head is not due yet: backoff after a failure, or the producer's `visibleAt`.
    NotDue,
    /// Somebody else's lease is on its head.
    Leased,
    /// Its head's sink is paused.
    SinkPaused,
    /// Its head's destination does not confirm.
    DestinationPaused,
    /// Its head goes alone, and another one is going alone at the moment.
    Suspect,
    /// MongoDB refuses to change its head: a validator of the user's own.
    Refused,
    /// Its head is to become dead, and the sink of its dead letter is paused.
    DeadLetter,
    /// Its head is being corrected: it names an invalid partition, or has no usable `seq`.
    Repair,
    /// A dead record of its own blocks it (`on_dead = "block"`), whether or not anything waits
    /// behind that as yet.
    Blocked,
}

impl HoldReason {
    /// All reasons, for the metrics.
    pub const ALL: [Self; 9] = [
        Self::NotDue,
        Self::Leased,
        Self::SinkPaused,
        Self::DestinationPaused,
        Self::Suspect,
        Self::Refused,
        Self::DeadLetter,
        Self::Repair,
        Self::Blocked,
    ];

    /// The label in `postrider_keys_held`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotDue => "not_due",
            Self::Leased => "leased",
            Self::SinkPaused => "sink_paused",
            Self::DestinationPaused => "destination_paused",
            Self::Suspect => "suspect",
            Self::Refused => "refused",
            Self::DeadLetter => "dead_letter",
            Self::Repair => "repair",
            Self::Blocked => "blocked",
        }
    }

    /// Whether no snapshot shows it: the relay alone knows.
    fn is_of_the_relay(self) -> bool {
        matches!(self, Self::Refused | Self::DeadLetter)
    }
}

/// The book of lanes. It saves reading what can't go; the order rests on the
/// lease and the prefix rule, not on it.
#[derive(Debug, Default)]
pub struct Hands {
    book: Mutex<Book>,
}

/// A key stands in one of the three.
#[derive(Debug)]
struct Book {
    /// In which partitions anything may be entered as busy, or to become so.
    owned: [bool; 256],
    busy: HashMap<LaneKey, Arc<Lane>>,
    /// Those that wait for their turn to go alone.
    suspects: HashMap<LaneKey, Wait>,
    held: HashMap<LaneKey, Wait>,
    /// All keys by their places in `lane_idx`. (One that its producer has put elsewhere is not
    /// passed over where it is, and no more.)
    places: BTreeSet<Place>,
    /// No wait ends before.
    next_due: Option<Instant>,
    openings: Openings,
    /// Which keys the dead block, as the latest rotation read them; for operators alone.
    blocked: Vec<(LaneKey, RecordId)>,
    /// Whether the change stream carries the records, or is about to: no key is free then before
    /// what it has pending is known.
    follows: bool,
    /// Keys that must be read before anything of theirs is taken; only while it `follows`.
    unscanned: HashMap<LaneKey, Unscanned>,
    /// The latest event of each key that was not taken: a read counts at this moment or later.
    withheld: HashMap<LaneKey, Timestamp>,
    /// In which partitions keys have records that are not the hash of the key.
    strays: HashMap<LaneKey, Strays>,
    /// How often one of these was noted.
    strays_noted: StraysNoted,
    /// Whether there ever was one.
    has_strays: bool,
    /// Keys of which a pass has not shown in which partitions they have records, since it went over them:
    /// they are to be read in all.
    unplaced: HashSet<LaneKey>,
    /// When keys were read: their events up to then say nothing new.
    covered: HashMap<LaneKey, Timestamp>,
    /// Whether a wait was not noted for want of room.
    is_overfull: bool,
    /// Whether everything was read since it follows: the stream carries all records.
    is_live: bool,
    /// How often it began or ended to follow: what was read before says nothing of the time after.
    period: Period,
    /// The latest event of all.
    heard: Option<Timestamp>,
}

/// The time between two changes of what finds the records: rotations or the stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Period(u64);

/// How often a partition was noted in which a key has records that is not the hash of the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StraysNoted(u64);

/// The partitions in which a key has records, that are not the hash of the key.
#[derive(Debug, Default)]
struct Strays {
    partitions: BTreeSet<u8>,
    /// The latest that was noted: a read that was begun before has not looked there.
    noted: StraysNoted,
}

/// What the book knows when a read is begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    period: Period,
    strays: StraysNoted,
    /// Whether the stream carries the records, or is about to.
    pub(super) follows: bool,
    /// The latest event of all that were handled.
    pub(super) heard: Option<Timestamp>,
}

/// When a key was read, and what was known when that was begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Read {
    pub(super) at: Timestamp,
    pub(super) begun: Begun,
}

/// Where a key is to be read, or a record without one.
#[derive(Clone, Debug)]
struct Unscanned {
    partition: u8,
    id: RecordId,
    /// Whether a read is under way.
    is_asked: bool,
    /// A read counts that shows this event, and so all before it.
    since: Option<Timestamp>,
}

/// What the book says of the lane of a record that became pending.
#[derive(Debug)]
pub(super) enum Known {
    /// Nothing of it is pending: the record is the first.
    Free,
    /// It is in hand.
    Busy(Arc<Lane>),
    /// The record is no news.
    Covered,
    /// It waits, or must be read.
    Waits,
}

/// How often some sink came up: what was found paused before the latest time may not be so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Openings(u64);

/// Why a key is blocked.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// Why.
    pub reason: HoldReason,
    /// When the key is read again at the latest, where that is known.
    pub until: Option<Instant>,
    /// Since when it waits for this blocker.
    pub since: Instant,
    /// The head of the key.
    pub blocker: Blocker,
    /// The sink that it waits for.
    pub sink: Option<Arc<str>>,
    /// The destination within the sink, where that is what it waits for.
    pub destination: Option<Address>,
}

impl Wait {
    /// A wait that begins now.
    pub fn new(reason: HoldReason, blocker: Blocker, until: Option<Instant>) -> Self {
        Self { reason, until, since: Instant::now(), blocker, sink: None, destination: None }
    }

    /// A wait for a destination that does not confirm.
    pub fn for_destination(
        blocker: Blocker,
        until: Option<Instant>,
        sink: Arc<str>,
        destination: Address,
    ) -> Self {
        let (sink, destination) = (Some(sink), Some(destination));
        Self { sink, destination, ..Self::new(HoldReason::DestinationPaused, blocker, until) }
    }

    fn is_for(&self, sink: &str, destination: &Address) -> bool {
        self.destination.as_ref() == Some(destination) && self.sink.as_deref() == Some(sink)
    }
}

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
    fn owns(&self, partition: u8) -> bool {
        self.owned[usize::from(partition)]
    }

    /// Strikes off the keys that wait in partitions that are not ours.
    fn strike_foreign(&mut self) {
        let held = self.held.iter().map(|(key, wait)| match key {
            LaneKey::Keyed(name) => (key, partition::of_key(name)),
            LaneKey::Single(_) => (key, wait.blocker.partition),
        });
        let suspects = self.suspects.iter().map(|(key, wait)| (key, wait.blocker.partition));
        let foreign = held.chain(suspects).filter(|(_, partition)| !self.owns(*partition));
        let foreign: Vec<LaneKey> = foreign.map(|(key, _)| key.clone()).collect();
        foreign.iter().for_each(|key| self.strike(key));
    }

    fn put(&mut self, key: &LaneKey) {
        if let LaneKey::Keyed(name) = key {
            self.places.extend(Range::both_of(name).map(|range| (range, name.clone())));
            // The pages of a pass that are still to come go over it, in whatever partition.
            if self.follows && self.has_strays && !self.is_live {
                self.unplaced.insert(key.clone());
            }
        }
    }

    fn hold(&mut self, key: LaneKey, mut wait: Wait) {
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
    fn rests(&self, key: &LaneKey, head: impl FnOnce() -> Blocker) -> bool {
        let wait = self.held.get(key).filter(|wait| wait.reason.is_of_the_relay());
        wait.is_some_and(|wait| wait.blocker.may_be(&head()))
    }

    fn claim(&mut self, lane: &Arc<Lane>, head: &Record) -> bool {
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
    fn counts(&self, key: &LaneKey, read: Read) -> bool {
        let shows = |event: &Timestamp| *event <= read.at;
        let is_everywhere =
            self.strays.get(key).is_none_or(|strays| strays.noted <= read.begun.strays);
        self.follows
            && self.period == read.begun.period
            && is_everywhere
            && self.withheld.get(key).is_none_or(shows)
            && self.unscanned.get(key).is_some_and(|one| one.since.as_ref().is_none_or(shows))
    }

    fn is_entered(&self, key: &LaneKey) -> bool {
        self.busy.contains_key(key) || self.wait(key).is_some() || self.unscanned.contains_key(key)
    }

    /// Where a key lies that is in the book.
    fn place(&self, key: &LaneKey) -> Option<(u8, RecordId)> {
        if let Some(lane) = self.busy.get(key) {
            return Some((lane.partition, lane.single()));
        }
        let wait = self.wait(key)?;
        Some((wait.blocker.partition, wait.blocker.id.clone()))
    }

    /// Strikes a key off of which it is not known what it has pending: while the stream carries the
    /// records, it is to be read.
    fn release(&mut self, key: &LaneKey) {
        let place = self.place(key).filter(|_| self.follows);
        self.strike(key);
        if let Some((partition, id)) = place {
            self.must_scan(key.clone(), partition, id);
        }
    }

    /// Notes a partition in which a key has records, where that is not the hash of the key.
    fn note_stray(&mut self, key: &LaneKey, partition: u8) {
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

    fn strays_of(&self, key: &LaneKey) -> BTreeSet<u8> {
        self.strays.get(key).map(|strays| strays.partitions.clone()).unwrap_or_default()
    }

    fn must_scan(&mut self, key: LaneKey, partition: u8, id: RecordId) {
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

    fn hold_blocked(&mut self, keys: Vec<(LaneKey, Dead)>) {
        for (key, dead) in keys {
            self.note_stray(&key, dead.partition);
            let blocker = Blocker::dead(dead.id, dead.partition);
            self.hold(key, Wait::new(HoldReason::Blocked, blocker, None));
        }
    }

    /// The wait of a key, be it for its turn to go alone.
    fn wait(&self, key: &LaneKey) -> Option<&Wait> {
        self.held.get(key).or_else(|| self.suspects.get(key))
    }

    fn strike(&mut self, key: &LaneKey) {
        self.busy.remove(key);
        self.suspects.remove(key);
        self.held.remove(key);
        if let LaneKey::Keyed(key) = key {
            for range in Range::both_of(key) {
                self.places.remove(&(range, key.clone()));
            }
        }
    }

    fn strike_held(&mut self, which: impl Fn(&Wait) -> bool) -> bool {
        let struck: Vec<LaneKey> =
            self.held.iter().filter(|(_, wait)| which(wait)).map(|(key, _)| key.clone()).collect();
        struck.iter().for_each(|key| self.release(key));
        !struck.is_empty()
    }
}

impl Hands {
    /// Makes these the partitions in which lanes may be entered. Those in hand of any other end
    /// as soon as what is under way is known; what waits there is struck off.
    pub fn own(&self, partitions: &[u8]) {
        let mut book = self.book();
        book.owned = [false; 256];
        for partition in partitions {
            book.owned[usize::from(*partition)] = true;
        }
        for lane in book.busy.values() {
            if !book.owns(lane.partition) {
                lane.revoke();
            }
        }
        book.strike_foreign();
    }

    /// The partitions in which anything may be entered.
    pub(super) fn owned(&self) -> Vec<u8> {
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

    /// Enters `lane` as busy, unless its key is in hand, waits for its turn to go alone, or lies in
    /// a partition that is not ours.
    ///
    /// A snapshot has shown its head fit to go, so a wait that the book knows is over. Only what
    /// the relay alone knows of that very head is stronger.
    #[must_use]
    pub fn claim(&self, lane: &Arc<Lane>, head: &Record) -> bool {
        self.book().claim(lane, head)
    }

    /// The same for a key of which `head` is the first of all that it has pending, as of this moment:
    /// the lane is incomplete where an event came since that was not taken.
    #[must_use]
    pub(super) fn claim_scanned(&self, lane: &Arc<Lane>, head: &Record, read: Read) -> bool {
        let mut book = self.book();
        let counts = book.counts(&lane.key, read);
        if !book.claim(lane, head) {
            return false;
        }
        let at = read.at;
        match counts {
            false => lane.leave_incomplete(),
            true => {
                book.withheld.remove(&lane.key);
                book.unplaced.remove(&lane.key);
                book.covered.insert(lane.key.clone(), at);
            }
        }
        true
    }

    /// The same for a key of which nothing was pending before `head`: false where anything is known
    /// of it.
    #[must_use]
    pub(super) fn claim_free(&self, lane: &Arc<Lane>, head: &Record) -> bool {
        let mut book = self.book();
        let is_free = book.follows && !book.is_entered(&lane.key);
        is_free && book.claim(lane, head)
    }

    /// Enters a key as waiting for its turn to go alone; false where it does so already, or where
    /// its partition is not ours.
    #[must_use]
    pub fn await_turn(&self, key: &LaneKey, head: Blocker) -> bool {
        let mut book = self.book();
        let is_entered = book.busy.contains_key(key) || book.suspects.contains_key(key);
        let rests = book.rests(key, || head.clone());
        if !book.owns(head.partition) || is_entered || rests {
            return false;
        }
        book.suspects.insert(key.clone(), Wait::new(HoldReason::Suspect, head, None));
        book.held.remove(key);
        book.unscanned.remove(key);
        book.put(key);
        true
    }

    /// Enters `lane` as busy where its key still waits for the turn of this record, as it was
    /// read, and its partition is still ours.
    #[must_use]
    pub fn take_turn(&self, lane: &Arc<Lane>, head: &Blocker) -> bool {
        let mut book = self.book();
        let waits = book.suspects.get(&lane.key).is_some_and(|wait| wait.blocker == *head);
        if !book.owns(lane.partition) || !waits {
            return false;
        }
        book.strike(&lane.key);
        book.put(&lane.key);
        book.busy.insert(lane.key.clone(), lane.clone());
        true
    }

    /// The lane in hand for this key.
    pub fn busy(&self, key: &LaneKey) -> Option<Arc<Lane>> {
        self.book().busy.get(key).cloned()
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

    /// Notes that a key is blocked, unless it is in hand.
    pub fn hold(&self, key: LaneKey, wait: Wait) {
        self.book().hold(key, wait);
    }

    /// How often some sink came up until now, for [`hold_paused`](Self::hold_paused).
    pub fn openings(&self) -> Openings {
        self.book().openings
    }

    /// Notes that a key must wait for its sink, which was found paused after `as_of` was asked
    /// for; unless a sink came up since: it may be this one's, and the key would stay blocked.
    pub fn hold_paused(&self, key: LaneKey, wait: Wait, as_of: Openings) {
        let mut book = self.book();
        match book.openings == as_of {
            true => book.hold(key, wait),
            false => book.must_scan(key, wait.blocker.partition, wait.blocker.id),
        }
    }

    /// Strikes off all keys that wait for a sink: one is up.
    pub fn free_paused(&self) {
        let mut book = self.book();
        book.openings.0 += 1;
        book.strike_held(|wait| wait.reason == HoldReason::SinkPaused);
    }

    /// Frees all keys that wait for a destination: it confirms again.
    pub(crate) fn free_destination(&self, sink: &str, destination: &Address) {
        self.book().strike_held(|wait| wait.is_for(sink, destination));
    }

    /// Of each of these destinations frees one key: one without a record that is itself suspected
    /// if there is any, and of these the one that has waited the longest since it was read.
    pub(crate) fn free_for_probes(
        &self,
        sink: &str,
        destinations: &[Address],
        is_suspected: impl Fn(&RecordId) -> bool,
    ) -> Vec<(LaneKey, Blocker)> {
        let mut book = self.book();
        let rank = |wait: &Wait| (is_suspected(&wait.blocker.id), wait.since);
        let mut first: HashMap<&Address, (&LaneKey, &Wait)> = HashMap::new();
        let wanted: HashSet<&Address> = destinations.iter().collect();
        for (key, wait) in &book.held {
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
        called.iter().for_each(|(key, _)| book.release(key));
        called
    }

    /// Strikes a key off: whatever it has pending may be taken.
    pub fn free(&self, key: &LaneKey) {
        self.book().release(key);
    }

    /// Strikes off the key of a lane that has ended. `is_complete`: nothing of it is pending, as far
    /// as the stream was handled.
    pub(super) fn end(&self, lane: &Lane, is_complete: bool) {
        let mut book = self.book();
        match is_complete && !book.withheld.contains_key(&lane.key) {
            true => {
                book.strike(&lane.key);
                book.strays.remove(&lane.key);
            }
            false => book.release(&lane.key),
        }
    }

    /// Strikes off a key that waits; one in hand stays.
    pub fn free_waiting(&self, key: &LaneKey) {
        let mut book = self.book();
        if !book.busy.contains_key(key) {
            book.release(key);
        }
    }

    /// Strikes off the keys whose wait is over by now; answers whether there were any.
    pub fn free_due(&self, now: Instant) -> bool {
        let mut book = self.book();
        if book.next_due.is_none_or(|due| now < due) {
            return false;
        }
        let any = book.strike_held(|wait| wait.until.is_some_and(|until| until <= now));
        book.next_due = book.held.values().filter_map(|wait| wait.until).min();
        any
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

    /// Frees a key that still waits for this blocker, as it was; answers whether it did.
    pub fn free_from(&self, key: &LaneKey, blocker: &Blocker) -> bool {
        let mut book = self.book();
        let waits = book.wait(key).is_some_and(|wait| wait.blocker == *blocker);
        if waits {
            book.release(key);
        }
        waits
    }

    /// A read has shown the blocker of a key, which was written since: later reads are compared with
    /// this one.
    pub(super) fn saw_written(&self, key: &LaneKey, blocker: &Blocker, seen: Blocker) {
        let mut book = self.book();
        if let Some(wait) = book.held.get_mut(key).filter(|wait| wait.blocker == *blocker) {
            wait.blocker = seen;
        }
    }

    /// The stream carries the records from now on, or is about to: each key that is struck off is
    /// to be read, unless nothing of it is pending.
    pub(super) fn follow(&self) {
        let mut book = self.book();
        book.follows = true;
        book.period.0 += 1;
        book.is_overfull = false;
        book.blocked.clear();
        if book.has_strays {
            let waits = book.held.keys().chain(book.suspects.keys());
            let all: HashSet<LaneKey> = book.busy.keys().chain(waits).cloned().collect();
            book.unplaced = all;
        }
        // What came meanwhile was a reason to look, and no more.
        book.busy.values().for_each(|lane| lane.leave_incomplete());
    }

    /// Everything was read since it follows: the stream carries all records.
    pub(super) fn live(&self) {
        self.book().is_live = true;
    }

    /// Which period it is in which the stream carries all records; `None` where it does not.
    pub(super) fn life(&self) -> Option<Period> {
        let book = self.book();
        book.is_live.then_some(book.period)
    }

    /// The stream carries the records no more: rotations find them.
    pub(super) fn unfollow(&self) {
        let mut book = self.book();
        book.follows = false;
        book.period.0 += 1;
        book.is_live = false;
        book.unscanned.clear();
        book.withheld.clear();
        book.covered.clear();
        book.strays.clear();
        book.unplaced.clear();
        book.busy.values().for_each(|lane| lane.leave_incomplete());
        book.strike_held(|wait| matches!(wait.reason, HoldReason::Blocked | HoldReason::Repair));
    }

    /// What is known of the lane of a record that became pending at this moment.
    pub(super) fn known(&self, record: &Record, at: Timestamp) -> Known {
        let book = self.book();
        let key = &record.lane;
        if book.covered.get(key).is_some_and(|covered| at <= *covered) {
            return Known::Covered;
        }
        match book.busy.get(key) {
            // It was deleted, and inserted once more.
            Some(lane) if lane.expects(&record.id) => Known::Waits,
            Some(lane) => Known::Busy(lane.clone()),
            None if book.wait(key).is_some() || book.unscanned.contains_key(key) => Known::Waits,
            None => Known::Free,
        }
    }

    /// Notes that an event of a key was not taken: the key is to be read, now or when it is struck
    /// off.
    pub(super) fn withhold(&self, key: LaneKey, partition: u8, id: RecordId, at: Timestamp) {
        let mut book = self.book();
        if !book.follows || !book.owns(partition) {
            return;
        }
        if let Some(lane) = book.busy.get(&key) {
            lane.leave_incomplete();
        }
        book.note_stray(&key, partition);
        let latest = book.withheld.entry(key.clone()).or_insert(at);
        *latest = (*latest).max(at);
        book.must_scan(key, partition, id);
    }

    /// Notes in which partition a record lies, where that is not the hash of its key.
    pub(super) fn note_place(&self, record: &Record) {
        if record.placement == Placement::Stamped {
            self.book().note_stray(&record.lane, record.partition);
        }
    }

    /// The partitions of ours in which a key may have records.
    pub(super) fn places_of(&self, key: &LaneKey) -> Vec<u8> {
        let book = self.book();
        let mut all = book.strays_of(key);
        all.insert(partition::of_key(key.as_str()));
        if book.unplaced.contains(key) {
            all.extend(0..=u8::MAX);
        }
        all.into_iter().filter(|partition| book.owns(*partition)).collect()
    }

    /// A key of which a page has not shown what it has pending.
    pub(super) fn must_scan(&self, key: LaneKey, partition: u8, id: RecordId) {
        self.book().must_scan(key, partition, id);
    }

    /// How many keys are to be read.
    pub(super) fn unscanned(&self) -> usize {
        self.book().unscanned.len()
    }

    /// Whether a wait was not noted for want of room, since it follows.
    pub(super) fn is_overfull(&self) -> bool {
        self.book().is_overfull
    }

    /// Some of the keys that are to be read.
    pub(super) fn ask_unscanned(&self, count: usize) -> Vec<(LaneKey, u8, RecordId)> {
        let mut book = self.book();
        let waiting = book.unscanned.iter_mut().filter(|(_, one)| !one.is_asked).take(count);
        let asked = waiting.map(|(key, one)| {
            one.is_asked = true;
            (key.clone(), one.partition, one.id.clone())
        });
        asked.collect()
    }

    /// A key was read at this moment, and what was found is entered. Where nothing was, the key is
    /// free, unless an event came since. `None`: the read says nothing.
    pub(super) fn scanned(&self, key: &LaneKey, read: Option<Read>) {
        let mut book = self.book();
        let Some(unscanned) = book.unscanned.get_mut(key) else { return };
        unscanned.is_asked = false;
        let Some(read) = read else { return };
        if book.counts(key, read) {
            let at = read.at;
            book.withheld.remove(key);
            book.unplaced.remove(key);
            book.covered.insert(key.clone(), at);
            book.unscanned.remove(key);
            book.strays.remove(key);
        }
    }

    /// What is known now, for a read that is about to begin.
    pub(super) fn begun(&self) -> Begun {
        let Book { period, strays_noted, follows, heard, .. } = *self.book();
        Begun { period, strays: strays_noted, follows, heard }
    }

    /// A record was changed in a way of which the stream says nothing: its key is read, now or when
    /// it is struck off.
    pub(super) fn changed(&self, key: LaneKey, partition: u8, id: RecordId) {
        let mut book = self.book();
        if let Some(lane) = book.busy.get(&key) {
            lane.leave_incomplete();
        }
        book.must_scan(key, partition, id);
    }

    /// The stream was handled up to here.
    pub(super) fn passed(&self, at: Timestamp) {
        let mut book = self.book();
        book.heard = book.heard.max(Some(at));
        if !book.covered.is_empty() {
            book.covered.retain(|_, covered| *covered >= at);
        }
    }

    /// Whether anything is known of a key.
    pub(super) fn is_entered(&self, key: &LaneKey) -> bool {
        self.book().is_entered(key)
    }

    /// Lets keys wait whose heads are being corrected, or made dead where they are, while the stream
    /// carries the records. (Else the next rotation meets them.)
    pub(super) fn hold_for_repair(&self, heads: Vec<(LaneKey, Blocker)>) {
        let mut book = self.book();
        if !book.follows {
            return;
        }
        let until = Some(Instant::now() + REPAIRED);
        for (key, head) in heads {
            if book.wait(&key).is_none() {
                book.hold(key, Wait::new(HoldReason::Repair, head, until));
            }
        }
    }

    /// Strikes off the keys that wait for a correction: some were made.
    pub(super) fn free_repaired(&self) {
        self.book().strike_held(|wait| wait.reason == HoldReason::Repair);
    }

    /// Some of the records without a key that wait, from this one of them on, which no round of reads
    /// meets while the stream carries the records.
    pub(super) fn waiting_singles(&self, from: usize, count: usize) -> Vec<(LaneKey, Blocker)> {
        let book = self.book();
        let singles = book.held.iter().filter(|(key, wait)| {
            matches!(key, LaneKey::Single(_)) && wait.blocker.is_comparable() && book.follows
        });
        let some = singles.skip(from).take(count);
        some.map(|(key, wait)| (key.clone(), wait.blocker.clone())).collect()
    }

    /// The keys that the dead block, and by which record: those that a recheck compares by id.
    pub(super) fn dead_blockers(&self) -> Vec<(LaneKey, Blocker)> {
        let book = self.book();
        let blocked = book.held.iter().filter(|(_, wait)| wait.reason == HoldReason::Blocked);
        blocked.map(|(key, wait)| (key.clone(), wait.blocker.clone())).collect()
    }

    /// Notes which keys a rotation found blocked by their dead.
    pub fn note_blocked(&self, keys: Vec<(LaneKey, Dead)>) {
        let mut book = self.book();
        match book.follows {
            true => book.hold_blocked(keys),
            false => book.blocked = keys.into_iter().map(|(key, dead)| (key, dead.id)).collect(),
        }
    }

    /// Lets these keys wait for their dead, where the stream carries the records.
    pub(super) fn hold_blocked(&self, keys: Vec<(LaneKey, Dead)>) {
        let mut book = self.book();
        if book.follows {
            book.hold_blocked(keys);
        }
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

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic elsewhere ends the process; the book itself is never left half written.
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests;
