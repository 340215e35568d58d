//! Points in time on this host, by a clock that nobody sets and that no suspension stops.

use std::ops::Add;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// What [`Instant`](std::time::Instant) is, but for a host that was suspended: there the clock of
/// `Instant` stands still (Linux, `CLOCK_MONOTONIC`), while leases and heartbeats run out elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(Duration);

/// Elsewhere than on Linux the monotonic clock goes on, or there is no other.
#[cfg(target_os = "linux")]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(not(target_os = "linux"))]
const CLOCK: ClockId = ClockId::Monotonic;

impl Moment {
    /// This one.
    pub fn now() -> Self {
        let time = clock_gettime(CLOCK);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
        Self(Duration::new(seconds, nanos))
    }

    /// How long after the start of the host it is; where the clock cannot tell, after another fixed
    /// moment.
    pub fn since_boot(self) -> Duration {
        self.0
    }

    /// How long after `earlier` it is; zero where it is before.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_and_never_back() {
        let first = Moment::now();
        std::thread::sleep(Duration::from_millis(5));
        let second = Moment::now();

        assert!(second.since(first) >= Duration::from_millis(5));
        assert_eq!(first.since(second), Duration::ZERO);
        assert!(first + Duration::from_secs(60) > second);
    }
}
