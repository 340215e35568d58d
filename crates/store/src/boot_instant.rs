//! Points in time by the boot-time clock, which is never set and includes suspension.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Like [`Instant`](std::time::Instant), but includes the time that a host was suspended. The clock
/// of `Instant` stops then (Linux, `CLOCK_MONOTONIC`), while leases and heartbeats expire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BootInstant(Duration);

/// On other systems than Linux the monotonic clock includes suspension, or there is no other.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

impl BootInstant {
    /// Returns the current moment.
    pub fn now() -> Self {
        let time = clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Self(Duration::new(seconds, nanos))
    }

    /// Returns the time since the host started, or since another fixed moment if the clock cannot
    /// be read.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns the time since `earlier`; zero if that is later.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootInstant {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moment_never_decreases() {
        let first = BootInstant::now();
        std::thread::sleep(Duration::from_millis(5));
        let second = BootInstant::now();

        assert!(second.since(first) >= Duration::from_millis(5));
        assert_eq!(first.since(second), Duration::ZERO);
        assert!(first + Duration::from_secs(60) > second);
    }
}
