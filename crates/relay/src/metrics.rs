//! The metrics of the relay: one handle per series, created at the start so that each series
//! exists.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use bson::DateTime;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use postrider_outbox::repair::RepairCounts;
use postrider_store::metric::Description;

use crate::blocker::BlockReason;

/// Ended leases, by sink and outcome.
pub const DELIVERIES: &str = "postrider_deliveries_total";
/// From the start of a publish to the broker's answer.
pub const PUBLISH_DURATION_SECONDS: &str = "postrider_publish_duration_seconds";
/// From `createdAt` to the confirm.
pub const DELIVERY_LAG_SECONDS: &str = "postrider_delivery_lag_seconds";
/// Copies of dead records, by outcome and intended sink.
pub const DEAD_LETTERS: &str = "postrider_dead_letters_total";
/// Whether the sink is up.
pub const SINK_UP: &str = "postrider_sink_up";
/// Keys whose records must wait.
pub const BLOCKED_KEYS: &str = "postrider_blocked_keys";
/// Records repaired.
pub const REPAIRED: &str = "postrider_records_repaired_total";
/// Records that the change stream did not bring, found by an audit.
pub const AUDIT_FINDINGS: &str = "postrider_audit_findings_total";
/// Records that the relay read.
pub const RECORDS_SEEN: &str = "postrider_records_seen_total";
/// Whether MongoDB refuses or fails to do what the relay asks of it.
pub const STORE_FAILING: &str = "postrider_store_failing";
/// Partitions whose records the change stream carries.
pub const PARTITIONS_LIVE: &str = "postrider_partitions_live";
/// Whether a change stream follows the outbox.
pub const CHANGE_STREAM_UP: &str = "postrider_change_stream_up";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 12] = [
    Description::counter(DELIVERIES, "Deliveries (leases that ended), by sink and outcome."),
    Description::histogram(PUBLISH_DURATION_SECONDS, "Time from publish to the broker's answer.")
        .in_seconds(),
    Description::histogram(
        DELIVERY_LAG_SECONDS,
        "Time from createdAt (or seq) to the broker's confirm, by MongoDB's clock.",
    )
    .in_seconds(),
    Description::counter(DEAD_LETTERS, "Copies of dead records, by sink and outcome."),
    Description::gauge(SINK_UP, "1 while this instance reaches the broker of the sink, else 0."),
    Description::gauge(
        BLOCKED_KEYS,
        "Blocked keys, by reason. 200000 (reason blocked) and 100000 (all others) are known at most: at \
         least so many.",
    ),
    Description::counter(REPAIRED, "Records that the relay corrected, by what was wrong."),
    Description::counter(
        AUDIT_FINDINGS,
        "Records that the change stream did not report, found by an audit. Expected: 0.",
    ),
    Description::counter(
        RECORDS_SEEN,
        "Records of its partitions that this instance read, each time, by source: change_stream, scan, \
         recheck, audit.",
    ),
    Description::gauge(
        STORE_FAILING,
        "1 while this operation of the relay fails at MongoDB, by cause; else 0.",
    ),
    Description::gauge(
        PARTITIONS_LIVE,
        "Partitions whose records come from the change stream alone, without scans.",
    ),
    Description::gauge(
        CHANGE_STREAM_UP,
        "1 while a change stream is open, or closed on purpose; 0 while the relay polls.",
    ),
];

/// The label of records that died before a sink was chosen for them.
const NO_SINK: &str = "";

/// Metrics of one sink.
#[derive(Debug)]
pub struct SinkMetrics {
    publish: Histogram,
    delivery: Histogram,
    up: Gauge,
    dead_letters_sent: Counter,
    dead_letters_failed: Counter,
}

impl SinkMetrics {
    /// Creates the series of a sink of this name.
    pub fn new(sink: &str) -> Self {
        let dead_letters = |outcome: &'static str| {
            let series = counter!(DEAD_LETTERS, "sink" => sink.to_owned(), "outcome" => outcome);
            series.increment(0);
            series
        };
        Self {
            dead_letters_sent: dead_letters("sent"),
            dead_letters_failed: dead_letters("failed"),
            publish: histogram!(PUBLISH_DURATION_SECONDS, "sink" => sink.to_owned()),
            delivery: histogram!(DELIVERY_LAG_SECONDS, "sink" => sink.to_owned()),
            up: gauge!(SINK_UP, "sink" => sink.to_owned()),
        }
    }

    /// Notes whether the sink is up.
    pub fn up(&self, up: bool) {
        self.up.set(if up { 1.0 } else { 0.0 });
    }

    /// Notes whether a dead letter was sent.
    pub fn dead_letter(&self, sent: bool) {
        if sent {
            self.dead_letters_sent.increment(1)
        } else {
            self.dead_letters_failed.increment(1)
        }
    }

    /// Notes that a publish was answered after this time.
    pub fn published(&self, took: Duration) {
        self.publish.record(took);
    }

    /// Notes that a record created at `since` is confirmed at `now` (the server's clock).
    pub fn delivered(&self, since: Option<SystemTime>, now: DateTime) {
        if let Some(since) = since {
            let age = now.to_system_time().duration_since(since).unwrap_or(Duration::ZERO);
            self.delivery.record(age);
        }
    }
}

/// Where the relay read a record.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ReadSource {
    ChangeStream,
    Scan,
    /// The blockers of keys, read again.
    Recheck,
    Audit,
}

impl ReadSource {
    /// The labels, in the order of the variants.
    const LABELS: [&str; 4] = ["change_stream", "scan", "recheck", "audit"];
}

/// Metrics of the relay.
#[derive(Debug)]
pub struct RelayMetrics {
    seen: [Counter; ReadSource::LABELS.len()],
    settled: BTreeMap<String, Outcomes>,
    audit_findings: Counter,
    repaired_seq: Counter,
    repaired_partition: Counter,
}

#[derive(Debug)]
struct Outcomes {
    done: Counter,
    retry: Counter,
    dead: Counter,
    released: Counter,
    lost: Counter,
}

impl Outcomes {
    fn new(sink: &str) -> Self {
        let series = |outcome: &'static str| {
            let series = counter!(DELIVERIES, "sink" => sink.to_owned(), "outcome" => outcome);
            series.increment(0);
            series
        };
        Self {
            done: series("done"),
            retry: series("retry"),
            dead: series("dead"),
            released: series("released"),
            lost: series("lost"),
        }
    }
}

impl RelayMetrics {
    /// Creates the series of a relay with these sinks.
    pub fn new<'a>(sinks: impl Iterator<Item = &'a str>) -> Self {
        let sinks = sinks.chain([NO_SINK]);
        let settled = sinks.map(|sink| (sink.to_owned(), Outcomes::new(sink))).collect();
        let repaired = |what: &'static str| {
            let series = counter!(REPAIRED, "what" => what);
            series.increment(0);
            series
        };
        let (repaired_seq, repaired_partition) = (repaired("seq"), repaired("partition"));
        let audit_findings = counter!(AUDIT_FINDINGS);
        audit_findings.increment(0);
        let seen = ReadSource::LABELS.map(|source| counter!(RECORDS_SEEN, "source" => source));
        seen.iter().for_each(|series| series.increment(0));
        Self { seen, settled, audit_findings, repaired_seq, repaired_partition }
    }

    pub(crate) fn done(&self, sink: &str) {
        self.of(sink).done.increment(1);
    }

    pub(crate) fn retry(&self, sink: &str) {
        self.of(sink).retry.increment(1);
    }

    pub(crate) fn dead(&self, sink: &str) {
        self.of(sink).dead.increment(1);
    }

    pub(crate) fn released(&self, sink: &str) {
        self.of(sink).released.increment(1);
    }

    pub(crate) fn lost(&self, sink: &str) {
        self.of(sink).lost.increment(1);
    }

    /// Notes that this instance has read so many records of its partitions.
    pub(crate) fn seen(&self, source: ReadSource, records: usize) {
        self.seen[source as usize].increment(records as u64);
    }

    pub(crate) fn audit_finding(&self) {
        self.audit_findings.increment(1);
    }

    pub(crate) fn repaired(&self, repaired: RepairCounts) {
        self.repaired_seq.increment(repaired.seq);
        self.repaired_partition.increment(repaired.partition);
    }

    pub(crate) fn held(&self, counts: &[(BlockReason, usize)]) {
        for (reason, count) in counts {
            gauge!(BLOCKED_KEYS, "reason" => reason.as_str()).set(*count as f64);
        }
    }

    fn of(&self, sink: &str) -> &Outcomes {
        // The sinks are fixed; an unknown name is a record without a sink.
        self.settled.get(sink).unwrap_or_else(|| &self.settled[NO_SINK])
    }
}
