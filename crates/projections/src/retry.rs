//! Pauses between tries: exponential, with a random part.

use std::time::Duration;

/// How often something is tried again, and after which pauses: `2^n * pause`, and up to one `pause` more
/// at random, for the `n`-th retry from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The most retries.
    pub retries: u32,
    /// The unit of the pauses.
    pub pause: Duration,
    /// The longest pause, without the random part.
    pub longest: Duration,
}

impl Default for RetryPolicy {
    /// 5 retries, after 100 ms, 200 ms, 400 ms, 800 ms and 1600 ms.
    fn default() -> Self {
        Self { retries: 5, pause: Duration::from_millis(100), longest: Duration::from_secs(30) }
    }
}

impl RetryPolicy {
    /// Without an end: for what passes by itself.
    pub(crate) const ENDLESS: Self = Self {
        retries: u32::MAX,
        pause: Duration::from_millis(20),
        longest: Duration::from_secs(5),
    };

    /// The pause before this retry, counted from 0; `None` when there is none.
    pub(crate) fn pause_before(&self, retry: u32) -> Option<Duration> {
        (retry < self.retries).then(|| {
            let exponential = self.pause.saturating_mul(2_u32.saturating_pow(retry));
            exponential.min(self.longest) + self.pause.mul_f64(rand::random_range(0.0..1.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_and_end_after_five() {
        let policy = RetryPolicy::default();

        for (retry, least) in [(0, 100), (1, 200), (2, 400), (3, 800), (4, 1600)] {
            let least = Duration::from_millis(least);
            let pauses: Vec<Duration> =
                (0..200).map(|_| policy.pause_before(retry).unwrap()).collect();
            assert!(pauses.iter().all(|it| (least..least + policy.pause).contains(it)), "{retry}");
            assert!(pauses.iter().any(|it| *it > least + policy.pause / 4), "{retry}");
        }
        assert_eq!(policy.pause_before(5), None);
        assert!(RetryPolicy::ENDLESS.pause_before(1_000).unwrap() < Duration::from_secs(6));
    }
}
