//! Counts the connection losses of records.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use postrider_outbox::ids::RecordId;

/// Records whose connection was lost before a confirm, and how often in a row.
///
/// After two losses a record goes to quarantine, so that the record which causes the loss is found
/// and its neighbours are not counted for it. Beyond a limit, records without a recent loss are
/// forgotten: others delivered or discarded them. A record that is forgotten too early loses a
/// connection twice more.
#[derive(Debug, Default)]
pub struct ConnectionLosses {
    counts: Mutex<HashMap<RecordId, Loss>>,
}

#[derive(Debug)]
struct Loss {
    /// Losses in a row.
    count: u32,
    /// The latest loss.
    at: Instant,
    /// Its own fault: it lost an isolated connection while other records of its destination were
    /// confirmed.
    is_guilty: bool,
}

impl ConnectionLosses {
    /// Losses in a row after which a record goes to quarantine.
    const QUARANTINE_LOSSES: u32 = 2;

    /// Records that are remembered at most.
    const MAX_REMEMBERED: usize = 10_000;

    /// How long a record is remembered at least.
    const RETENTION: Duration = Duration::from_secs(600);

    /// Notes one more loss.
    pub fn note(&self, id: &RecordId) {
        self.change(id, Instant::now(), |loss| loss.count += 1);
    }

    fn change(&self, id: &RecordId, now: Instant, change: impl FnOnce(&mut Loss)) {
        let mut counts = self.counts.lock();
        if counts.len() >= Self::MAX_REMEMBERED && !counts.contains_key(id) {
            counts.retain(|_, loss| now.duration_since(loss.at) < Self::RETENTION);
            if counts.len() >= Self::MAX_REMEMBERED {
                return;
            }
        }
        let new = Loss { count: 0, at: now, is_guilty: false };
        let loss = counts.entry(id.clone()).or_insert(new);
        loss.at = now;
        change(loss);
    }

    /// Notes that the record lost an isolated connection: from now on it is quarantined.
    /// `is_guilty`: the record caused the loss, not its destination.
    pub fn isolate(&self, id: &RecordId, is_guilty: bool) {
        self.change(id, Instant::now(), |loss| {
            loss.count = loss.count.max(Self::QUARANTINE_LOSSES);
            loss.is_guilty |= is_guilty;
        });
    }

    /// Returns whether the record itself is known to cause its losses.
    pub fn is_guilty(&self, id: &RecordId) -> bool {
        let counts = self.counts.lock();
        !counts.is_empty() && counts.get(id).is_some_and(|loss| loss.is_guilty)
    }

    /// Returns whether the record must be quarantined.
    pub fn must_be_isolated(&self, id: &RecordId) -> bool {
        let counts = self.counts.lock();
        !counts.is_empty()
            && counts.get(id).is_some_and(|loss| loss.count >= Self::QUARANTINE_LOSSES)
    }

    /// Forgets a record that is settled.
    pub fn forget(&self, id: &RecordId) {
        let mut counts = self.counts.lock();
        if !counts.is_empty() {
            counts.remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_forget_old_records_when_full() {
        let losses = ConnectionLosses::default();
        let id = |number: usize| RecordId::from(bson::Bson::String(number.to_string()));
        let (long_ago, now) = (Instant::now(), Instant::now() + ConnectionLosses::RETENTION);
        let twice = |loss: &mut Loss| loss.count += ConnectionLosses::QUARANTINE_LOSSES;
        (0..ConnectionLosses::MAX_REMEMBERED).for_each(|number| {
            losses.change(&id(number), if number < 5 { long_ago } else { now }, twice);
        });
        assert!(losses.must_be_isolated(&id(0)) && losses.must_be_isolated(&id(9_999)));

        (0..9).for_each(|number| losses.change(&id(20_000 + number), now, twice));

        let alone = |number| losses.must_be_isolated(&id(number));
        assert!((0..5).all(|number| !alone(number)), "old ones");
        assert!((5..ConnectionLosses::MAX_REMEMBERED).all(alone), "those of late");
        assert_eq!((0..9).filter(|number| alone(20_000 + number)).count(), 5, "as there is room");
    }
}
