//! Which lanes this relay is busy with, and which it knows must wait.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use bson::Bson;

use crate::ids::RecordId;
use crate::outbox::record::LaneKey;
use crate::relay::lane::Lane;

/// Keys that one read is asked to pass over at most: about what the server turns into index
/// bounds in a millisecond. The remaining ones are read and left, page by page.
const PASSED_OVER: usize = 2_000;

/// Waits that are remembered at most; a wait that is forgotten is met and noted again.
const REMEMBERED: usize = 20_000;

/// Why a lane that has something pending is not being delivered.
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
}

impl HoldReason {
    /// All reasons, for the metrics.
    pub const ALL: [Self; 4] = [Self::NotDue, Self::Leased, Self::SinkPaused, Self::Suspect];

    /// The label in `postrider_keys_held`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotDue => "not_due",
            Self::Leased => "leased",
            Self::SinkPaused => "sink_paused",
            Self::Suspect => "suspect",
        }
    }
}

#[derive(Debug)]
enum Hand {
    Busy(Arc<Lane>),
    Held { reason: HoldReason, until: Option<Instant> },
}

/// The book of lanes. It saves reading what can't go; the order rests on the
/// lease and the prefix rule, not on it.
#[derive(Debug, Default)]
pub struct Hands {
    book: Mutex<HashMap<LaneKey, Hand>>,
}

impl Hands {
    /// Enters `lane` as busy, unless its key is entered already.
    #[must_use]
    pub fn claim(&self, lane: &Arc<Lane>) -> bool {
        match self.book().entry(lane.key.clone()) {
            std::collections::hash_map::Entry::Occupied(_) => false,
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(Hand::Busy(lane.clone()));
                true
            }
        }
    }

    /// Enters a key as waiting for its turn to go alone; false where it does so already.
    #[must_use]
    pub fn await_turn(&self, key: &LaneKey) -> bool {
        let mut book = self.book();
        let waits = Hand::Held { reason: HoldReason::Suspect, until: None };
        match book.get(key) {
            Some(Hand::Busy(_) | Hand::Held { reason: HoldReason::Suspect, .. }) => false,
            Some(Hand::Held { .. }) | None => {
                book.insert(key.clone(), waits);
                true
            }
        }
    }

    /// Enters `lane` as busy where its key waits for a turn (or is not entered at all).
    #[must_use]
    pub fn take_turn(&self, lane: &Arc<Lane>) -> bool {
        let mut book = self.book();
        if let Some(Hand::Busy(_)) = book.get(&lane.key) {
            return false;
        }
        book.insert(lane.key.clone(), Hand::Busy(lane.clone()));
        true
    }

    /// The lane in hand for this key.
    pub fn busy(&self, key: &LaneKey) -> Option<Arc<Lane>> {
        match self.book().get(key) {
            Some(Hand::Busy(lane)) => Some(lane.clone()),
            _ => None,
        }
    }

    /// The keys in hand, and those that wait for their turn to go alone.
    pub fn spoken_for(&self) -> HashSet<LaneKey> {
        let book = self.book();
        let spoken_for = book.iter().filter(|(_, hand)| {
            matches!(hand, Hand::Busy(_) | Hand::Held { reason: HoldReason::Suspect, .. })
        });
        spoken_for.map(|(key, _)| key.clone()).collect()
    }

    /// Notes that a key must wait, unless it is in hand.
    pub fn hold(&self, key: LaneKey, reason: HoldReason, until: Option<Instant>) {
        let mut book = self.book();
        let full = book.len() >= REMEMBERED;
        match book.get_mut(&key) {
            Some(Hand::Busy(_)) => {}
            Some(hand) => *hand = Hand::Held { reason, until },
            None if full => {}
            None => {
                book.insert(key, Hand::Held { reason, until });
            }
        }
    }

    /// Strikes a key off: whatever it has pending may be taken.
    pub fn free(&self, key: &LaneKey) {
        self.book().remove(key);
    }

    /// Strikes off a key that is held; one in hand stays.
    pub fn free_waiting(&self, key: &LaneKey) {
        let mut book = self.book();
        if let Some(Hand::Held { .. }) = book.get(key) {
            book.remove(key);
        }
    }

    /// Strikes off the keys whose wait is over by now; answers whether there were any.
    pub fn free_due(&self, now: Instant) -> bool {
        self.free_where(|_, until| until.is_some_and(|until| until <= now))
    }

    /// Strikes off the keys held for this reason; answers whether there were any.
    pub fn free_held(&self, which: HoldReason) -> bool {
        self.free_where(|reason, _| reason == which)
    }

    /// The keys that the next read need not show.
    pub fn passed_over(&self) -> Vec<Bson> {
        let book = self.book();
        let keys = book.keys().filter_map(|key| match key {
            LaneKey::Keyed(key) => Some(Bson::String(key.to_string())),
            LaneKey::Single(_) => None,
        });
        keys.take(PASSED_OVER).collect()
    }

    /// How many keys wait for each reason.
    pub fn held(&self) -> Vec<(HoldReason, usize)> {
        let book = self.book();
        let mut counts: HashMap<HoldReason, usize> = HashMap::new();
        for hand in book.values() {
            if let Hand::Held { reason, .. } = hand {
                *counts.entry(*reason).or_default() += 1;
            }
        }
        let count = |reason| counts.get(&reason).copied().unwrap_or(0);
        HoldReason::ALL.map(|reason| (reason, count(reason))).to_vec()
    }

    fn free_where(&self, which: impl Fn(HoldReason, Option<Instant>) -> bool) -> bool {
        let mut book = self.book();
        let before = book.len();
        book.retain(|_, hand| match hand {
            Hand::Busy(_) => true,
            Hand::Held { reason, until } => !which(*reason, *until),
        });
        book.len() < before
    }

    fn book(&self) -> MutexGuard<'_, HashMap<LaneKey, Hand>> {
        // A panic elsewhere ends the process; the book itself is never left half written.
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Records that lost their connection before a confirm, and how often in a row.
///
/// After two such losses a record goes alone, so that the one which brings the
/// connection down is found and its neighbours are not charged for it.
#[derive(Debug, Default)]
pub struct Losses {
    counts: Mutex<HashMap<RecordId, u32>>,
}

impl Losses {
    /// Losses in a row after which a record goes alone.
    const ALONE: u32 = 2;

    /// Notes one more loss.
    pub fn note(&self, id: &RecordId) {
        *self.counts().entry(id.clone()).or_default() += 1;
    }

    /// Forgets a record whose fate is known.
    pub fn forget(&self, id: &RecordId) {
        let mut counts = self.counts();
        if !counts.is_empty() {
            counts.remove(id);
        }
    }

    /// The records that are to go alone.
    pub fn alone(&self) -> HashSet<RecordId> {
        let counts = self.counts();
        let alone = counts.iter().filter(|(_, losses)| **losses >= Self::ALONE);
        alone.map(|(id, _)| id.clone()).collect()
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<RecordId, u32>> {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
