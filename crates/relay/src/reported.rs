//! What was reported: each thing once, not at every try.

use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Mutex;

/// Reported at most: an operator who has read so many knows.
const MOST: usize = 1_000;

/// The things that were reported.
#[derive(Debug)]
pub(crate) struct Reported<T>(Mutex<HashSet<T>>);

impl<T> Default for Reported<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Eq + Hash> Reported<T> {
    /// Whether this is still to be reported; it is not again.
    pub(crate) fn is_news(&self, thing: &T) -> bool {
        let mut reported = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        reported.len() < MOST && reported.insert(thing.clone())
    }
}
