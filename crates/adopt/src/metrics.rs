//! Metrics of the bridge.

use metrics::{Counter, Gauge, counter, gauge};
use postrider_store::metric::Description;

use crate::read::LeftReason;

/// Documents that were copied.
pub const COPIED: &str = "postrider_adopt_copied_total";
/// Documents that were left as they are.
pub const LEFT: &str = "postrider_adopt_left_total";
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
        LEFT,
        "Looks at documents of another outbox that stay as they are, by reason: unknown_status, malformed, \
         failed, duplicate, changed, refused.",
    ),
    Description::counter(
        SCANS,
        "Scans of the other outbox, by reason: start, or lost_stream, where the order is that of the \
         source's time.",
    ),
    Description::gauge(OWNER, "1 in the process that copies documents of another outbox, else 0."),
    Description::gauge(
        CHANGE_STREAM_UP,
        "1 while `postrider adopt` follows the other outbox, else 0.",
    ),
];

/// One handle for each series.
pub(crate) struct AdoptMetrics {
    pub(crate) copied: Counter,
    left: [Counter; LeftReason::ALL.len()],
    pub(crate) scans_at_start: Counter,
    pub(crate) scans_of_lost_stream: Counter,
    pub(crate) owner: Gauge,
    pub(crate) change_stream_up: Gauge,
}

impl AdoptMetrics {
    pub(crate) fn new() -> Self {
        Self {
            copied: counter!(COPIED),
            left: LeftReason::ALL.map(|reason| counter!(LEFT, "reason" => reason.label())),
            scans_at_start: counter!(SCANS, "reason" => "start"),
            scans_of_lost_stream: counter!(SCANS, "reason" => "lost_stream"),
            owner: gauge!(OWNER),
            change_stream_up: gauge!(CHANGE_STREAM_UP),
        }
    }

    pub(crate) fn left(&self, reason: LeftReason) {
        self.left[reason as usize].increment(1);
    }
}
