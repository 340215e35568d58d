//! What of the schema is configured.

use std::time::Duration;

use crate::config::tree::{Outbox, Validator};

/// The two settings that the schema depends on, beside the collections' prefix.
///
/// The default is the configuration's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchemaOptions {
    /// How long a delivered record stays.
    pub retention: Duration,
    /// What happens to a wrong record at its insertion, where the collection is created.
    pub validator: Validator,
}

impl SchemaOptions {
    /// The retention as a TTL index takes it.
    ///
    /// A part of a second counts as a whole one, so that no record goes before its time;
    /// beyond 68 years it is the most that MongoDB accepts.
    pub fn expire_after_seconds(&self) -> i32 {
        let part = u64::from(self.retention.subsec_nanos() > 0);
        let seconds = self.retention.as_secs().saturating_add(part);
        i32::try_from(seconds).unwrap_or(i32::MAX)
    }
}

impl From<&Outbox> for SchemaOptions {
    fn from(outbox: &Outbox) -> Self {
        Self { retention: outbox.retention, validator: outbox.validator }
    }
}

impl Default for SchemaOptions {
    fn default() -> Self {
        Self::from(&Outbox::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_second_is_a_whole_one_and_nothing_is_too_long() {
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
