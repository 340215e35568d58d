//! Remembers what was reported, so that each thing is reported once.

use std::collections::HashSet;
use std::hash::Hash;

use parking_lot::Mutex;

/// Things that are reported at most: more would not help an operator.
const MAX_REPORTED: usize = 1_000;

/// The things that were reported.
#[derive(Debug)]
pub(crate) struct Reported<T>(Mutex<HashSet<T>>);

impl<T> Default for Reported<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T: Clone + Eq + Hash> Reported<T> {
    /// Returns whether this was not reported before, and remembers it.
    pub(crate) fn is_news(&self, thing: &T) -> bool {
        let mut reported = self.0.lock();
        reported.len() < MAX_REPORTED && reported.insert(thing.clone())
    }
}
