//! Which lanes this relay is busy with, and which keys are blocked.
//!
//! While rotations find the records, the book saves reads: a rotation passes over what is in it. It
//! never decides that a record must wait. An entry ends when its time is over, when its sink is up,
//! and when `recheck` finds that the blocker is gone, has changed, or is no longer the first of its
//! key; and a snapshot that shows the key fit to go outranks it.
//!
//! While the change stream carries the records, the book is what is known of them: a key that is
//! not in it has nothing pending (`hands::stream`).

mod book;
mod list;
mod stream;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use crate::ids::RecordId;
use crate::outbox::record::{LaneKey, Record};
use crate::outbox::snapshot::Dead;
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::hands::book::Book;
use crate::relay::lane::Lane;
use crate::sink::Address;

pub use book::Openings;
pub(super) use book::{Begun, Period, Read};
pub use list::BlockedKey;
pub(super) use stream::Known;

/// The book of lanes. It saves reading what can't go; the order rests on the
/// lease and the prefix rule, not on it.
#[derive(Debug, Default)]
pub struct Hands {
    book: Mutex<Book>,
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

    /// Enters `lane` as busy, unless its key is in hand, waits for its turn to go alone, or lies in
    /// a partition that is not ours.
    ///
    /// A snapshot has shown its head fit to go, so a wait that the book knows is over. Only what
    /// the relay alone knows of that very head is stronger.
    #[must_use]
    pub fn claim(&self, lane: &Arc<Lane>, head: &Record) -> bool {
        self.book().claim(lane, head)
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

    /// Notes which keys a rotation found blocked by their dead.
    pub fn note_blocked(&self, keys: Vec<(LaneKey, Dead)>) {
        let mut book = self.book();
        match book.follows {
            true => book.hold_blocked(keys),
            false => book.blocked = keys.into_iter().map(|(key, dead)| (key, dead.id)).collect(),
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // A panic elsewhere ends the process; the book itself is never left half written.
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests;
