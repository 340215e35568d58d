//! Records that will be dead once their dead letters are sent, and records that died without a
//! lane.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
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
const MAX_SENDS: u32 = 3;

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
    deaths: Mutex<HashMap<RecordId, PendingDeath>>,
    /// When the latest confirmed dead letter was sent, by destination.
    confirmed: Mutex<HashMap<Address, Instant>>,
}

#[derive(Debug)]
struct PendingDeath {
    reason: DeadReason,
    /// The record's attempts when its dead letter was first tried: fewer if it was requeued.
    attempts: u32,
    /// A hash of the record's content: it changes if an operator repairs the record.
    content: u64,
    sends: u32,
    tried: Instant,
}

impl PendingDeaths {
    /// Returns why the record will be dead.
    pub(crate) fn reason(&self, record: &Record) -> Option<DeadReason> {
        let mut deaths = self.deaths.lock();
        if deaths.is_empty() {
            return None;
        }
        let death = deaths.get(&record.id)?;
        if record.attempt >= death.attempts && death.content == content(record) {
            return Some(death.reason.clone());
        }
        deaths.remove(&record.id);
        None
    }

    /// Remembers a record whose dead letter waits, for `pause` and some time.
    pub(crate) fn remember(&self, record: &Record, reason: &DeadReason, pause: Duration) {
        let mut deaths = self.deaths.lock();
        if deaths.len() >= MAX_REMEMBERED {
            deaths.retain(|_, death| death.tried.elapsed() < RETENTION);
        }
        if deaths.len() < MAX_REMEMBERED {
            let death = deaths.entry(record.id.clone()).or_insert_with(|| PendingDeath {
                reason: reason.clone(),
                attempts: record.attempt,
                content: content(record),
                sends: 0,
                tried: Instant::now(),
            });
            death.tried = Instant::now() + pause;
        }
    }

    /// Forgets a record that is dead.
    pub(crate) fn forget(&self, id: &RecordId) {
        let mut deaths = self.deaths.lock();
        if !deaths.is_empty() {
            deaths.remove(id);
        }
    }

    /// Notes the confirm of a dead letter that was sent at this time.
    pub(super) fn confirmed(&self, destination: Address, handed_over: Instant) {
        let mut confirmed = self.confirmed.lock();
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
        let confirmed = self.confirmed.lock();
        confirmed.get(destination).is_some_and(|latest| *latest > handed_over)
    }

    /// Counts one more failed attempt to send a dead letter. Returns whether another attempt is
    /// allowed.
    pub(super) fn may_retry(&self, record: &Record, reason: &DeadReason) -> bool {
        self.remember(record, reason, Duration::ZERO);
        let mut deaths = self.deaths.lock();
        // (If there is no room to count it, it waits.)
        let Some(death) = deaths.get_mut(&record.id) else { return true };
        death.sends += 1;
        death.sends < MAX_SENDS
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
