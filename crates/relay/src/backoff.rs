//! How long a record waits after a counted failure.

use std::time::Duration;

use postrider_settings::Rules;
use postrider_settings::units::HumanDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the waits grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum BackoffKind {
    /// `initial`.
    Fixed,
    /// `initial · n`.
    Linear,
    /// `initial · factor^(n-1)`.
    Exponential,
}

/// The section `[relay.backoff]`: the wait after the n-th counted failure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// After the n-th counted failure: `fixed` waits `initial`, `linear` `initial·n`, `exponential` `initial·factor^(n-1)`.
    pub kind: BackoffKind,
    /// The first wait.
    #[serde(with = "HumanDuration")]
    pub initial: Duration,
    /// Growth of the exponential kind.
    #[schemars(range(min = 1.0))]
    pub factor: f64,
    /// The longest wait, before jitter; not below `initial`.
    #[serde(with = "HumanDuration")]
    pub max: Duration,
    /// The share by which a wait is shortened or lengthened at random.
    #[schemars(range(min = 0.0, max = 1.0))]
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            kind: BackoffKind::Exponential,
            initial: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(300),
            jitter: 0.2,
        }
    }
}

impl Backoff {
    /// Checks the rules of more than one key.
    pub fn validate(&self, rules: &mut Rules) {
        rules.require(self.max >= self.initial, "max", "must be at least relay.backoff.initial");
    }

    /// The wait after the `attempt`-th counted attempt (from 1).
    pub fn delay(&self, attempt: u32) -> Duration {
        self.with_chance(attempt, rand::random_range(-1.0..=1.0))
    }

    /// As [`delay`](Self::delay), with `chance` from -1 to 1 in place of the dice.
    fn with_chance(&self, attempt: u32, chance: f64) -> Duration {
        let step = attempt.max(1);
        let initial = self.initial.as_secs_f64();
        let raw = match self.kind {
            BackoffKind::Fixed => initial,
            BackoffKind::Linear => initial * f64::from(step),
            BackoffKind::Exponential => {
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

    fn backoff(kind: BackoffKind) -> Backoff {
        Backoff { kind, max: Duration::from_secs(10), ..Backoff::default() }
    }

    #[test]
    fn each_kind_follows_its_table_up_to_the_cap() {
        for (kind, seconds) in [
            (BackoffKind::Fixed, [1, 1, 1, 1, 1, 1]),
            (BackoffKind::Linear, [1, 2, 3, 4, 5, 6]),
            (BackoffKind::Exponential, [1, 2, 4, 8, 10, 10]),
        ] {
            let delays = [1, 2, 3, 4, 5, 6].map(|n| backoff(kind).with_chance(n, 0.0).as_secs());

            assert_eq!(delays, seconds, "{kind:?}");
        }
    }

    proptest! {
        #[test]
        fn jitter_stays_within_its_share_whatever_the_attempt(attempt in 0..2_000_000_u32) {
            let exact = backoff(BackoffKind::Exponential).with_chance(attempt, 0.0).as_secs_f64();

            let delay = backoff(BackoffKind::Exponential).delay(attempt).as_secs_f64();

            prop_assert!(delay >= exact * 0.799 && delay <= exact * 1.201);
        }
    }
}
