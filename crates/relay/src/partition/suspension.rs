//! Detects that this process did not run for a while: it was suspended, stopped by a signal, or hung.
//!
//! Meanwhile a process of the same name may have replaced it ([`names`](crate::partition::names)). It
//! publishes nothing until it has read the instances and partitions again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postrider_store::boot_instant::BootInstant;

/// The age of the last tick from which a process counts as suspended. It may have missed the
/// [`ANSWER_TIMEOUT`](crate::partition::names::ANSWER_TIMEOUT). After a shorter suspension 0.4 s are left
/// to answer, and the next read starts within 0.25 s.
pub const SUSPENSION_AGE: Duration = Duration::from_millis(600);

/// The longest interval between two ticks.
pub(super) const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Detects a suspension of the process.
#[derive(Debug, Default)]
pub struct SuspensionDetector {
    /// The last tick, in milliseconds; 0 before the first.
    last_tick: AtomicU64,
    /// Whether the partitions have not been read since a suspension.
    awaits_read: AtomicBool,
}

impl SuspensionDetector {
    /// Creates a detector without a tick.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns whether a publish may start.
    pub fn may_publish(&self, now: BootInstant) -> bool {
        !self.awaits_read.load(Ordering::Acquire) && !self.was_suspended(now)
    }

    /// Records a tick. Returns whether the process was suspended until now.
    pub(super) fn tick(&self, now: BootInstant) -> bool {
        let stood_still = self.was_suspended(now);
        if stood_still {
            self.awaits_read.store(true, Ordering::Release);
        }
        self.last_tick.store(millis(now), Ordering::Release);
        stood_still
    }

    /// Records that the partitions were read after a suspension, and are still owned.
    pub(super) fn read_again(&self) {
        self.awaits_read.store(false, Ordering::Release);
    }

    fn was_suspended(&self, now: BootInstant) -> bool {
        let last = self.last_tick.load(Ordering::Acquire);
        let limit = u64::try_from(SUSPENSION_AGE.as_millis()).unwrap_or(u64::MAX);
        last != 0 && millis(now).saturating_sub(last) >= limit
    }
}

fn millis(moment: BootInstant) -> u64 {
    u64::try_from(moment.since_boot().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishing_stops_from_a_suspension_to_the_next_read() {
        let (suspension, begin) = (SuspensionDetector::new(), BootInstant::now());
        assert!(suspension.may_publish(begin), "before the first tick");
        assert!(!suspension.tick(begin));
        assert!(suspension.may_publish(begin + SUSPENSION_AGE / 2));
        let woken = begin + SUSPENSION_AGE;

        assert!(!suspension.may_publish(woken), "before the tick");
        assert!(suspension.tick(woken));
        assert!(!suspension.may_publish(woken), "before the read");
        assert!(!suspension.tick(woken + TICK_INTERVAL));
        suspension.read_again();
        assert!(suspension.may_publish(woken + TICK_INTERVAL));
    }
}
