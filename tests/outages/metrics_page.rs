//! The metrics page after an outage: complete, valid, correct, and the same in the real Prometheus.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::support::outbox::eventually;
use crate::support::process::Postrider;
use crate::support::prometheus::{LABELS, Scraped, labels_and_metrics, promtool};

const OUTCOMES: [&str; 5] = ["done", "retry", "dead", "released", "lost"];

/// The series that are always there, in addition to those of each sink.
const ALWAYS: [&str; 23] = [
    "postrider_blocked_keys{reason=\"not_due\"}",
    "postrider_blocked_keys{reason=\"leased\"}",
    "postrider_blocked_keys{reason=\"sink_down\"}",
    "postrider_blocked_keys{reason=\"destination_down\"}",
    "postrider_blocked_keys{reason=\"quarantined\"}",
    "postrider_blocked_keys{reason=\"refused\"}",
    "postrider_blocked_keys{reason=\"dead_letter\"}",
    "postrider_blocked_keys{reason=\"blocked\"}",
    "postrider_outbox_records{status=\"pending\"}",
    "postrider_outbox_records{status=\"dead\"}",
    "postrider_records_repaired_total{what=\"seq\"}",
    "postrider_records_repaired_total{what=\"partition\"}",
    "postrider_oldest_pending_age_seconds",
    "postrider_partitions_owned",
    "postrider_store_up",
    "postrider_records_seen_total{source=\"change_stream\"}",
    "postrider_records_seen_total{source=\"scan\"}",
    "postrider_mongodb_operations_total{operation=\"lease\",outcome=\"ok\"}",
    "postrider_mongodb_operations_total{operation=\"settle\",outcome=\"error\"}",
    "postrider_mongodb_connections{state=\"in_use\"}",
    "postrider_mongodb_checkout_failures_total",
    "process_resident_memory_bytes",
    "process_cpu_seconds_total",
];

/// The expected counts of `postrider_deliveries_total`, over all sinks.
pub struct Settled {
    pub done: u64,
    pub retry: u64,
    pub dead: u64,
    pub lost: u64,
    /// How many records are released differs with each outage.
    pub released: RangeInclusive<u64>,
}

impl Settled {
    /// This many delivered, and otherwise only releases.
    pub fn done(done: u64) -> Self {
        Self { done, retry: 0, dead: 0, lost: 0, released: 0..=u64::MAX }
    }

    fn is(&self, sums: &BTreeMap<&str, u64>) -> bool {
        let exact = [self.done, self.retry, self.dead, self.lost];
        exact == ["done", "retry", "dead", "lost"].map(|outcome| sums[outcome])
            && self.released.contains(&sums["released"])
    }
}

/// The samples of a page by their series.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let sample = |line: &str| {
        let (series, value) = line.rsplit_once(' ').unwrap();
        (series.to_owned(), value.parse().unwrap())
    };
    lines.map(sample).collect()
}

fn sums(samples: &BTreeMap<String, f64>) -> BTreeMap<&'static str, u64> {
    let sum = |outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        let of_outcome = samples.iter().filter(|(series, _)| {
            series.starts_with("postrider_deliveries_total{") && series.contains(&label)
        });
        of_outcome.map(|(_, value)| *value as u64).sum()
    };
    OUTCOMES.into_iter().map(|outcome| (outcome, sum(outcome))).collect()
}

fn another_may_count(samples: &BTreeMap<String, f64>) -> bool {
    samples.get("postrider_instances_active").is_none_or(|count| *count > 1.0)
}

/// Whether the outbox has been counted, if this instance must count it.
fn is_counted(samples: &BTreeMap<String, f64>) -> bool {
    another_may_count(samples)
        || samples.contains_key("postrider_outbox_records{status=\"pending\"}")
}

/// After an outage: every sink is up again, no key waits, the counts are those of the outage, and
/// promtool and Prometheus accept the page.
pub async fn is_whole_and_clean(postrider: &Postrider, sinks: &[&str], settled: Settled) {
    let page = async || postrider.get("/metrics").await.1;
    // A settlement counts when it is written, the keys once in each `poll_interval`.
    let is_right = async || {
        let samples = samples(&page().await);
        let held =
            samples.iter().filter(|(series, _)| series.starts_with("postrider_blocked_keys"));
        let none_waits = held.map(|(_, count)| count).sum::<f64>() == 0.0;
        settled.is(&sums(&samples)) && none_waits && is_counted(&samples)
    };
    let right = async {
        while !is_right().await {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let right = tokio::time::timeout(std::time::Duration::from_secs(15), right).await;
    let page = page().await;
    assert!(right.is_ok(), "{:?} settled, or keys are held\n{page}", sums(&samples(&page)));

    let samples = samples(&page);
    let mut expected: Vec<String> = ALWAYS.map(str::to_owned).to_vec();
    if another_may_count(&samples) {
        // Another instance may own the lowest partition, and count.
        let is_counted = |series: &str| {
            series.starts_with("postrider_outbox_records") || series.starts_with("postrider_oldest")
        };
        expected.retain(|series| !is_counted(series));
    }
    let build = (env!("CARGO_PKG_VERSION"), option_env!("POSTRIDER_REVISION").unwrap_or_default());
    expected
        .push(format!("postrider_build_info{{version=\"{}\",revision=\"{}\"}}", build.0, build.1));
    for sink in sinks {
        for name in ["publish_duration_seconds_count", "delivery_lag_seconds_count", "sink_up"] {
            expected.push(format!("postrider_{name}{{sink=\"{sink}\"}}"));
        }
        assert_eq!(samples.get(&format!("postrider_sink_up{{sink=\"{sink}\"}}")), Some(&1.0));
        for outcome in ["sent", "failed"] {
            let labels = format!("sink=\"{sink}\",outcome=\"{outcome}\"");
            expected.push(format!("postrider_dead_letters_total{{{labels}}}"));
        }
    }
    for sink in sinks.iter().chain(&[""]) {
        for outcome in OUTCOMES {
            let labels = format!("sink=\"{sink}\",outcome=\"{outcome}\"");
            expected.push(format!("postrider_deliveries_total{{{labels}}}"));
        }
    }
    for series in &expected {
        assert!(samples.contains_key(series), "{series} is missing: {page}");
    }
    assert!(samples.values().all(|value| value.is_finite() && *value >= 0.0), "{page}");
    let delivered = samples
        .iter()
        .filter(|(series, _)| series.starts_with("postrider_delivery_lag_seconds_count{"));
    let delivered: f64 = delivered.map(|(_, count)| count).sum();
    assert!(delivered >= settled.done as f64, "{delivered} confirmed: {page}");
    let (content, said) = promtool(&["check", "metrics"], &page);
    assert!(content && said.is_empty(), "{said}\n{page}");
    let (labels, metrics) = labels_and_metrics(&page);
    assert!(labels.iter().all(|label| LABELS.contains(&&**label)), "{labels:?}");
    for series in samples.keys() {
        let name = series.split('{').next().unwrap();
        let is_described = metrics.iter().any(|metric| name.starts_with(metric.as_str()));
        assert!(is_described, "{name} is not described: {page}");
    }

    let scraped = Scraped::new(postrider).await;
    eventually("the same figures in Prometheus", async || {
        let found = scraped.query("postrider_deliveries_total").await;
        let ours = samples.iter().filter(|(series, _)| series.contains("deliveries_total"));
        let ours: Vec<f64> = ours.map(|(_, value)| *value).collect();
        found.len() == ours.len() && found.values().sum::<f64>() == ours.iter().sum::<f64>()
    })
    .await;
}
