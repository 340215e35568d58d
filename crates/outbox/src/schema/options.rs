//! The settings that the schema depends on.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How long a delivered record stays by default: long enough to look into last week's incident.
pub const DEFAULT_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Settings that the schema depends on, in addition to the prefix of the collections.
///
/// The default is that of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaOptions {
    /// How long a delivered record stays.
    pub retention: Duration,
    /// What happens to a wrong record at its insertion, where the collection is created.
    pub validator: Validator,
}

impl SchemaOptions {
    /// Returns the retention in seconds for a TTL index.
    ///
    /// Rounds up, so that no record expires early, and clamps to the maximum of MongoDB (68 years).
    pub fn expire_after_seconds(&self) -> i32 {
        let part = u64::from(self.retention.subsec_nanos() > 0);
        let seconds = self.retention.as_secs().saturating_add(part);
        i32::try_from(seconds).unwrap_or(i32::MAX)
    }
}

impl Default for SchemaOptions {
    fn default() -> Self {
        Self { retention: DEFAULT_RETENTION, validator: Validator::Error }
    }
}

/// What the validator does with a wrong record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Validator {
    /// MongoDB refuses the insertion.
    Error,
    /// MongoDB logs the insertion.
    Warn,
    /// The collection has no validator.
    Off,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retention_rounds_up_and_is_clamped_to_the_maximum() {
        for (retention, expected) in [
            (Duration::ZERO, 0),
            (Duration::from_millis(1), 1),
            (Duration::from_millis(1_001), 2),
            (Duration::from_secs(604_800), 604_800),
            (Duration::MAX, i32::MAX),
        ] {
            let options = SchemaOptions { retention, ..SchemaOptions::default() };

            assert_eq!(options.expire_after_seconds(), expected, "{retention:?}");
        }
    }
}
