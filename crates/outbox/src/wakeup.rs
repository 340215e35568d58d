//! How the relay learns that there is something to do before the timer says so.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use bson::Timestamp;
use tokio::sync::{Notify, watch};

use crate::ids::RecordId;
use crate::partition;
use crate::record::{LaneKey, Record};

/// A wake-up: never the truth, only a reason to scan. Losing one costs one poll.
///
/// Cloned to whoever may know: the closed circuit of a sink, an enqueue in this
/// process, the change stream.
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
    /// What blocks keys may have changed.
    recheck: Notify,
    events: Mutex<StreamEvents>,
    /// Events were taken: there is room for more.
    room: Notify,
}

/// What a change stream has said, until the relay takes it.
#[derive(Debug, Default)]
struct StreamEvents {
    waiting: VecDeque<StreamEvent>,
    bytes: usize,
}

/// Bytes of events that may wait for the relay: a few batches.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// What a change stream says, in its order.
#[derive(Debug)]
pub enum StreamEvent {
    /// It was opened: it brings whatever a snapshot of this moment does not show.
    Opened(Timestamp),
    /// It is no more.
    Closed,
    /// This record became pending at this moment.
    Pending(Box<Record>, Timestamp),
    /// Something is pending in this lane, or was changed, at this moment.
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
    /// This record became pending, or was changed, at this moment, and its partition is invalid: not
    /// every such one is found by a scan.
    Misplaced(Box<Record>, Timestamp),
    /// Something is pending, and it is not known where.
    Somewhere,
}

impl StreamEvent {
    /// Where to scan for what has become pending.
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

    /// The moment up to which the stream was read.
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

/// What has come since the relay was last woken.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct WakeReasons {
    /// Whether a scan of everything was asked for.
    pub all: bool,
    /// Where to scan, in the order in which they came.
    pub hints: Vec<ScanHint>,
}

/// Where to scan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScanHint {
    /// At a key.
    Key {
        /// Its partition.
        partition: u8,
        /// The key.
        key: Arc<str>,
    },
    /// At a record without a key.
    Record {
        /// Its partition.
        partition: u8,
        /// Its `_id`.
        id: RecordId,
    },
}

impl ScanHint {
    /// At this lane, or at the only record that it can have.
    pub fn of(partition: u8, lane: LaneKey, id: RecordId) -> Self {
        match lane {
            LaneKey::Keyed(key) => Self::Key { partition, key },
            LaneKey::Single(_) => Self::Record { partition, id },
        }
    }

    /// At a key, in the partition that is its own.
    pub fn of_key(key: &str) -> Self {
        Self::Key { partition: partition::of_key(key), key: key.into() }
    }

    /// The partition that it leads to.
    pub fn partition(&self) -> u8 {
        match self {
            Self::Key { partition, .. } | Self::Record { partition, .. } => *partition,
        }
    }
}

/// More hints than this are a scan of everything: it finds all.
const MAX_HINTS: usize = 256;

impl Wakeup {
    /// Asks for a scan of everything.
    pub fn all(&self) {
        self.reasons().all = true;
        self.inner.notify.notify_one();
    }

    /// An operator has changed records: asks for a scan of everything, and for a round of rechecks
    /// of the blocked keys.
    pub fn changed(&self) {
        self.inner.recheck.notify_one();
        self.all();
    }

    /// Resolves when blocked keys are to be rechecked, or at once when that was asked for since the
    /// last call.
    pub async fn until_changed(&self) {
        self.inner.recheck.notified().await;
    }

    /// Asks for a scan of one place.
    pub fn at(&self, hint: ScanHint) {
        {
            let mut reasons = self.reasons();
            if reasons.hints.len() >= MAX_HINTS {
                reasons.all = true;
            } else if !reasons.hints.contains(&hint) {
                reasons.hints.push(hint);
            }
        }
        self.inner.notify.notify_one();
    }

    /// Tells what a change stream says.
    pub fn tell(&self, event: StreamEvent) {
        {
            let mut events = self.events();
            events.bytes += event.size();
            events.waiting.push_back(event);
        }
        self.inner.notify.notify_one();
    }

    /// Resolves when there is room for more events.
    pub async fn until_room(&self) {
        while self.events().bytes > MAX_EVENT_BYTES {
            self.inner.room.notified().await;
        }
    }

    /// Takes what a change stream has said.
    pub fn take_events(&self) -> VecDeque<StreamEvent> {
        let taken = std::mem::take(&mut *self.events());
        self.inner.room.notify_one();
        taken.waiting
    }

    /// Resolves at the next wake-up, or at once when one came since the last call.
    pub async fn woken(&self) {
        self.inner.notify.notified().await;
    }

    /// Takes what has come.
    pub fn take(&self) -> WakeReasons {
        std::mem::take(&mut self.reasons())
    }

    /// The relay tells whether its batches come back full, so that nothing needs to wake it.
    pub fn set_saturated(&self, saturated: bool) {
        self.inner.saturated.send_if_modified(|was| std::mem::replace(was, saturated) != saturated);
    }

    /// Resolves as soon as that is so.
    pub async fn until_saturated(&self, saturated: bool) {
        let mut watched = self.inner.saturated.subscribe();
        // The sender is this very value.
        let _ = watched.wait_for(|is| *is == saturated).await;
    }

    /// Whoever wakes tells whether it is at work: the relay need not scan often by itself.
    pub fn set_followed(&self, followed: bool) {
        self.inner.followed.store(followed, Ordering::Relaxed);
    }

    /// Whether what is inserted wakes the relay.
    pub fn is_followed(&self) -> bool {
        self.inner.followed.load(Ordering::Relaxed)
    }

    fn events(&self) -> MutexGuard<'_, StreamEvents> {
        self.inner.events.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn reasons(&self) -> MutexGuard<'_, WakeReasons> {
        self.inner.reasons.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hint(number: usize) -> ScanHint {
        ScanHint::Key { partition: 0, key: number.to_string().into() }
    }

    #[test]
    fn a_look_at_everything_is_not_forgotten_for_a_hint() {
        let wakeup = Wakeup::default();

        wakeup.all();
        wakeup.at(hint(1));
        wakeup.at(hint(1));

        assert_eq!(wakeup.take(), WakeReasons { all: true, hints: vec![hint(1)] });
        assert_eq!(wakeup.take(), WakeReasons::default());
    }

    #[test]
    fn more_hints_than_are_kept_are_a_look_at_everything() {
        let wakeup = Wakeup::default();

        (0..MAX_HINTS).for_each(|number| wakeup.at(hint(number)));
        assert!(!wakeup.take().all);
        (0..=MAX_HINTS).for_each(|number| wakeup.at(hint(number)));

        assert!(wakeup.take().all);
    }
}
