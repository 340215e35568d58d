//! The names of all metrics, fixed by the contract (section 8), and their exporter.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Leases ended, by sink and outcome.
pub const SETTLED: &str = "postrider_records_settled_total";
/// From hand-over to the broker's answer.
pub const PUBLISH_SECONDS: &str = "postrider_publish_seconds";
/// From `createdAt` to the confirm.
pub const DELIVERY_SECONDS: &str = "postrider_delivery_seconds";
/// Copies of dead records, by the sink they are for and outcome.
pub const DEAD_LETTERS: &str = "postrider_dead_letters_total";
/// Records by status.
pub const OUTBOX_RECORDS: &str = "postrider_outbox_records";
/// Age of the oldest pending record.
pub const OLDEST_PENDING: &str = "postrider_oldest_pending_age_seconds";
/// Partitions that this instance delivers.
pub const PARTITIONS_OWNED: &str = "postrider_partitions_owned";
/// Partitions that no living instance has.
pub const PARTITIONS_UNASSIGNED: &str = "postrider_partitions_unassigned";
/// Instances whose heartbeats are fresh.
pub const INSTANCES_ACTIVE: &str = "postrider_instances_active";
/// How often partitions came to this instance or went.
pub const REBALANCES: &str = "postrider_rebalances_total";
/// Whether the fleet is paused.
pub const PAUSED: &str = "postrider_paused";
/// Whether a majority of MongoDB acknowledged the last heartbeat.
pub const STORE_UP: &str = "postrider_store_up";
/// Whether MongoDB refuses, or does not do, what the relay asks of it.
pub const STORE_FAILING: &str = "postrider_store_failing";
/// Whether a change stream follows the outbox.
pub const FOLLOW_UP: &str = "postrider_follow_up";
/// Partitions whose records the change stream carries.
pub const PARTITIONS_LIVE: &str = "postrider_partitions_live";
/// Records that the change stream did not bring, found by an audit.
pub const AUDIT_FINDINGS: &str = "postrider_audit_findings_total";
/// Whether the sink is up.
pub const SINK_UP: &str = "postrider_sink_up";
/// Keys whose records must wait.
pub const KEYS_HELD: &str = "postrider_keys_held";
/// Records repaired.
pub const REPAIRED: &str = "postrider_records_repaired_total";
/// Records in a Kafka producer's queue or on their way.
pub const KAFKA_QUEUE_MESSAGES: &str = "postrider_kafka_queue_messages";
/// Their bytes.
pub const KAFKA_QUEUE_BYTES: &str = "postrider_kafka_queue_bytes";
/// Requests that Kafka has not answered yet.
pub const KAFKA_IN_FLIGHT: &str = "postrider_kafka_requests_in_flight";
/// Round trip to the slowest broker.
pub const KAFKA_RTT: &str = "postrider_kafka_rtt_seconds";
/// Requests to Kafka.
pub const KAFKA_REQUESTS: &str = "postrider_kafka_requests_total";
/// Bytes sent to Kafka.
pub const KAFKA_SENT_BYTES: &str = "postrider_kafka_sent_bytes_total";
/// Requests to Kafka that were repeated.
pub const KAFKA_RETRIES: &str = "postrider_kafka_request_retries_total";
/// Requests to Kafka that had no answer in time.
pub const KAFKA_TIMEOUTS: &str = "postrider_kafka_request_timeouts_total";
/// Appends to the event store, by outcome.
pub const APPENDS: &str = "postrider_appends_total";
/// From the request to the answer of an append.
pub const APPEND_SECONDS: &str = "postrider_append_seconds";
/// Version of this build.
pub const BUILD_INFO: &str = "postrider_build_info";

/// From a broker on the same host (under a millisecond) to the publish timeout.
const PUBLISH_BUCKETS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// From a woken relay (milliseconds) to a backlog worked off after a night.
const DELIVERY_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3_600.0, 36_000.0];

/// From one transaction on a store nearby (milliseconds) to the patience of an append.
const APPEND_BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// The value of a gauge that was known and is so no more: [`page`] leaves it out, since the
/// exporter forgets no series.
pub const UNKNOWN: f64 = f64::NAN;

/// The page that a scrape gets.
pub fn page(metrics: &PrometheusHandle) -> String {
    let known = |line: &&str| line.starts_with('#') || !line.trim_end().ends_with(" NaN");
    metrics.render().split_inclusive('\n').filter(known).collect()
}

/// Whether MongoDB is there: 0 from the start until the first heartbeat.
pub fn store_up(up: bool) {
    gauge!(STORE_UP).set(if up { 1.0 } else { 0.0 });
}

/// Installs the exporter for this process; [`page`] renders what comes back.
///
/// # Errors
///
/// A recorder is installed already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Full(PUBLISH_SECONDS.into()), &PUBLISH_BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(DELIVERY_SECONDS.into()), &DELIVERY_BUCKETS)?
        .set_buckets_for_metric(Matcher::Full(APPEND_SECONDS.into()), &APPEND_BUCKETS)?
        .install_recorder()?;
    describe();
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Ok(handle)
}

fn describe() {
    describe_counter!(SETTLED, "Leases ended, by sink and outcome.");
    describe_histogram!(
        PUBLISH_SECONDS,
        Unit::Seconds,
        "Time from hand-over to the broker's answer."
    );
    describe_histogram!(
        DELIVERY_SECONDS,
        Unit::Seconds,
        "Time from createdAt (else seq) to the broker's confirm, by the server's clock."
    );
    describe_counter!(
        DEAD_LETTERS,
        "Copies of dead records, by the sink they are for and outcome."
    );
    describe_gauge!(OUTBOX_RECORDS, "Records in the outbox, by status.");
    describe_gauge!(
        OLDEST_PENDING,
        Unit::Seconds,
        "Age of the oldest pending record, from its seq; 0 when none is pending."
    );
    describe_gauge!(PARTITIONS_OWNED, "Partitions that this instance delivers.");
    describe_gauge!(
        PARTITIONS_UNASSIGNED,
        "Partitions that no living instance has, as this one sees it."
    );
    describe_gauge!(INSTANCES_ACTIVE, "Instances whose heartbeats are fresh, this one included.");
    describe_counter!(REBALANCES, "Times that partitions came to this instance or went.");
    describe_gauge!(PAUSED, "1 while the fleet is paused, else 0.");
    describe_gauge!(STORE_UP, "1 while a majority of MongoDB acknowledges heartbeats, else 0.");
    describe_gauge!(
        STORE_FAILING,
        "1 while this work of the relay fails at MongoDB, by the cause; else 0."
    );
    describe_gauge!(
        FOLLOW_UP,
        "1 while the change stream is open, or closed on purpose; 0 while the relay polls."
    );
    describe_gauge!(
        PARTITIONS_LIVE,
        "Partitions whose records the change stream carries, so that nothing is read to find them."
    );
    describe_counter!(
        AUDIT_FINDINGS,
        "Records that the change stream did not bring, found by an audit: there should be none."
    );
    describe_gauge!(SINK_UP, "1 while the sink is up, else 0.");
    describe_gauge!(KEYS_HELD, "Keys whose records must wait, by reason.");
    describe_counter!(
        REPAIRED,
        "Records that were given what their producer left out, by what it was."
    );
    describe_gauge!(KAFKA_QUEUE_MESSAGES, "Records in a Kafka producer's queue or on their way.");
    describe_gauge!(KAFKA_QUEUE_BYTES, Unit::Bytes, "Bytes of the same.");
    describe_gauge!(KAFKA_IN_FLIGHT, "Requests that Kafka has not answered yet.");
    describe_gauge!(
        KAFKA_RTT,
        Unit::Seconds,
        "Round trip to the slowest broker, its 99th percentile of late."
    );
    describe_counter!(KAFKA_REQUESTS, "Requests sent to Kafka.");
    describe_counter!(KAFKA_SENT_BYTES, Unit::Bytes, "Bytes sent to Kafka, compressed.");
    describe_counter!(KAFKA_RETRIES, "Requests to Kafka that were repeated.");
    describe_counter!(KAFKA_TIMEOUTS, "Requests to Kafka that had no answer in time.");
    describe_counter!(APPENDS, "Appends to the event store that were answered, by outcome.");
    describe_histogram!(
        APPEND_SECONDS,
        Unit::Seconds,
        "Time from an append's arrival to its answer."
    );
    describe_gauge!(BUILD_INFO, "Always 1; the label names the version.");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(text: &str) -> BTreeSet<&str> {
        let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = text.split(|c| !is_name(c));
        words.filter(|word| word.starts_with("postrider_") && !word.ends_with('_')).collect()
    }

    #[test]
    fn operators_are_told_of_every_metric_and_of_no_other() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/monitoring.md");
        let page = std::fs::read_to_string(file).unwrap();
        let (_, signals) = page.split_once("\n## Metrics\n").unwrap();
        let (signals, _) = signals.split_once("\n## ").unwrap();
        let source = include_str!("metrics.rs");
        let constants: Vec<&str> =
            source.lines().filter(|line| line.starts_with("pub const ")).collect();

        assert_eq!(names(signals), names(&constants.join("\n")));
    }

    #[test]
    fn a_gauge_that_is_not_known_is_not_on_the_page() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            gauge!("unknown").set(UNKNOWN);
            gauge!("known").set(0.0);
        });

        let page = page(&handle);

        assert!(page.contains("\nknown 0") && !page.contains("\nunknown "), "{page}");
    }
}
