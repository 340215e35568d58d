//! librdkafka's own statistics among a process's metrics.

use std::collections::BTreeMap;

use super::poison::to;
use crate::support::kafka::brokers;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;

/// The values of our series, by their names; each has the sink's name as its only label.
async fn kafka_series(postrider: &Postrider) -> BTreeMap<String, f64> {
    let (_, page) = postrider.get("/metrics").await;
    let ours = page.lines().filter_map(|line| line.strip_prefix("postrider_kafka_"));
    let ours = ours.map(|line| {
        let (name, value) = line.split_once("{sink=\"kafka\"} ").unwrap();
        (name.to_owned(), value.parse().unwrap())
    });
    ours.collect()
}

async fn start(outbox: &TestOutbox, interval: &str) -> Postrider {
    let kafka = [
        "sinks.kafka.kind=kafka".to_owned(),
        format!("sinks.kafka.brokers={}", brokers()),
        format!("sinks.kafka.properties.\"statistics.interval.ms\"={interval}"),
    ];
    let postrider = Postrider::start(&[mongo_settings(&outbox.database), kafka.into()].concat());
    postrider.until_ready().await;
    postrider
}

const COUNTERS: [&str; 4] =
    ["request_retries_total", "request_timeouts_total", "requests_total", "sent_bytes_total"];

#[fixture::test]
async fn the_producers_statistics_become_metrics() {
    let (topic, outbox) = (Topic::new(1).await, TestOutbox::new().await);
    outbox.insert((0..50).map(|id| to(&topic, &id.to_string(), "k"))).await;

    let mut postrider = start(&outbox, "200").await;

    topic.until(50).await;
    eventually("round trips", || async {
        let series = kafka_series(&postrider).await;
        series.get("rtt_p99_seconds").is_some_and(|rtt| *rtt > 0.0 && *rtt < 60.0)
    })
    .await;
    eventually("all requests", || async {
        let series = kafka_series(&postrider).await;
        // One record of a key after the other: no request has two of them.
        series["requests_total"] > 50.0 && series["queue_messages"] == 0.0
    })
    .await;
    let series = kafka_series(&postrider).await;
    let gauges = ["queue_bytes", "queue_messages", "requests_in_flight", "rtt_p99_seconds"];
    let mut names: Vec<_> = COUNTERS.into_iter().chain(gauges).collect();
    names.sort_unstable();
    assert_eq!(series.keys().collect::<Vec<_>>(), names);
    assert!(series["sent_bytes_total"] > 5_000.0, "{series:?}");
    assert_eq!((series["queue_bytes"], series["request_timeouts_total"]), (0.0, 0.0));
    postrider.stop().await;
}

#[fixture::test]
async fn only_counters_exist_before_the_first_statistics() {
    let (topic, outbox) = (Topic::new(1).await, TestOutbox::new().await);
    outbox.insert([to(&topic, "m", "k")]).await;

    let mut postrider = start(&outbox, "3600000").await;

    topic.until(1).await;
    let expected = COUNTERS.map(|name| (name.to_owned(), 0.0));
    assert_eq!(kafka_series(&postrider).await, BTreeMap::from(expected));
    postrider.stop().await;
}
