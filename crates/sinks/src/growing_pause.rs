//! A pause between attempts that grows while they follow one another.

use std::time::{Duration, Instant};

/// When the last attempt began, and the pause after it.
#[derive(Debug, Default)]
pub(super) struct GrowingPause(Option<(Instant, Duration)>);

impl GrowingPause {
    /// Returns whether the next attempt may begin.
    pub(super) fn is_over(&self) -> bool {
        self.0.is_none_or(|(at, pause)| at.elapsed() > pause)
    }

    /// Begins an attempt. The pause after it is `first`, and twice the last one, up to `max`, if the last attempt
    /// was a short time ago.
    pub(super) fn begin(&mut self, first: Duration, max: Duration) {
        let recent = self.0.filter(|(at, pause)| at.elapsed() < *pause + max);
        let pause = recent.map_or(first, |(_, pause)| (pause * 2).min(max));
        self.0 = Some((Instant::now(), pause));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_while_attempts_follow_one_another() {
        let (first, max) = (Duration::from_secs(2), Duration::from_secs(5));
        let mut pause = GrowingPause::default();
        assert!(pause.is_over());

        let pauses = [0; 3].map(|_| {
            pause.begin(first, max);
            assert!(!pause.is_over());
            pause.0.map(|(_, pause)| pause.as_secs())
        });
        assert_eq!(pauses, [Some(2), Some(4), Some(5)]);

        pause.0 = Instant::now().checked_sub(2 * max).map(|long_ago| (long_ago, max));
        assert!(pause.is_over());
        pause.begin(first, max);
        assert_eq!(pause.0.map(|(_, pause)| pause), Some(first));
    }
}
