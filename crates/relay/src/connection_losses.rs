//! Which records lost their connection.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use postrider_outbox::ids::RecordId;

/// Records that lost their connection before a confirm, and how often in a row.
///
/// After two such losses a record goes alone, so that the one which brings the
/// connection down is found and its neighbours are not charged for it. Of more records than are
/// remembered, those are forgotten that have lost nothing for a while: others delivered them, or
/// discarded them. One that is forgotten in vain loses a connection twice more.
#[derive(Debug, Default)]
pub struct ConnectionLosses {
    counts: Mutex<HashMap<RecordId, Loss>>,
}

#[derive(Debug)]
struct Loss {
    /// In a row.
    count: u32,
    /// The latest one.
    at: Instant,
    /// It went alone, and what it lost was its own doing: others of its destination were confirmed.
    is_guilty: bool,
}

impl ConnectionLosses {
    /// Losses in a row after which a record goes alone.
    const ALONE: u32 = 2;

    /// Records that are remembered.
    const REMEMBERED: usize = 10_000;

    /// How long at least.
    const KEPT: Duration = Duration::from_secs(600);

    /// Notes one more loss.
    pub fn note(&self, id: &RecordId) {
        self.change(id, Instant::now(), |loss| loss.count += 1);
    }

    fn change(&self, id: &RecordId, now: Instant, change: impl FnOnce(&mut Loss)) {
        let mut counts = self.counts();
        if counts.len() >= Self::REMEMBERED && !counts.contains_key(id) {
            counts.retain(|_, loss| now.duration_since(loss.at) < Self::KEPT);
            if counts.len() >= Self::REMEMBERED {
                return;
            }
        }
        let new = Loss { count: 0, at: now, is_guilty: false };
        let loss = counts.entry(id.clone()).or_insert(new);
        loss.at = now;
        change(loss);
    }

    /// Notes that the record lost a connection which it had for itself: it goes alone from now on.
    /// With `is_guilty` that was its own doing, and not its destination's.
    pub fn isolate(&self, id: &RecordId, is_guilty: bool) {
        self.change(id, Instant::now(), |loss| {
            loss.count = loss.count.max(Self::ALONE);
            loss.is_guilty |= is_guilty;
        });
    }

    /// Whether what it loses is known to be its own doing.
    pub fn is_guilty(&self, id: &RecordId) -> bool {
        let counts = self.counts();
        !counts.is_empty() && counts.get(id).is_some_and(|loss| loss.is_guilty)
    }

    /// Whether the record must go alone.
    pub fn goes_alone(&self, id: &RecordId) -> bool {
        let counts = self.counts();
        !counts.is_empty() && counts.get(id).is_some_and(|loss| loss.count >= Self::ALONE)
    }

    /// Forgets a record whose fate is known.
    pub fn forget(&self, id: &RecordId) {
        let mut counts = self.counts();
        if !counts.is_empty() {
            counts.remove(id);
        }
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<RecordId, Loss>> {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_more_than_are_remembered_the_old_ones_are_forgotten_and_new_ones_left() {
        let losses = ConnectionLosses::default();
        let id = |number: usize| RecordId::from(bson::Bson::String(number.to_string()));
        let (long_ago, now) = (Instant::now(), Instant::now() + ConnectionLosses::KEPT);
        let twice = |loss: &mut Loss| loss.count += ConnectionLosses::ALONE;
        (0..ConnectionLosses::REMEMBERED).for_each(|number| {
            losses.change(&id(number), if number < 5 { long_ago } else { now }, twice);
        });
        assert!(losses.goes_alone(&id(0)) && losses.goes_alone(&id(9_999)));

        (0..9).for_each(|number| losses.change(&id(20_000 + number), now, twice));

        let alone = |number| losses.goes_alone(&id(number));
        assert!((0..5).all(|number| !alone(number)), "old ones");
        assert!((5..ConnectionLosses::REMEMBERED).all(alone), "those of late");
        assert_eq!((0..9).filter(|number| alone(20_000 + number)).count(), 5, "as there is room");
    }
}
