//! Which records lost their connection.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use crate::ids::RecordId;

/// Records that lost their connection before a confirm, and how often in a row.
///
/// After two such losses a record goes alone, so that the one which brings the
/// connection down is found and its neighbours are not charged for it.
#[derive(Debug, Default)]
pub struct Losses {
    counts: Mutex<HashMap<RecordId, Loss>>,
}

#[derive(Debug, Default)]
struct Loss {
    /// In a row.
    count: u32,
    /// It went alone, and what it lost was its own doing: others of its destination were confirmed.
    is_guilty: bool,
}

impl Losses {
    /// Losses in a row after which a record goes alone.
    const ALONE: u32 = 2;

    /// Notes one more loss.
    pub fn note(&self, id: &RecordId) {
        self.counts().entry(id.clone()).or_default().count += 1;
    }

    /// Notes that the record lost a connection which it had for itself: it goes alone from now on.
    /// With `is_guilty` that was its own doing, and not its destination's.
    pub fn isolate(&self, id: &RecordId, is_guilty: bool) {
        let mut counts = self.counts();
        let loss = counts.entry(id.clone()).or_default();
        loss.count = loss.count.max(Self::ALONE);
        loss.is_guilty |= is_guilty;
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

    /// The records that are to go alone.
    pub fn alone(&self) -> HashSet<RecordId> {
        let counts = self.counts();
        let alone = counts.iter().filter(|(_, loss)| loss.count >= Self::ALONE);
        alone.map(|(id, _)| id.clone()).collect()
    }

    fn counts(&self) -> MutexGuard<'_, HashMap<RecordId, Loss>> {
        self.counts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
