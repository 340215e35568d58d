//! Metrics of the bridge.

use metrics::{Counter, Gauge, counter, gauge};
use postrider_store::metric::Description;

use crate::read::SkipReason;

/// Documents that were copied.
pub const COPIED: &str = "postrider_adopt_copied_total";
/// Documents that were skipped.
pub const SKIPPED: &str = "postrider_adopt_skipped_total";
/// Scans of the whole source.
pub const SCANS: &str = "postrider_adopt_scans_total";
/// Whether this process copies.
pub const OWNER: &str = "postrider_adopt_owner";
/// Whether the change stream of the source is open.
pub const CHANGE_STREAM_UP: &str = "postrider_adopt_change_stream_up";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 5] = [
    Description::counter(COPIED, "Documents of another outbox that `postrider adopt` copied."),
    Description::counter(
        SKIPPED,
        "Documents of another outbox that `postrider adopt` skipped, each time that it read them, by reason: \
         unknown_status, malformed, failed, duplicate, changed, refused.",
    ),
    Description::counter(
        SCANS,
        "Scans of the other outbox, by reason: start, or lost_stream (the records are in the order of the \
         source's time).",
    ),
    Description::gauge(OWNER, "1 in the process that copies documents of another outbox, else 0."),
    Description::gauge(
        CHANGE_STREAM_UP,
        "1 while `postrider adopt` receives changes of the other outbox, else 0.",
    ),
];

/// One handle for each series.
pub(crate) struct AdoptMetrics {
    pub(crate) copied: Counter,
    skipped: [Counter; SkipReason::ALL.len()],
    pub(crate) scans_at_start: Counter,
    pub(crate) scans_of_lost_stream: Counter,
    pub(crate) owner: Gauge,
    pub(crate) change_stream_up: Gauge,
}

impl AdoptMetrics {
    pub(crate) fn new() -> Self {
        Self {
            copied: counter!(COPIED),
            skipped: SkipReason::ALL.map(|reason| counter!(SKIPPED, "reason" => reason.label())),
            scans_at_start: counter!(SCANS, "reason" => "start"),
            scans_of_lost_stream: counter!(SCANS, "reason" => "lost_stream"),
            owner: gauge!(OWNER),
            change_stream_up: gauge!(CHANGE_STREAM_UP),
        }
    }

    pub(crate) fn skipped(&self, reason: SkipReason) {
        self.skipped[reason as usize].increment(1);
    }
}
