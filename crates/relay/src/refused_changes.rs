//! Records that MongoDB refuses to have changed.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bson::Timestamp;
use parking_lot::Mutex;
use postrider_outbox::ids::RecordId;
use postrider_outbox::record::{LaneKey, Record};
use tracing::warn;

use crate::reported::Reported;

/// Records that MongoDB refuses to change: which of them are logged, each once, and which rest
/// until the relay tries to correct them again.
///
/// The validator of Postrider permits every change of the relay; a validator of the user's own may
/// not. Such a record cannot even be made dead: an operator must change the validator.
#[derive(Debug, Default)]
pub(crate) struct RefusedChanges {
    reported: Reported<RecordId>,
    resting: Mutex<HashMap<RecordId, Resting>>,
}

/// A misplaced record that waits until the relay tries again.
#[derive(Debug)]
struct Resting {
    lane: LaneKey,
    seq: Option<Timestamp>,
    until: Instant,
}

/// Records that rest at most, some 300 KB; a scan reads the others in each rotation.
const MAX_RESTING: usize = 2_000;

impl RefusedChanges {
    /// Pause before such a record is tried again.
    pub(crate) const RETRY_PAUSE: Duration = Duration::from_secs(5);

    /// Logs a record, unless it was logged before.
    pub(crate) fn report(&self, record: &Record, code: i32) {
        if self.reported.is_news(&record.id) {
            warn!(
                id = %record.id,
                key = record.lane.as_str(),
                code,
                "MongoDB rejects a change of a record, which blocks its key; change the \
                 validator of outbox_records to permit what the relay writes"
            );
        }
    }

    /// Notes that MongoDB refused to correct this record, with `code`: it rests for a while, and
    /// blocks its key.
    pub(crate) fn hold(&self, record: &Record, code: i32) {
        self.report(record, code);
        let mut resting = self.resting.lock();
        let now = Instant::now();
        resting.retain(|_, resting| resting.until > now);
        if resting.len() < MAX_RESTING {
            let (lane, seq) = (record.lane.clone(), record.seq);
            resting
                .insert(record.id.clone(), Resting { lane, seq, until: now + Self::RETRY_PAUSE });
        }
    }

    /// Returns when this record may be tried again; `None` if it does not rest.
    pub(crate) fn held_until(&self, id: &RecordId) -> Option<Instant> {
        let resting = self.resting.lock();
        if resting.is_empty() {
            return None;
        }
        resting.get(id).map(|resting| resting.until).filter(|until| *until > Instant::now())
    }

    /// Returns whether a record of this key rests.
    pub(crate) fn holds_key(&self, lane: &LaneKey) -> bool {
        let now = Instant::now();
        self.resting.lock().values().any(|resting| resting.until > now && resting.lane == *lane)
    }

    /// Returns the records that rest now: id, key and `seq`.
    pub(crate) fn held(&self) -> Vec<(RecordId, LaneKey, Option<Timestamp>)> {
        let now = Instant::now();
        let resting = self.resting.lock();
        let resting = resting.iter().filter(|(_, resting)| resting.until > now);
        resting.map(|(id, resting)| (id.clone(), resting.lane.clone(), resting.seq)).collect()
    }
}
