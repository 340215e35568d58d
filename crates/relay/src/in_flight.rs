//! Counts the records in memory and the lanes that publish.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use postrider_outbox::record::Record;

/// Records in memory: leased and not settled, or being read.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    records: AtomicUsize,
    /// The records that wait for a destination which does not answer.
    parked: AtomicUsize,
    bytes: AtomicUsize,
    /// Lanes that publish, except parked ones.
    publishing: AtomicUsize,
    /// What the scans under way may read.
    reading: AtomicUsize,
}

/// What one scan may read, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReadAllowance {
    load: Arc<InFlight>,
    pub(crate) bytes: usize,
}

impl Drop for ReadAllowance {
    fn drop(&mut self) {
        self.load.reading.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl InFlight {
    pub(crate) fn add(&self, record: &Record) {
        self.records.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(record.size(), Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.records.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Reserves an allowance for one scan: half of what is left below `limit`, so that another scan
    /// can run at the same time; at least one byte, for which a scan reads one record.
    pub(crate) fn allow(self: &Arc<Self>, limit: usize) -> ReadAllowance {
        let used = self.bytes() + self.reading.load(Ordering::Relaxed);
        let bytes = (limit.saturating_sub(used) / 2).max(1);
        self.reading.fetch_add(bytes, Ordering::Relaxed);
        ReadAllowance { load: self.clone(), bytes }
    }

    pub(crate) fn records(&self) -> usize {
        self.records.load(Ordering::Relaxed)
    }

    /// Returns the number of records that do not wait for a destination which does not answer.
    pub(crate) fn moving(&self) -> usize {
        self.records().saturating_sub(self.parked.load(Ordering::Relaxed))
    }

    /// Returns the number of lanes that publish, except parked ones.
    pub(crate) fn publishing_lanes(&self) -> usize {
        self.publishing.load(Ordering::Relaxed)
    }

    /// Returns the average number of records of a publishing lane, at least 1.
    pub(crate) fn per_lane(&self) -> usize {
        (self.moving() / self.publishing_lanes().max(1)).max(1)
    }

    /// Counts a lane that has something to publish.
    pub(crate) fn publishing(&self) -> PublishingLane<'_> {
        self.publishing.fetch_add(1, Ordering::Relaxed);
        PublishingLane { count: &self.publishing, counted: true }
    }

    /// Stops counting this many records of a lane as moving.
    pub(super) fn park(&self, records: usize) {
        self.publishing.fetch_sub(1, Ordering::Relaxed);
        self.parked.fetch_add(records, Ordering::Relaxed);
    }

    /// Ends [`park`](Self::park).
    pub(super) fn unpark(&self, records: usize) {
        self.publishing.fetch_add(1, Ordering::Relaxed);
        self.parked.fetch_sub(records, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Counts one lane as publishing, until dropped or paused.
#[derive(Debug)]
pub(crate) struct PublishingLane<'a> {
    count: &'a AtomicUsize,
    counted: bool,
}

impl PublishingLane<'_> {
    pub(crate) fn pause(&mut self) {
        if std::mem::replace(&mut self.counted, false) {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn resume(&mut self) {
        if !std::mem::replace(&mut self.counted, true) {
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for PublishingLane<'_> {
    fn drop(&mut self) {
        self.pause();
    }
}
