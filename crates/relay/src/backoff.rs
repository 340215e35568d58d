//! How long a record waits after a charged failure.

use std::time::Duration;

/// The course of the waits (contract, section 5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Always `initial`.
    Fixed,
    /// `initial · n`.
    Linear,
    /// `initial · factor^(n-1)`.
    Exponential,
}

/// Waits by the number of the charged attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    /// The course.
    pub kind: Kind,
    /// The first wait.
    pub initial: Duration,
    /// Growth of the exponential course.
    pub factor: f64,
    /// The longest wait, before jitter.
    pub max: Duration,
    /// Share by which a wait is shortened or lengthened at random, 0 to 1.
    pub jitter: f64,
}

impl Backoff {
    /// The wait after the `attempt`-th charged attempt (from 1).
    pub fn delay(&self, attempt: u32) -> Duration {
        self.with_chance(attempt, rand::random_range(-1.0..=1.0))
    }

    /// As [`delay`](Self::delay), with `chance` from -1 to 1 in place of the dice.
    fn with_chance(&self, attempt: u32, chance: f64) -> Duration {
        let step = attempt.max(1);
        let initial = self.initial.as_secs_f64();
        let raw = match self.kind {
            Kind::Fixed => initial,
            Kind::Linear => initial * f64::from(step),
            Kind::Exponential => {
                initial * self.factor.powi(i32::try_from(step - 1).unwrap_or(i32::MAX))
            }
        };
        let capped = raw.min(self.max.as_secs_f64());
        Duration::try_from_secs_f64((capped * (1.0 + self.jitter * chance)).max(0.0))
            .unwrap_or(self.max)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backoff(kind: Kind) -> Backoff {
        Backoff {
            kind,
            initial: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(10),
            jitter: 0.2,
        }
    }

    #[test]
    fn each_kind_follows_its_table_up_to_the_cap() {
        for (kind, seconds) in [
            (Kind::Fixed, [1, 1, 1, 1, 1, 1]),
            (Kind::Linear, [1, 2, 3, 4, 5, 6]),
            (Kind::Exponential, [1, 2, 4, 8, 10, 10]),
        ] {
            let delays = [1, 2, 3, 4, 5, 6].map(|n| backoff(kind).with_chance(n, 0.0).as_secs());

            assert_eq!(delays, seconds, "{kind:?}");
        }
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_share_whatever_the_attempt(attempt in 0..2_000_000_u32) {
            let exact = backoff(Kind::Exponential).with_chance(attempt, 0.0).as_secs_f64();

            let delay = backoff(Kind::Exponential).delay(attempt).as_secs_f64();

            prop_assert!(delay >= exact * 0.799 && delay <= exact * 1.201);
        }
    }
}
