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
    counts: Mutex<HashMap<RecordId, u32>>,
}

impl Losses {
    /// Losses in a row after which a record goes alone.
    const ALONE: u32 = 2;

    /// Notes one more loss.
    pub fn note(&self, id: &RecordId) {
        *self.counts().entry(id.clone()).or_default() += 1;
    }

    /// Notes a loss that is the record's own doing: it goes alone from now on.
    pub fn isolate(&self, id: &RecordId) {
        self.counts().insert(id.clone(), Self::ALONE);
    }

    /// Whether the record must go alone.
    pub fn goes_alone(&self, id: &RecordId) -> bool {
        let counts = self.counts();
        !counts.is_empty() && counts.get(id).is_some_and(|losses| *losses >= Self::ALONE)
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
