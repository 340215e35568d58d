//! What is known of each key while the change stream carries the records, or is about to.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Timestamp;

use crate::ids::RecordId;
use crate::outbox::record::{LaneKey, Placement, Record};
use crate::outbox::snapshot::Dead;
use crate::partition;
use crate::relay::blocker::{Blocker, HoldReason, Wait};
use crate::relay::hands::Hands;
use crate::relay::hands::book::{Begun, Book, Period, Read};
use crate::relay::lane::Lane;

/// After so long a key is read again whose head was to be corrected.
const REPAIRED: Duration = Duration::from_secs(1);

/// What the book says of the lane of a record that became pending.
#[derive(Debug)]
pub(in crate::relay) enum Known {
    /// Nothing of it is pending: the record is the first.
    Free,
    /// It is in hand.
    Busy(Arc<Lane>),
    /// The record is no news.
    Covered,
    /// It waits, or must be read.
    Waits,
}

impl Hands {
    /// As [`claim`](Self::claim), for a key of which `head` is the first of all that it has pending, as of this read:
    /// the lane is incomplete where an event came since that was not taken.
    #[must_use]
    pub(in crate::relay) fn claim_scanned(
        &self,
        lane: &Arc<Lane>,
        head: &Record,
        read: Read,
    ) -> bool {
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

    /// As [`claim`](Self::claim), for a key of which nothing was pending before `head`: false where anything is known
    /// of it.
    #[must_use]
    pub(in crate::relay) fn claim_free(&self, lane: &Arc<Lane>, head: &Record) -> bool {
        let mut book = self.book();
        let is_free = book.follows && !book.is_entered(&lane.key);
        is_free && book.claim(lane, head)
    }

    /// The stream carries the records from now on, or is about to: each key that is struck off is
    /// to be read, unless nothing of it is pending.
    pub(in crate::relay) fn follow(&self) {
        let mut book = self.book();
        book.follows = true;
        book.period = book.period.next();
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
    pub(in crate::relay) fn live(&self) {
        self.book().is_live = true;
    }

    /// Which period it is in which the stream carries all records; `None` where it does not.
    pub(in crate::relay) fn life(&self) -> Option<Period> {
        let book = self.book();
        book.is_live.then_some(book.period)
    }

    /// The stream carries the records no more: rotations find them.
    pub(in crate::relay) fn unfollow(&self) {
        let mut book = self.book();
        book.follows = false;
        book.period = book.period.next();
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
    pub(in crate::relay) fn known(&self, record: &Record, at: Timestamp) -> Known {
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
    pub(in crate::relay) fn withhold(
        &self,
        key: LaneKey,
        partition: u8,
        id: RecordId,
        at: Timestamp,
    ) {
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
    pub(in crate::relay) fn note_place(&self, record: &Record) {
        if record.placement == Placement::Stamped {
            self.book().note_stray(&record.lane, record.partition);
        }
    }

    /// The partitions of ours in which a key may have records.
    pub(in crate::relay) fn places_of(&self, key: &LaneKey) -> Vec<u8> {
        let book = self.book();
        let mut all = book.strays_of(key);
        all.insert(partition::of_key(key.as_str()));
        if book.unplaced.contains(key) {
            all.extend(0..=u8::MAX);
        }
        all.into_iter().filter(|partition| book.owns(*partition)).collect()
    }

    /// A key of which a page has not shown what it has pending.
    pub(in crate::relay) fn must_scan(&self, key: LaneKey, partition: u8, id: RecordId) {
        self.book().must_scan(key, partition, id);
    }

    /// How many keys are to be read.
    pub(in crate::relay) fn unscanned(&self) -> usize {
        self.book().unscanned.len()
    }

    /// Whether a wait was not noted for want of room, since it follows.
    pub(in crate::relay) fn is_overfull(&self) -> bool {
        self.book().is_overfull
    }

    /// Some of the keys that are to be read.
    pub(in crate::relay) fn ask_unscanned(&self, count: usize) -> Vec<(LaneKey, u8, RecordId)> {
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
    pub(in crate::relay) fn scanned(&self, key: &LaneKey, read: Option<Read>) {
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
    pub(in crate::relay) fn begun(&self) -> Begun {
        let Book { period, strays_noted, follows, heard, .. } = *self.book();
        Begun { period, strays: strays_noted, follows, heard }
    }

    /// A record was changed in a way of which the stream says nothing: its key is read, now or when
    /// it is struck off.
    pub(in crate::relay) fn changed(&self, key: LaneKey, partition: u8, id: RecordId) {
        let mut book = self.book();
        if let Some(lane) = book.busy.get(&key) {
            lane.leave_incomplete();
        }
        book.must_scan(key, partition, id);
    }

    /// The stream was handled up to here.
    pub(in crate::relay) fn passed(&self, at: Timestamp) {
        let mut book = self.book();
        book.heard = book.heard.max(Some(at));
        if !book.covered.is_empty() {
            book.covered.retain(|_, covered| *covered >= at);
        }
    }

    /// Whether anything is known of a key.
    pub(in crate::relay) fn is_entered(&self, key: &LaneKey) -> bool {
        self.book().is_entered(key)
    }

    /// Lets keys wait whose heads are being corrected, or made dead where they are, while the stream
    /// carries the records. (Else the next rotation meets them.)
    pub(in crate::relay) fn hold_for_repair(&self, heads: Vec<(LaneKey, Blocker)>) {
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
    pub(in crate::relay) fn free_repaired(&self) {
        self.book().strike_held(|wait| wait.reason == HoldReason::Repair);
    }

    /// Lets these keys wait for their dead, where the stream carries the records.
    pub(in crate::relay) fn hold_blocked(&self, keys: Vec<(LaneKey, Dead)>) {
        let mut book = self.book();
        if book.follows {
            book.hold_blocked(keys);
        }
    }
}
