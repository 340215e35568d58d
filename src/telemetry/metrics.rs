//! All metrics (`docs/monitoring.md`) and their exporter.

use metrics::gauge;
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_process::Collector;
use postrider_store::metric::Description;
use postrider_store::metrics::{CHECKOUT_DURATION_SECONDS, OPERATION_DURATION_SECONDS};

use crate::events::metrics::APPEND_DURATION_SECONDS;
use crate::relay::metrics::{DELIVERY_LAG_SECONDS, PUBLISH_DURATION_SECONDS};
use crate::{events, partition, relay};

/// Records by status.
pub const OUTBOX_RECORDS: &str = "postrider_outbox_records";
/// Age of the oldest pending record.
pub const OLDEST_PENDING: &str = "postrider_oldest_pending_age_seconds";
/// Settings of collections by which documents are lost.
pub const SCHEMA_HAZARDS: &str = "postrider_schema_hazards";
/// Version and revision of this build.
pub const BUILD_INFO: &str = "postrider_build_info";
/// Requests to the API, by answer.
pub const HTTP_REQUESTS: &str = "postrider_http_requests_total";
/// From the headers of a request to the beginning of its answer.
pub const HTTP_REQUEST_DURATION_SECONDS: &str = "postrider_http_request_duration_seconds";

/// The git commit of this build, from the variable `POSTRIDER_REVISION` at its compilation; empty without it.
pub const REVISION: &str = match option_env!("POSTRIDER_REVISION") {
    Some(revision) => revision,
    None => "",
};

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 6] = [
    Description::gauge(OUTBOX_RECORDS, "Records in the outbox, by status."),
    Description::gauge(
        OLDEST_PENDING,
        "Age of the oldest pending record, from its seq; 0 when none is pending.",
    )
    .in_seconds(),
    Description::gauge(
        SCHEMA_HAZARDS,
        "Indexes and settings of collections that remove, hide or refuse documents of Postrider.",
    ),
    Description::gauge(BUILD_INFO, "Always 1; the labels name the version and the git commit."),
    Description::counter(
        HTTP_REQUESTS,
        "Requests to the API, by method, route and status; 499: the client left first.",
    ),
    Description::histogram(
        HTTP_REQUEST_DURATION_SECONDS,
        "Time from the headers of a request to the beginning of its answer.",
    )
    .in_seconds(),
];

/// The descriptions of the metrics that [`Collector`] sets, under the names that all exporters of Prometheus use.
const PROCESS_DESCRIPTIONS: [Description; 8] = [
    Description::counter(
        "process_cpu_seconds_total",
        "CPU time of the process, user and system, in whole seconds.",
    )
    .in_seconds(),
    Description::gauge("process_resident_memory_bytes", "Memory of the process in RAM.").in_bytes(),
    Description::gauge("process_virtual_memory_bytes", "Virtual memory of the process.").in_bytes(),
    Description::gauge(
        "process_virtual_memory_max_bytes",
        "Limit of the virtual memory of the process; 0 without a limit.",
    )
    .in_bytes(),
    Description::gauge("process_open_fds", "Open file descriptors of the process."),
    Description::gauge("process_max_fds", "Limit of open file descriptors; 0 without a limit."),
    Description::gauge("process_start_time_seconds", "Start of the process, as a Unix time.")
        .in_seconds(),
    Description::gauge("process_threads", "Threads of the process."),
];

/// All metrics of Postrider.
pub fn descriptions() -> impl Iterator<Item = Description> {
    [
        relay::metrics::DESCRIPTIONS.as_slice(),
        partition::metrics::DESCRIPTIONS.as_slice(),
        postrider_store::metrics::DESCRIPTIONS.as_slice(),
        #[cfg(feature = "rabbitmq")]
        crate::sink::rabbitmq::metrics::DESCRIPTIONS.as_slice(),
        #[cfg(feature = "kafka")]
        crate::sink::kafka::statistics::DESCRIPTIONS.as_slice(),
        events::metrics::DESCRIPTIONS.as_slice(),
        events::feed::metrics::DESCRIPTIONS.as_slice(),
        events::subscriptions::metrics::DESCRIPTIONS.as_slice(),
        crate::adopt::metrics::DESCRIPTIONS.as_slice(),
        DESCRIPTIONS.as_slice(),
        PROCESS_DESCRIPTIONS.as_slice(),
    ]
    .concat()
    .into_iter()
}

/// From a broker on the same host (under a millisecond) to the publish timeout.
const PUBLISH_DURATION_SECONDS_BUCKETS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// From a relay that was woken (milliseconds) to a backlog of a night.
const DELIVERY_LAG_SECONDS_BUCKETS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3_600.0, 36_000.0];

/// From one transaction on a near MongoDB (milliseconds) to the retry timeout of appends.
const APPEND_DURATION_SECONDS_BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// From one read on a near MongoDB (a millisecond) to the limit of one operation.
const OPERATION_DURATION_SECONDS_BUCKETS: [f64; 12] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// From a connection that is free (microseconds) to the time to select a server.
const CHECKOUT_DURATION_SECONDS_BUCKETS: [f64; 6] = [0.0001, 0.001, 0.01, 0.1, 1.0, 5.0];

/// From a read on a near MongoDB (milliseconds) to the default of `api.timeout`.
const HTTP_REQUEST_DURATION_SECONDS_BUCKETS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// Renders the page of a scrape, with the present metrics of the process and without gauges of unknown value.
pub fn page(metrics: &PrometheusHandle) -> String {
    Collector::default().collect();
    postrider_store::pools::report();
    let known = |line: &&str| line.starts_with('#') || !line.trim_end().ends_with(" NaN");
    metrics.render().split_inclusive('\n').filter(known).collect()
}

/// Installs the exporter of this process; [`page`] renders its metrics.
///
/// # Errors
///
/// A recorder is installed already.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    let buckets: [(&str, &[f64]); 6] = [
        (PUBLISH_DURATION_SECONDS, &PUBLISH_DURATION_SECONDS_BUCKETS),
        (DELIVERY_LAG_SECONDS, &DELIVERY_LAG_SECONDS_BUCKETS),
        (APPEND_DURATION_SECONDS, &APPEND_DURATION_SECONDS_BUCKETS),
        (OPERATION_DURATION_SECONDS, &OPERATION_DURATION_SECONDS_BUCKETS),
        (CHECKOUT_DURATION_SECONDS, &CHECKOUT_DURATION_SECONDS_BUCKETS),
        (HTTP_REQUEST_DURATION_SECONDS, &HTTP_REQUEST_DURATION_SECONDS_BUCKETS),
    ];
    let mut builder = PrometheusBuilder::new();
    for (name, buckets) in buckets {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.into()), buckets)?;
    }
    let handle = builder.install_recorder()?;
    descriptions().for_each(|description| description.register());
    postrider_store::metrics::create_series();
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION"), "revision" => REVISION).set(1.0);
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::partition::metrics::UNKNOWN;

    fn names(text: &str) -> BTreeSet<&str> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let words = text.split(|c| !is_name(c));
        let is_metric =
            |word: &&str| ["postrider_", "process_"].iter().any(|prefix| word.starts_with(prefix));
        words.filter(|word| is_metric(word) && !word.ends_with('_')).collect()
    }

    #[test]
    fn documentation_lists_exactly_all_metrics() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/monitoring.md");
        let page = std::fs::read_to_string(file).unwrap();
        let (_, signals) = page.split_once("\n## Metrics\n").unwrap();
        let (signals, _) = signals.split_once("\n## ").unwrap();
        let described: BTreeSet<&str> = descriptions().map(|metric| metric.name).collect();

        assert_eq!(names(signals), described);
    }

    #[test]
    fn gauge_of_unknown_value_is_not_rendered() {
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
