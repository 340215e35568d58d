//! Which lanes this relay is busy with, and which keys are blocked.
//!
//! The book saves reads: a rotation passes over what is in it. It never decides that a record must
//! wait. An entry ends when its time is over, when its sink is up, and when
//! `recheck` finds that the blocker is gone, has changed, or is no longer
//! the first of its key; and a snapshot that shows the key fit to go outranks it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use bson::Bson;

use crate::ids::RecordId;
use crate::outbox::position::Position;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::KEYS_BYTES;
use crate::partition;
use crate::relay::blocker::Blocker;
use crate::relay::lane::Lane;
use crate::sink::Address;

/// Keys that one read is asked to pass over at about: what the server turns into index bounds
/// in a millisecond or two.
const PASSED_OVER: usize = 2_000;

/// The same for one partition, which is not divided: beyond it keys are read and left.
const PASSED_OVER_IN_ONE: usize = 10 * PASSED_OVER;

/// Waits that are remembered at most, some 20 MB; one that is forgotten is met and noted again.
const REMEMBERED: usize = 100_000;

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
    /// A dead record of its own blocks it (`on_dead = "block"`), whether or not anything waits
    /// behind that as yet.
    Blocked,
}

impl HoldReason {
    /// All reasons, for the metrics.
    pub const ALL: [Self; 8] = [
        Self::NotDue,
        Self::Leased,
        Self::SinkPaused,
        Self::DestinationPaused,
        Self::Suspect,
        Self::Refused,
        Self::DeadLetter,
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
    /// All keys by their place in `lane_idx`. (One that its producer has put elsewhere is not
    /// passed over where it is, and no more.)
    places: BTreeSet<(u8, Arc<str>)>,
    /// No wait ends before.
    next_due: Option<Instant>,
    openings: Openings,
    /// Which keys the dead block, as the latest rotation read them; for operators alone.
    blocked: Vec<(LaneKey, RecordId)>,
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

/// A place in the book: partition and key.
pub type Place = (u8, Arc<str>);

/// What the next page need not show.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PassOver {
    /// The keys.
    pub keys: Vec<Bson>,
    /// The partition up to which these are all; `None` where they are all that there are.
    pub last: Option<u8>,
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
        if let LaneKey::Keyed(key) = key {
            self.places.insert((partition::of_key(key), key.clone()));
        }
    }

    fn hold(&mut self, key: LaneKey, mut wait: Wait) {
        let before = self.held.get(&key);
        if self.busy.contains_key(&key)
            || self.suspects.contains_key(&key)
            || (before.is_none() && self.held.len() >= REMEMBERED)
        {
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
        self.held.insert(key, wait);
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
            self.places.remove(&(partition::of_key(key), key.clone()));
        }
    }

    fn strike_held(&mut self, which: impl Fn(&Wait) -> bool) -> bool {
        let struck: Vec<LaneKey> =
            self.held.iter().filter(|(_, wait)| which(wait)).map(|(key, _)| key.clone()).collect();
        struck.iter().for_each(|key| self.strike(key));
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
        let mut book = self.book();
        let key = &lane.key;
        if !book.owns(lane.partition)
            || book.busy.contains_key(key)
            || book.suspects.contains_key(key)
            || book
                .held
                .get(key)
                .is_some_and(|wait| wait.reason.is_of_the_relay() && wait.blocker.is(head))
        {
            return false;
        }
        book.held.remove(key);
        book.put(key);
        book.busy.insert(key.clone(), lane.clone());
        true
    }

    /// Enters a key as waiting for its turn to go alone; false where it does so already, or where
    /// its partition is not ours.
    #[must_use]
    pub fn await_turn(&self, key: &LaneKey, head: Blocker) -> bool {
        let mut book = self.book();
        let is_entered = book.busy.contains_key(key) || book.suspects.contains_key(key);
        if !book.owns(head.partition) || is_entered {
            return false;
        }
        book.suspects.insert(key.clone(), Wait::new(HoldReason::Suspect, head, None));
        book.held.remove(key);
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
        if book.openings == as_of {
            book.hold(key, wait);
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
        called.iter().for_each(|(key, _)| book.strike(key));
        called
    }

    /// Strikes a key off: whatever it has pending may be taken.
    pub fn free(&self, key: &LaneKey) {
        self.book().strike(key);
    }

    /// Strikes off a key that waits; one in hand stays.
    pub fn free_waiting(&self, key: &LaneKey) {
        let mut book = self.book();
        if !book.busy.contains_key(key) {
            book.strike(key);
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
        let from = from.map_or(Bound::Unbounded, |from| Bound::Excluded(from.clone()));
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
            book.strike(key);
        }
        waits
    }

    /// Notes which keys a rotation found blocked by their dead.
    pub fn note_blocked(&self, keys: Vec<(LaneKey, RecordId)>) {
        self.book().blocked = keys;
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

    /// The keys that a page from there on need not show: whole partitions of them.
    pub fn passed_over(&self, from: &Position) -> PassOver {
        let book = self.book();
        let mut over = PassOver::default();
        let mut partition = None;
        let (mut in_one, mut bytes) = (0, 0);
        for (place, key) in book.places.range(from.place()..) {
            if partition.is_some_and(|partition| partition != *place) {
                if over.keys.len() >= PASSED_OVER || bytes >= KEYS_BYTES / 2 {
                    over.last = partition;
                    break;
                }
                in_one = 0;
            }
            partition = Some(*place);
            in_one += 1;
            if in_one <= PASSED_OVER_IN_ONE && bytes + key.len() <= KEYS_BYTES {
                bytes += key.len();
                over.keys.push(Bson::String(key.to_string()));
            }
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
        counts.insert(HoldReason::Blocked, book.blocked.len());
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
