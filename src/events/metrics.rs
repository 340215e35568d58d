//! What appends are counted by.

use std::time::Instant;

use metrics::{Counter, Histogram, counter, histogram};

use crate::events::append::Appended;
use crate::events::error::AppendError;
use crate::telemetry::metrics::{APPEND_SECONDS, APPENDS};

/// One handle for each series, so that all of them are there from the start.
#[derive(Clone)]
pub(crate) struct AppendMetrics {
    appended: Counter,
    replayed: Counter,
    conflict: Counter,
    rejected: Counter,
    failed: Counter,
    seconds: Histogram,
}

impl AppendMetrics {
    pub(crate) fn new() -> Self {
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
