//! Metrics of appends.

use std::time::Instant;

use metrics::{Counter, Histogram, counter, histogram};
use postrider_store::metric::Description;

use crate::append::Appended;
use crate::error::AppendError;

/// Appends to the event store, by outcome.
pub const APPENDS: &str = "postrider_appends_total";
/// From the request to the answer of an append.
pub const APPEND_SECONDS: &str = "postrider_append_seconds";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 2] = [
    Description::counter(APPENDS, "Appends to the event store that were answered, by outcome."),
    Description::histogram(APPEND_SECONDS, "Time from an append's arrival to its answer.")
        .in_seconds(),
];

/// The outcomes of appends.
const OUTCOMES: [&str; 5] = ["appended", "replayed", "conflict", "rejected", "failed"];

/// One handle for each series, so that all of them exist from the start.
#[derive(Clone)]
pub struct AppendMetrics {
    outcomes: [Counter; OUTCOMES.len()],
    seconds: Histogram,
}

impl AppendMetrics {
    /// Registers all series at zero.
    #[expect(clippy::new_without_default, reason = "it registers series: an act, and no value")]
    pub fn new() -> Self {
        let outcomes = OUTCOMES.map(|outcome| counter!(APPENDS, "outcome" => outcome));
        Self { outcomes, seconds: histogram!(APPEND_SECONDS) }
    }

    /// Counts an append that arrived at `since` and was answered now.
    pub(super) fn answered(&self, since: Instant, answer: Result<&Appended, &AppendError>) {
        self.seconds.record(since.elapsed().as_secs_f64());
        let outcomes = OUTCOMES.iter().zip(&self.outcomes);
        let of_answer = outcomes.filter(|(name, _)| **name == outcome(answer));
        of_answer.for_each(|(_, counter)| counter.increment(1));
    }
}

/// The outcome of an append, as metrics and logs name it.
pub(super) fn outcome(answer: Result<&Appended, &AppendError>) -> &'static str {
    use AppendError as E;
    match answer {
        Ok(appended) if appended.replayed => "replayed",
        Ok(_) => "appended",
        Err(
            E::VersionConflict { .. } | E::DuplicateAggregate { .. } | E::DuplicateRequest { .. },
        ) => "conflict",
        Err(E::Invalid(_) | E::Overloaded | E::Closed) => "rejected",
        Err(E::Schema(_) | E::Unavailable(_) | E::Unknown(_)) => "failed",
    }
}
