//! Metrics of appends.

use std::time::Instant;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use postrider_store::metric::Description;
use postrider_store::schema::SchemaError;

use crate::append::Appended;
use crate::error::AppendError;

/// Appends to the event store, by outcome.
pub const APPENDS: &str = "postrider_appends_total";
/// From the request to the answer of an append.
pub const APPEND_DURATION_SECONDS: &str = "postrider_append_duration_seconds";

/// Erasures of streams that are not complete.
pub const ERASURES_OPEN: &str = "postrider_erasures_open";
/// Erasures of streams that this process has completed.
pub const ERASURES_COMPLETED: &str = "postrider_erasures_completed_total";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 4] = [
    Description::counter(APPENDS, "Answered appends to the event store, by outcome."),
    Description::histogram(
        APPEND_DURATION_SECONDS,
        "Time from the arrival of an append to its answer.",
    )
    .in_seconds(),
    Description::gauge(ERASURES_OPEN, "Erasures of event streams that are not complete."),
    Description::counter(
        ERASURES_COMPLETED,
        "Erasures of event streams that this process completed.",
    ),
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
        Self { outcomes, seconds: histogram!(APPEND_DURATION_SECONDS) }
    }

    /// Counts an append that arrived at `since` and was answered now.
    pub(super) fn answered(&self, since: Instant, answer: Result<&Appended, &AppendError>) {
        self.seconds.record(since.elapsed().as_secs_f64());
        let outcomes = OUTCOMES.iter().zip(&self.outcomes);
        let of_answer = outcomes.filter(|(name, _)| **name == outcome(answer));
        of_answer.for_each(|(_, counter)| counter.increment(1));
    }
}

/// The metrics of erasures.
#[derive(Clone)]
pub struct ErasureMetrics {
    open: Gauge,
    completed: Counter,
}

impl ErasureMetrics {
    /// Registers both series.
    #[expect(clippy::new_without_default, reason = "it registers series: an act, and no value")]
    pub fn new() -> Self {
        Self { open: gauge!(ERASURES_OPEN), completed: counter!(ERASURES_COMPLETED) }
    }

    /// Sets how many erasures are open; `None` if that is unknown.
    pub(super) fn set_open(&self, open: Option<u64>) {
        self.open.set(open.map_or(f64::NAN, |open| open as f64));
    }

    pub(super) fn completed(&self) {
        self.completed.increment(1);
    }
}

/// The outcome of an append, as metrics and logs name it.
pub(super) fn outcome(answer: Result<&Appended, &AppendError>) -> &'static str {
    use AppendError as E;
    match answer {
        Ok(appended) if appended.replayed => "replayed",
        Ok(_) => "appended",
        Err(
            E::VersionConflict { .. }
            | E::DuplicateAggregate { .. }
            | E::StreamEnded { .. }
            | E::DuplicateRequest { .. },
        ) => "conflict",
        Err(E::Schema(error)) if matches!(**error, SchemaError::Name { .. }) => "rejected",
        Err(E::Invalid(_) | E::Overloaded | E::Closed) => "rejected",
        Err(E::Schema(_) | E::Unavailable(_) | E::Unknown(_)) => "failed",
    }
}
