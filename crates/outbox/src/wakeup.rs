//! Wakes the relay before its timer does.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::ids::RecordId;
use crate::partition;
use crate::record::{LaneKey, Record};

/// A wake-up is only a hint to scan: a lost one costs one poll interval.
///
/// Shared with the circuits of sinks, enqueues in this process, and the change stream.
#[derive(Clone, Debug, Default)]
pub struct Wakeup {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    notify: Notify,
    reasons: Mutex<WakeReasons>,
    saturated: watch::Sender<bool>,
    followed: AtomicBool,
    /// Blocked keys may have changed.
    changed: watch::Sender<()>,
    events: Mutex<StreamEvents>,
    /// Events were taken, so there is room for more.
    room: Notify,
}

/// Events of the change stream that the relay has not taken yet.
#[derive(Debug, Default)]
struct StreamEvents {
    waiting: VecDeque<StreamEvent>,
    bytes: usize,
}

/// Maximum bytes of waiting events: a few batches.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Events of a change stream, in its order.
#[derive(Debug)]
pub enum StreamEvent {
    /// The stream was opened: it reports all that a snapshot of this moment does not show.
    Opened(Timestamp),
    /// The stream ended.
    Closed,
    /// This record became pending at this moment.
    Pending(Box<Record>, Timestamp),
    /// A record in this lane became pending or was changed, at this moment.
    Touched {
        /// The lane's partition.
        partition: u8,
        /// The lane.
        lane: LaneKey,
        /// The record.
        id: RecordId,
        /// When.
        at: Timestamp,
    },
    /// This record, with an invalid partition, became pending or was changed at this moment. Not
    /// every such record is found by a scan.
    Misplaced(Box<Record>, Timestamp),
    /// Something is pending at an unknown place.
    Somewhere,
}

impl StreamEvent {
    /// Returns where to scan for the record.
    pub fn hint(&self) -> Option<ScanHint> {
        match self {
            Self::Pending(record, _) | Self::Misplaced(record, _) => {
                Some(ScanHint::of(record.partition, record.lane.clone(), record.id.clone()))
            }
            Self::Touched { partition, lane, id, .. } => {
                Some(ScanHint::of(*partition, lane.clone(), id.clone()))
            }
            Self::Opened(_) | Self::Closed | Self::Somewhere => None,
        }
    }

    /// Returns the partition of the record.
    pub fn partition(&self) -> Option<u8> {
        match self {
            Self::Pending(record, _) | Self::Misplaced(record, _) => Some(record.partition),
            Self::Touched { partition, .. } => Some(*partition),
            Self::Opened(_) | Self::Closed | Self::Somewhere => None,
        }
    }

    /// Returns the moment up to which the stream was read.
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Self::Opened(at)
            | Self::Pending(_, at)
            | Self::Misplaced(_, at)
            | Self::Touched { at, .. } => Some(*at),
            Self::Closed | Self::Somewhere => None,
        }
    }

    fn size(&self) -> usize {
        size_of::<Self>()
            + match self {
                Self::Pending(record, _) | Self::Misplaced(record, _) => record.size(),
                Self::Touched { lane, .. } => 2 * lane.as_str().len(),
                Self::Opened(_) | Self::Closed | Self::Somewhere => 0,
            }
    }
}

/// Reasons for a scan since the last wake-up.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WakeReasons {
    /// Whether to scan everything.
    pub all: bool,
    /// Places to scan, in the order of arrival.
    pub hints: Vec<ScanHint>,
}

/// A place to scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanHint {
    /// A key.
    Key {
        /// Its partition.
        partition: u8,
        /// The key.
        key: Arc<str>,
    },
    /// A record without a key.
    Record {
        /// Its partition.
        partition: u8,
        /// Its `_id`.
        id: RecordId,
    },
}

impl ScanHint {
    /// Creates the hint of this lane, or of its only record.
    pub fn of(partition: u8, lane: LaneKey, id: RecordId) -> Self {
        match lane {
            LaneKey::Keyed(key) => Self::Key { partition, key },
            LaneKey::Single(_) => Self::Record { partition, id },
        }
    }

    /// Creates the hint of a key in its own partition.
    pub fn of_key(key: &str) -> Self {
        Self::Key { partition: partition::of_key(key), key: key.into() }
    }

    /// Returns the partition.
    pub fn partition(&self) -> u8 {
        match self {
            Self::Key { partition, .. } | Self::Record { partition, .. } => *partition,
        }
    }
}

/// Maximum number of hints; more become a scan of everything.
const MAX_HINTS: usize = 256;

impl Wakeup {
    /// Requests a scan of everything.
    pub fn all(&self) {
        self.inner.reasons.lock().all = true;
        self.inner.notify.notify_one();
    }

    /// Requests a scan of everything and a recheck of blocked keys, after an operator changed
    /// records.
    pub fn changed(&self) {
        self.inner.changed.send_replace(());
        self.all();
    }

    /// Watches for requests to recheck blocked keys.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changed.subscribe()
    }

    /// Requests a scan of one place.
    pub fn at(&self, hint: ScanHint) {
        {
            let mut reasons = self.inner.reasons.lock();
            if reasons.hints.len() >= MAX_HINTS {
                reasons.all = true;
            } else if !reasons.hints.contains(&hint) {
                reasons.hints.push(hint);
            }
        }
        self.inner.notify.notify_one();
    }

    /// Adds an event of the change stream.
    pub fn push_event(&self, event: StreamEvent) {
        {
            let mut events = self.inner.events.lock();
            events.bytes += event.size();
            events.waiting.push_back(event);
        }
        self.inner.notify.notify_one();
    }

    /// Resolves when there is room for more events.
    pub async fn until_room(&self) {
        while self.inner.events.lock().bytes > MAX_EVENT_BYTES {
            self.inner.room.notified().await;
        }
    }

    /// Takes the waiting events.
    pub fn take_events(&self) -> VecDeque<StreamEvent> {
        let taken = std::mem::take(&mut *self.inner.events.lock());
        self.inner.room.notify_one();
        taken.waiting
    }

    /// Resolves at the next wake-up, or at once if one came since the last call.
    pub async fn woken(&self) {
        self.inner.notify.notified().await;
    }

    /// Takes the reasons so far.
    pub fn take(&self) -> WakeReasons {
        std::mem::take(&mut self.inner.reasons.lock())
    }

    /// Sets whether the relay's batches are full, so that it does not depend on wake-ups.
    pub fn set_saturated(&self, saturated: bool) {
        self.inner.saturated.send_if_modified(|was| std::mem::replace(was, saturated) != saturated);
    }

    /// Resolves as soon as saturation has this value.
    pub async fn until_saturated(&self, saturated: bool) {
        let mut watched = self.inner.saturated.subscribe();
        // `self` owns the sender, so the channel stays open.
        let _ = watched.wait_for(|is| *is == saturated).await;
    }

    /// Sets whether the change stream is connected: the relay then polls less often.
    pub fn set_followed(&self, followed: bool) {
        self.inner.followed.store(followed, Ordering::Relaxed);
    }

    /// Returns whether inserts wake the relay.
    pub fn is_followed(&self) -> bool {
        self.inner.followed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(number: usize) -> ScanHint {
        ScanHint::Key { partition: 0, key: number.to_string().into() }
    }

    #[test]
    fn scan_of_everything_is_kept_when_a_hint_follows() {
        let wakeup = Wakeup::default();

        wakeup.all();
        wakeup.at(hint(1));
        wakeup.at(hint(1));

        assert_eq!(wakeup.take(), WakeReasons { all: true, hints: vec![hint(1)] });
        assert_eq!(wakeup.take(), WakeReasons::default());
    }

    #[test]
    fn too_many_hints_become_a_scan_of_everything() {
        let wakeup = Wakeup::default();

        (0..MAX_HINTS).for_each(|number| wakeup.at(hint(number)));
        assert!(!wakeup.take().all);
        (0..=MAX_HINTS).for_each(|number| wakeup.at(hint(number)));

        assert!(wakeup.take().all);
    }
}
