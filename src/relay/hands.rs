//! Which lanes this relay is busy with, and which it knows must wait.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use bson::Bson;

use crate::ids::RecordId;
use crate::outbox::position::Position;
use crate::outbox::record::LaneKey;
use crate::partition;
use crate::relay::lane::Lane;

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
    /// Its head goes alone, and another one is going alone at the moment.
    Suspect,
    /// A dead record of its own blocks it (`on_dead = "block"`), whether or not anything waits
    /// behind that as yet.
    Blocked,
}

impl HoldReason {
    /// All reasons, for the metrics.
    pub const ALL: [Self; 5] =
        [Self::NotDue, Self::Leased, Self::SinkPaused, Self::Suspect, Self::Blocked];

    /// The label in `postrider_keys_held`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotDue => "not_due",
            Self::Leased => "leased",
            Self::SinkPaused => "sink_paused",
            Self::Suspect => "suspect",
            Self::Blocked => "blocked",
        }
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
    /// Those that wait for their turn to go alone, by their partitions.
    suspects: HashMap<LaneKey, u8>,
    held: HashMap<LaneKey, Wait>,
    /// All keys by their place in `lane_idx`. (One that its producer has put elsewhere is not
    /// passed over where it is, and no more.)
    places: BTreeSet<(u8, Arc<str>)>,
    /// No wait ends before.
    next_due: Option<Instant>,
    openings: Openings,
    /// How many keys the dead block: read anew with every page, so that it need not know which.
    blocked: usize,
}

/// How often some sink came up: what was found paused before the latest time may not be so now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Openings(u64);

#[derive(Clone, Copy, Debug)]
struct Wait {
    reason: HoldReason,
    until: Option<Instant>,
}

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
            blocked: 0,
        }
    }
}

impl Book {
    fn owns(&self, partition: u8) -> bool {
        self.owned[usize::from(partition)]
    }

    /// Strikes off the keys that wait in partitions that are not ours. (Those without a key are
    /// few, and forgotten when their wait is over.)
    fn strike_foreign(&mut self) {
        let of_key = |key: &LaneKey| match key {
            LaneKey::Keyed(key) => Some(partition::of_key(key)),
            LaneKey::Single(_) => None,
        };
        let held = self.held.keys().map(|key| (key, of_key(key)));
        let suspects = self.suspects.iter().map(|(key, partition)| (key, Some(*partition)));
        let foreign = held
            .chain(suspects)
            .filter(|(_, partition)| partition.is_some_and(|partition| !self.owns(partition)));
        let foreign: Vec<LaneKey> = foreign.map(|(key, _)| key.clone()).collect();
        foreign.iter().for_each(|key| self.strike(key));
    }

    fn put(&mut self, key: &LaneKey) {
        if let LaneKey::Keyed(key) = key {
            self.places.insert((partition::of_key(key), key.clone()));
        }
    }

    fn hold(&mut self, key: LaneKey, reason: HoldReason, until: Option<Instant>) {
        let is_new = !self.held.contains_key(&key);
        if self.busy.contains_key(&key)
            || self.suspects.contains_key(&key)
            || (is_new && self.held.len() >= REMEMBERED)
        {
            return;
        }
        self.next_due = match (self.next_due, until) {
            (Some(due), Some(until)) => Some(due.min(until)),
            (due, until) => due.or(until),
        };
        self.put(&key);
        self.held.insert(key, Wait { reason, until });
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
        for partition in
            book.busy.values().map(|lane| lane.partition).chain(book.suspects.values().copied())
        {
            in_hand[usize::from(partition)] = true;
        }
        in_hand
    }

    /// Enters `lane` as busy, unless its key is entered already or its partition is not ours.
    #[must_use]
    pub fn claim(&self, lane: &Arc<Lane>) -> bool {
        let mut book = self.book();
        let key = &lane.key;
        if !book.owns(lane.partition)
            || book.busy.contains_key(key)
            || book.suspects.contains_key(key)
            || book.held.contains_key(key)
        {
            return false;
        }
        book.put(key);
        book.busy.insert(key.clone(), lane.clone());
        true
    }

    /// Enters a key as waiting for its turn to go alone; false where it does so already, or where
    /// its partition is not ours.
    #[must_use]
    pub fn await_turn(&self, key: &LaneKey, partition: u8) -> bool {
        let mut book = self.book();
        if !book.owns(partition) || book.busy.contains_key(key) || book.suspects.contains_key(key) {
            return false;
        }
        book.suspects.insert(key.clone(), partition);
        book.held.remove(key);
        book.put(key);
        true
    }

    /// Enters `lane` as busy where its key waits for a turn (or is not entered at all), and its
    /// partition is still ours.
    #[must_use]
    pub fn take_turn(&self, lane: &Arc<Lane>) -> bool {
        let mut book = self.book();
        if !book.owns(lane.partition) || book.busy.contains_key(&lane.key) {
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

    /// Notes that a key must wait, unless it is in hand.
    pub fn hold(&self, key: LaneKey, reason: HoldReason, until: Option<Instant>) {
        self.book().hold(key, reason, until);
    }

    /// How often some sink came up until now, for [`hold_paused`](Self::hold_paused).
    pub fn openings(&self) -> Openings {
        self.book().openings
    }

    /// Notes that a key must wait for its sink, which was found paused after `as_of` was asked
    /// for; unless a sink came up since. It may be this one's, and nobody would strike the key off.
    pub fn hold_paused(&self, key: LaneKey, as_of: Openings) {
        let mut book = self.book();
        if book.openings == as_of {
            book.hold(key, HoldReason::SinkPaused, None);
        }
    }

    /// Strikes off all keys that wait for a sink: one is up.
    pub fn free_paused(&self) {
        let mut book = self.book();
        book.openings.0 += 1;
        book.strike_held(|wait| wait.reason == HoldReason::SinkPaused);
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

    /// Notes how many keys a rotation found blocked by their dead.
    pub fn note_blocked(&self, count: usize) {
        self.book().blocked = count;
    }

    /// The keys that a page from there on need not show: whole partitions of them.
    pub fn passed_over(&self, from: &Position) -> PassOver {
        let book = self.book();
        let mut over = PassOver::default();
        let mut partition = None;
        let mut in_one = 0;
        for (place, key) in book.places.range(from.place()..) {
            if partition.is_some_and(|partition| partition != *place) {
                if over.keys.len() >= PASSED_OVER {
                    over.last = partition;
                    break;
                }
                in_one = 0;
            }
            partition = Some(*place);
            in_one += 1;
            if in_one <= PASSED_OVER_IN_ONE {
                over.keys.push(Bson::String(key.to_string()));
            }
        }
        over
    }

    /// How many keys wait for each reason.
    pub fn held(&self) -> Vec<(HoldReason, usize)> {
        let book = self.book();
        let mut counts: HashMap<HoldReason, usize> = HashMap::new();
        for wait in book.held.values() {
            *counts.entry(wait.reason).or_default() += 1;
        }
        counts.insert(HoldReason::Suspect, book.suspects.len());
        counts.insert(HoldReason::Blocked, book.blocked);
        let count = |reason| counts.get(&reason).copied().unwrap_or(0);
        HoldReason::ALL.map(|reason| (reason, count(reason))).to_vec()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic elsewhere ends the process; the book itself is never left half written.
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn all() -> Hands {
        let hands = Hands::default();
        hands.own(&(0..=255).collect::<Vec<u8>>());
        hands
    }

    fn key(name: &str) -> LaneKey {
        LaneKey::Keyed(name.into())
    }

    fn hold(hands: &Hands, name: &str) {
        hands.hold_paused(key(name), hands.openings());
    }

    /// Everything that pages from the beginning on are told to pass over, and how many there are.
    fn all_pages(hands: &Hands) -> (BTreeSet<String>, usize) {
        let mut seen = BTreeSet::new();
        let mut from = Position::start();
        for pages in 1.. {
            let over = hands.passed_over(&from);
            seen.extend(over.keys.iter().map(|key| key.as_str().unwrap().to_owned()));
            match over.last {
                Some(last) => from = Position::behind(last),
                None => return (seen, pages),
            }
        }
        unreachable!("the loop ends by itself");
    }

    #[test]
    fn pages_are_told_of_every_held_key_some_thousand_at_a_time() {
        let hands = all();
        let names: BTreeSet<String> = (0..9_000).map(|n| format!("k-{n}")).collect();
        names.iter().for_each(|name| hold(&hands, name));

        let (seen, pages) = all_pages(&hands);

        assert_eq!(seen, names);
        assert!((3..=5).contains(&pages), "{pages}");
    }

    #[test]
    fn what_is_struck_off_is_passed_over_no_more() {
        let hands = all();
        let lane = Lane::new(key("busy"), 0);
        assert!(hands.claim(&lane));
        hold(&hands, "held");
        assert!(hands.await_turn(&key("suspect"), 0));
        assert_eq!(all_pages(&hands).0.len(), 3);

        hands.free(&lane.key);
        hands.free_paused();
        hands.free_waiting(&key("suspect"));

        assert_eq!(all_pages(&hands).0.len(), 0);
        assert!(hands.spoken_for().is_empty());
    }

    /// Its look saw the sink paused, and is slow to say so: nobody would strike the key off.
    #[test]
    fn a_key_is_not_held_for_a_sink_that_came_up_meanwhile() {
        let hands = all();
        let as_of = hands.openings();
        hands.free_paused();

        hands.hold_paused(key("late"), as_of);

        assert!(hands.claim(&Lane::new(key("late"), 0)));
    }

    #[test]
    fn a_wait_ends_when_it_is_due_and_not_before() {
        let hands = all();
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        hands.hold(key("later"), HoldReason::NotDue, Some(later));
        hands.hold(key("now"), HoldReason::NotDue, Some(now));
        hold(&hands, "for ever");

        assert!(hands.free_due(now));
        assert!(!hands.free_due(now));
        assert!(hands.claim(&Lane::new(key("now"), 0)));
        assert!(!hands.claim(&Lane::new(key("later"), 0)));
        assert!(hands.free_due(later));
        assert!(hands.claim(&Lane::new(key("later"), 0)));
        assert!(!hands.free_due(later + Duration::from_secs(9)));
    }

    #[test]
    fn what_is_in_hand_or_waits_for_its_turn_is_not_held_for_another_reason() {
        let hands = all();
        let lane = Lane::new(key("busy"), 0);
        assert!(hands.claim(&lane));
        assert!(hands.await_turn(&key("suspect"), 0));

        hold(&hands, "busy");
        hold(&hands, "suspect");

        assert!(hands.busy(&lane.key).is_some());
        let waiting: usize = hands.held().iter().map(|(_, count)| count).sum();
        assert_eq!(waiting, 1);
    }
}
