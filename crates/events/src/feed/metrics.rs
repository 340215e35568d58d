//! Metrics of the feed.

use std::time::{SystemTime, UNIX_EPOCH};

use metrics::{Counter, Gauge, counter, gauge};
use postrider_store::metric::Description;

/// The last position.
pub const HEAD: &str = "postrider_feed_head";
/// Whether this process assigns positions.
pub const OWNER: &str = "postrider_feed_owner";
/// Appends that got positions, by who reported them.
pub const SEQUENCED: &str = "postrider_feed_appends_total";
/// Age of the oldest append that waits for a position.
pub const LAG_SECONDS: &str = "postrider_feed_lag_seconds";
/// Streams that get no further positions, by reason.
pub const HELD: &str = "postrider_feed_blocked_streams";
/// Whether the change stream of the feed is open.
pub const CHANGE_STREAM_UP: &str = "postrider_feed_change_stream_up";

/// Event stream documents that cannot be decoded.
pub const INVALID: &str = "postrider_feed_invalid_documents_total";
/// Whether this process fails to assign positions.
pub const FAILING: &str = "postrider_feed_failing";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 8] = [
    Description::gauge(
        HEAD,
        "The last position of the feed, in the process that assigns positions.",
    ),
    Description::gauge(OWNER, "1 in the process that assigns positions, else 0."),
    Description::counter(
        SEQUENCED,
        "Appends that got positions, by source: report (of an append or the change stream), scan \
         (committed before these), or audit (no report named them).",
    ),
    Description::gauge(
        LAG_SECONDS,
        "Age of the oldest append that is known to wait for a position.",
    )
    .in_seconds(),
    Description::gauge(
        HELD,
        "Streams with a missing version, invalid documents and collections without the index, \
         which get no positions, by reason.",
    ),
    Description::gauge(
        CHANGE_STREAM_UP,
        "1 while the feed has a change stream on the event streams, else 0.",
    ),
    Description::counter(
        INVALID,
        "Invalid documents of event streams that readers of this process have met, of the first 1,000 \
         different ones. Their events are read, and marked.",
    ),
    Description::gauge(FAILING, "1 while this process fails to assign positions, else 0."),
];

/// Who reported an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// An append of this process, or the change stream.
    Report,
    /// A scan of what was committed before reports came.
    Scan,
    /// A later scan: no report has brought it.
    Audit,
}

const SOURCES: [&str; 3] = ["report", "scan", "audit"];

/// One handle for each series.
pub(super) struct FeedMetrics {
    pub(super) head: Gauge,
    pub(super) owner: Gauge,
    sequenced: [Counter; SOURCES.len()],
    pub(super) lag: Gauge,
    pub(super) gaps: Gauge,
    pub(super) invalid: Gauge,
    pub(super) unusable: Gauge,
    pub(super) change_stream_up: Gauge,
    pub(super) failing: Gauge,
}

impl FeedMetrics {
    /// Registers all series.
    pub(super) fn new() -> Self {
        Self {
            head: gauge!(HEAD),
            owner: gauge!(OWNER),
            sequenced: SOURCES.map(|source| counter!(SEQUENCED, "source" => source)),
            lag: gauge!(LAG_SECONDS),
            gaps: gauge!(HELD, "reason" => "missing_version"),
            invalid: gauge!(HELD, "reason" => "invalid_document"),
            unusable: gauge!(HELD, "reason" => "no_index"),
            change_stream_up: gauge!(CHANGE_STREAM_UP),
            failing: gauge!(FAILING),
        }
    }

    pub(super) fn sequenced(&self, source: Source, count: usize) {
        self.sequenced[source as usize].increment(u64::try_from(count).unwrap_or(0));
    }

    /// This process assigns no positions any longer: another one reports what waits.
    pub(super) fn resign(&self) {
        let known_by_owner = [&self.lag, &self.gaps, &self.invalid, &self.unusable];
        for gauge in known_by_owner.into_iter().chain([&self.owner, &self.change_stream_up]) {
            gauge.set(0.0);
        }
    }

    /// The age of an append of this time, by this machine's clock.
    pub(super) fn waits_since(&self, create_time: Option<i64>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let age = create_time.map_or(0.0, |time| now.as_secs_f64() - time as f64 / 1_000.0);
        self.lag.set(age.max(0.0));
    }
}
