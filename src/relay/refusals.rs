//! Records that MongoDB refuses to have leased.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use tracing::warn;

use crate::ids::RecordId;
use crate::outbox::record::Record;

/// Which of them were told: each once, not at every try.
///
/// Our own validator lets the relay change whatever it finds; one that somebody else gave the
/// collection may not. Such a record can't even be made dead: a person must mend the validator.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    told: Mutex<HashSet<RecordId>>,
}

/// Told at most: whoever has read so many knows.
const TOLD: usize = 1_000;

impl Refusals {
    /// Pause before such a record is tried again.
    pub(crate) const REST: Duration = Duration::from_secs(5);

    /// Tells of one, unless it was told before.
    pub(crate) fn tell(&self, record: &Record, code: i32) {
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if told.len() < TOLD && told.insert(record.id.clone()) {
            warn!(
                id = %record.id,
                key = record.lane.as_str(),
                code,
                "MongoDB refuses to lease a record, which waits with its key: let the validator of \
                 outbox_records permit what the relay writes"
            );
        }
    }
}
