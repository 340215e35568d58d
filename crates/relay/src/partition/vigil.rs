//! Whether this process has stood still: suspended, stopped by a signal, or hung.
//!
//! A process that stood still may have been replaced meanwhile, by one of the same name
//! ([`names`](crate::partition::names)). So it publishes nothing before it has read the instances
//! and partitions again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use postrider_store::moment::Moment;

/// A process whose tick is missing for so long has stood still: it may not have answered in time
/// ([`ANSWER_TIMEOUT`](crate::partition::names::ANSWER_TIMEOUT)) that it is alive. One that stood still
/// for less has 0.4 s left to answer in, of which it may wait 0.25 s until it looks.
pub const STANDSTILL: Duration = Duration::from_millis(600);

/// How often it ticks at least.
pub(super) const TICK_INTERVAL: Duration = Duration::from_millis(100);

/// Notices that the process stood still.
#[derive(Debug, Default)]
pub struct Vigil {
    /// The last tick, in milliseconds; 0 before the first.
    last_tick: AtomicU64,
    /// It stood still, and the partitions were not read since.
    awaits_read: AtomicBool,
}

impl Vigil {
    /// A vigil that has not begun.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether a publish may start.
    pub fn may_publish(&self, now: Moment) -> bool {
        !self.awaits_read.load(Ordering::Acquire) && !self.stands_still(now)
    }

    /// Notes that the process runs. Returns whether it stood still until now.
    pub(super) fn tick(&self, now: Moment) -> bool {
        let stood_still = self.stands_still(now);
        if stood_still {
            self.awaits_read.store(true, Ordering::Release);
        }
        self.last_tick.store(millis(now), Ordering::Release);
        stood_still
    }

    /// The partitions were read since the process stood still, and are still its own.
    pub(super) fn read_again(&self) {
        self.awaits_read.store(false, Ordering::Release);
    }

    fn stands_still(&self, now: Moment) -> bool {
        let last = self.last_tick.load(Ordering::Acquire);
        let limit = u64::try_from(STANDSTILL.as_millis()).unwrap_or(u64::MAX);
        last != 0 && millis(now).saturating_sub(last) >= limit
    }
}

fn millis(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_published_from_a_standstill_to_the_next_read() {
        let (vigil, begin) = (Vigil::new(), Moment::now());
        assert!(vigil.may_publish(begin), "nobody watches");
        assert!(!vigil.tick(begin));
        assert!(vigil.may_publish(begin + STANDSTILL / 2));
        let woken = begin + STANDSTILL;

        assert!(!vigil.may_publish(woken), "before the tick");
        assert!(vigil.tick(woken));
        assert!(!vigil.may_publish(woken), "before the read");
        assert!(!vigil.tick(woken + TICK_INTERVAL));
        vigil.read_again();
        assert!(vigil.may_publish(woken + TICK_INTERVAL));
    }
}
