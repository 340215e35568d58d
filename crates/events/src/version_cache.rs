//! The versions of aggregates that a lane has read or written.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::names::AggregateKey;
use crate::state::StreamState;

/// How long a version is used that nothing has confirmed. Versions only rise, and the unique index
/// guards them; but an operator may empty a collection.
const MAX_AGE: Duration = Duration::from_secs(10);

/// The most aggregates in the cache: beyond, it is emptied.
const MAX_ENTRIES: usize = 4096;

/// The newest stream of an aggregate; zeros where it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LatestVersion {
    pub(super) version: i64,
    pub(super) create_time: i64,
    pub(super) state: StreamState,
}

/// Versions of the aggregates of a lane. Only what a majority has is in it: no failover reverts it.
#[derive(Debug, Default)]
pub(super) struct VersionCache {
    entries: HashMap<AggregateKey, Entry>,
    /// The group of appends in progress.
    group: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    latest: LatestVersion,
    group: u64,
    read_at: Instant,
}

/// What the cache has of an aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cached {
    /// Read or written for this group: an append that does not fit it is in conflict.
    Fresh(LatestVersion),
    /// From an earlier group: good enough to try.
    Stale(LatestVersion),
    /// Nothing.
    Missing,
}

impl VersionCache {
    /// Begins another group: no entry is fresh.
    pub(super) fn begin_group(&mut self) {
        self.group += 1;
        if self.entries.len() > MAX_ENTRIES {
            self.entries.clear();
        }
    }

    pub(super) fn insert(&mut self, aggregate: AggregateKey, latest: LatestVersion) {
        let entry = Entry { latest, group: self.group, read_at: Instant::now() };
        self.entries.insert(aggregate, entry);
    }

    pub(super) fn remove(&mut self, aggregate: &AggregateKey) {
        self.entries.remove(aggregate);
    }

    pub(super) fn get(&self, aggregate: &AggregateKey) -> Cached {
        match self.entries.get(aggregate) {
            Some(entry) if entry.group == self.group => Cached::Fresh(entry.latest),
            Some(entry) if entry.read_at.elapsed() < MAX_AGE => Cached::Stale(entry.latest),
            _ => Cached::Missing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::{AggregateId, AggregateName};

    #[test]
    fn version_of_an_earlier_group_is_stale() {
        let aggregate = (AggregateName::new("a").unwrap(), AggregateId::new("1").unwrap());
        let latest = LatestVersion { version: 3, create_time: 1, ..LatestVersion::default() };
        let mut cache = VersionCache::default();
        cache.begin_group();

        assert_eq!(cache.get(&aggregate), Cached::Missing);
        cache.insert(aggregate.clone(), latest);
        assert_eq!(cache.get(&aggregate), Cached::Fresh(latest));
        cache.begin_group();
        assert_eq!(cache.get(&aggregate), Cached::Stale(latest));
        cache.remove(&aggregate);
        assert_eq!(cache.get(&aggregate), Cached::Missing);
    }
}
