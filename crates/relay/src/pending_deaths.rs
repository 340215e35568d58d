//! Records that will be dead once their dead letters are sent, and those that died where they lay.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use postrider_outbox::fields::{
    ATTEMPT, LAST_ERROR, LAST_ERROR_AT, LEASE_CRASHES, LEASE_ID, LEASE_OWNER, LEASE_UNTIL,
    PARTITION, SEQ, VISIBLE_AT,
};
use postrider_outbox::ids::RecordId;
use postrider_outbox::reason::DeadReason;
use postrider_outbox::record::Record;

use crate::blocker::hash_without;
use crate::sink::Address;

/// How often a dead letter is sent that takes its own connection down, or that alone is not confirmed
/// where others are, before its record dies without it.
const ROUNDS: u32 = 3;

/// Destinations of dead letters of which is known when they confirmed.
const DESTINATIONS: usize = 1_000;

/// Records that are remembered at most while their dead letters wait.
const MOST: usize = 10_000;

/// Where there is no room for more, those are forgotten whose dead letters were last tried so long
/// ago: a peer may have taken them meanwhile.
const REMEMBERED: Duration = Duration::from_secs(600);

/// The fields that the relay writes itself: what a record would die of does not rest on them.
const OURS: [&str; 10] = [
    ATTEMPT,
    LAST_ERROR,
    LAST_ERROR_AT,
    LEASE_CRASHES,
    LEASE_ID,
    LEASE_OWNER,
    LEASE_UNTIL,
    PARTITION,
    SEQ,
    VISIBLE_AT,
];

/// Records that will be dead once their dead letters are sent. They are not delivered again.
#[derive(Debug, Default)]
pub(crate) struct PendingDeaths {
    fates: Mutex<HashMap<RecordId, Fate>>,
    /// When the latest dead letter was handed over that was confirmed, by destination.
    confirmed: Mutex<HashMap<Address, Instant>>,
}

#[derive(Debug)]
struct Fate {
    reason: DeadReason,
    /// The record's attempts when its dead letter was first tried: fewer if it was requeued.
    attempts: u32,
    /// A hash of what it would die of: another one if it was mended.
    content: u64,
    rounds: u32,
    tried: Instant,
}

impl PendingDeaths {
    /// Why the record will be dead.
    pub(crate) fn reason(&self, record: &Record) -> Option<DeadReason> {
        let mut dying = self.book();
        if dying.is_empty() {
            return None;
        }
        let fate = dying.get(&record.id)?;
        if record.attempt >= fate.attempts && fate.content == content(record) {
            return Some(fate.reason.clone());
        }
        dying.remove(&record.id);
        None
    }

    /// Remembers a record whose dead letter waits, for `pause` and some time.
    pub(crate) fn remember(&self, record: &Record, reason: &DeadReason, pause: Duration) {
        let mut dying = self.book();
        if dying.len() >= MOST {
            dying.retain(|_, fate| fate.tried.elapsed() < REMEMBERED);
        }
        if dying.len() < MOST {
            let fate = dying.entry(record.id.clone()).or_insert_with(|| Fate {
                reason: reason.clone(),
                attempts: record.attempt,
                content: content(record),
                rounds: 0,
                tried: Instant::now(),
            });
            fate.tried = Instant::now() + pause;
        }
    }

    /// Forgets a record that is dead.
    pub(crate) fn forget(&self, id: &RecordId) {
        let mut dying = self.book();
        if !dying.is_empty() {
            dying.remove(id);
        }
    }

    /// Notes that a dead letter was confirmed which was handed over at this time.
    pub(super) fn confirmed(&self, destination: Address, handed_over: Instant) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if confirmed.len() >= DESTINATIONS && !confirmed.contains_key(&destination) {
            let oldest = confirmed.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(destination, _)| destination.clone());
            oldest.and_then(|oldest| confirmed.remove(&oldest));
        }
        let latest = confirmed.entry(destination).or_insert(handed_over);
        *latest = (*latest).max(handed_over);
    }

    /// Whether this destination has confirmed what was handed over later: that another was not
    /// confirmed is no fault of the destination.
    pub(super) fn has_confirmed_since(&self, destination: &Address, handed_over: Instant) -> bool {
        let confirmed = self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        confirmed.get(destination).is_some_and(|latest| *latest > handed_over)
    }

    /// Counts one more dead letter that was handed over in vain; true if there may be another.
    pub(super) fn again(&self, record: &Record, reason: &DeadReason) -> bool {
        self.remember(record, reason, Duration::ZERO);
        let mut dying = self.book();
        // (Where there is no room to count it waits.)
        let Some(fate) = dying.get_mut(&record.id) else { return true };
        fate.rounds += 1;
        fate.rounds < ROUNDS
    }

    fn book(&self) -> MutexGuard<'_, HashMap<RecordId, Fate>> {
        self.fates.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn content(record: &Record) -> u64 {
    hash_without(&record.raw, &OURS)
}

/// A record that died where it lay, without a lane that could wait for its dead letter. It is read
/// again when its turn comes: any payloads that waited here would add up.
#[derive(Debug)]
pub(crate) struct DeadRecord {
    pub(super) id: RecordId,
    pub(super) reason: DeadReason,
}

/// As many wait to be sent at most; beyond it the outbox alone tells of the dead.
pub(crate) const MAX_WAITING: usize = 10_000;
