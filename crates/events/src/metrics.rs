//! What appends are counted by.

use std::time::Instant;

use metrics::{Counter, Histogram, counter, histogram};
use postrider_store::metric::Description;

use crate::append::Appended;
use crate::error::AppendError;

/// Appends to the event store, by outcome.
pub const APPENDS: &str = "postrider_appends_total";
/// From the request to the answer of an append.
pub const APPEND_SECONDS: &str = "postrider_append_seconds";

/// What each of these metrics is.
pub const DESCRIPTIONS: [Description; 2] = [
    Description::counter(APPENDS, "Appends to the event store that were answered, by outcome."),
    Description::histogram(APPEND_SECONDS, "Time from an append's arrival to its answer.")
        .in_seconds(),
];

/// One handle for each series, so that all of them are there from the start.
#[derive(Clone)]
pub struct AppendMetrics {
    appended: Counter,
    replayed: Counter,
    conflict: Counter,
    rejected: Counter,
    failed: Counter,
    seconds: Histogram,
}

impl AppendMetrics {
    /// All series at zero.
    #[expect(clippy::new_without_default, reason = "it registers series: an act, and no value")]
    pub fn new() -> Self {
        let outcome = |outcome: &'static str| counter!(APPENDS, "outcome" => outcome);
        Self {
            appended: outcome("appended"),
            replayed: outcome("replayed"),
            conflict: outcome("conflict"),
            rejected: outcome("rejected"),
            failed: outcome("failed"),
            seconds: histogram!(APPEND_SECONDS),
        }
    }

    /// An append that came at `since` was answered.
    pub(super) fn answered(&self, since: Instant, answer: Result<&Appended, &AppendError>) {
        self.seconds.record(since.elapsed().as_secs_f64());
        let outcome = match answer {
            Ok(appended) if appended.replayed => &self.replayed,
            Ok(_) => &self.appended,
            Err(
                AppendError::VersionConflict { .. }
                | AppendError::DuplicateAggregate { .. }
                | AppendError::DuplicateRequest { .. },
            ) => &self.conflict,
            Err(AppendError::Invalid(_) | AppendError::Overloaded | AppendError::Closed) => {
                &self.rejected
            }
            Err(AppendError::Schema(_) | AppendError::Unavailable(_) | AppendError::Unknown(_)) => {
                &self.failed
            }
        };
        outcome.increment(1);
    }
}
