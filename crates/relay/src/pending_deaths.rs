//! Records that will be dead once their dead letters are sent, and records that died without a
//! lane.

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

/// Attempts to send a dead letter that breaks its own connection, or that alone is not confirmed,
/// before its record dies without it.
const MAX_ATTEMPTS: u32 = 3;

/// Destinations of dead letters whose latest confirm is remembered.
const MAX_DESTINATIONS: usize = 1_000;

/// Records that are remembered at most while their dead letters wait.
const MAX_REMEMBERED: usize = 10_000;

/// Without room, records are forgotten whose dead letters were last tried this long ago: a peer may
/// own them now.
const RETENTION: Duration = Duration::from_secs(600);

/// The fields that the relay writes itself: they do not affect the reason of a death.
const RELAY_FIELDS: [&str; 10] = [
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
    /// When the latest confirmed dead letter was sent, by destination.
    confirmed: Mutex<HashMap<Address, Instant>>,
}

#[derive(Debug)]
struct Fate {
    reason: DeadReason,
    /// The record's attempts when its dead letter was first tried: fewer if it was requeued.
    attempts: u32,
    /// A hash of the record's content: it changes if an operator repairs the record.
    content: u64,
    rounds: u32,
    tried: Instant,
}

impl PendingDeaths {
    /// Returns why the record will be dead.
    pub(crate) fn reason(&self, record: &Record) -> Option<DeadReason> {
        let mut dying = self.book();
        if dying.is_empty() {
            return None;
        }
        let death = dying.get(&record.id)?;
        if record.attempt >= death.attempts && death.content == content(record) {
            return Some(death.reason.clone());
        }
        dying.remove(&record.id);
        None
    }

    /// Remembers a record whose dead letter waits, for `pause` and some time.
    pub(crate) fn remember(&self, record: &Record, reason: &DeadReason, pause: Duration) {
        let mut dying = self.book();
        if dying.len() >= MAX_REMEMBERED {
            dying.retain(|_, death| death.tried.elapsed() < RETENTION);
        }
        if dying.len() < MAX_REMEMBERED {
            let death = dying.entry(record.id.clone()).or_insert_with(|| Fate {
                reason: reason.clone(),
                attempts: record.attempt,
                content: content(record),
                rounds: 0,
                tried: Instant::now(),
            });
            death.tried = Instant::now() + pause;
        }
    }

    /// Forgets a record that is dead.
    pub(crate) fn forget(&self, id: &RecordId) {
        let mut dying = self.book();
        if !dying.is_empty() {
            dying.remove(id);
        }
    }

    /// Records the confirm of a dead letter that was sent at this time.
    pub(super) fn confirmed(&self, destination: Address, handed_over: Instant) {
        let mut confirmed = self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if confirmed.len() >= MAX_DESTINATIONS && !confirmed.contains_key(&destination) {
            let oldest = confirmed.iter().min_by_key(|(_, at)| **at);
            let oldest = oldest.map(|(destination, _)| destination.clone());
            oldest.and_then(|oldest| confirmed.remove(&oldest));
        }
        let latest = confirmed.entry(destination).or_insert(handed_over);
        *latest = (*latest).max(handed_over);
    }

    /// Returns whether this destination has confirmed a later message: then the destination is not
    /// at fault for a missing confirm.
    pub(super) fn has_confirmed_since(&self, destination: &Address, handed_over: Instant) -> bool {
        let confirmed = self.confirmed.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        confirmed.get(destination).is_some_and(|latest| *latest > handed_over)
    }

    /// Counts one more failed attempt to send a dead letter. Returns whether another attempt is
    /// allowed.
    pub(super) fn may_retry(&self, record: &Record, reason: &DeadReason) -> bool {
        self.remember(record, reason, Duration::ZERO);
        let mut dying = self.book();
        // (If there is no room to count it, it waits.)
        let Some(death) = dying.get_mut(&record.id) else { return true };
        death.rounds += 1;
        death.rounds < MAX_ATTEMPTS
    }

    fn book(&self) -> MutexGuard<'_, HashMap<RecordId, Fate>> {
        self.fates.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn content(record: &Record) -> u64 {
    hash_without(&record.raw, &RELAY_FIELDS)
}

/// A record that died without a lane that could wait for its dead letter. It is read again in its
/// turn: waiting payloads would add up.
#[derive(Debug)]
pub(crate) struct DeadRecord {
    pub(super) id: RecordId,
    pub(super) reason: DeadReason,
}

/// Dead letters that wait to be sent at most; beyond it records die without one.
pub(crate) const MAX_WAITING: usize = 10_000;
