//! librdkafka's own statistics as metrics, updated every few seconds.

use std::sync::{Arc, Weak};

use metrics::{Counter, counter, gauge};
use parking_lot::Mutex;
use postrider_store::metric::Description;
use rdkafka::statistics::Statistics;

/// Messages in the queues of the Kafka producers or in flight.
pub const KAFKA_QUEUE_MESSAGES: &str = "postrider_kafka_queue_messages";
/// Their bytes.
pub const KAFKA_QUEUE_BYTES: &str = "postrider_kafka_queue_bytes";
/// Requests that Kafka has not answered yet.
pub const KAFKA_IN_FLIGHT: &str = "postrider_kafka_requests_in_flight";
/// Round trip to the slowest broker.
pub const KAFKA_RTT_P99: &str = "postrider_kafka_rtt_p99_seconds";
/// Requests to Kafka.
pub const KAFKA_REQUESTS: &str = "postrider_kafka_requests_total";
/// Bytes sent to Kafka.
pub const KAFKA_SENT_BYTES: &str = "postrider_kafka_sent_bytes_total";
/// Requests to Kafka that were repeated.
pub const KAFKA_RETRIES: &str = "postrider_kafka_request_retries_total";
/// Requests to Kafka that had no answer in time.
pub const KAFKA_TIMEOUTS: &str = "postrider_kafka_request_timeouts_total";

/// What each of these metrics is.
pub const DESCRIPTIONS: [Description; 8] = [
    Description::gauge(
        KAFKA_QUEUE_MESSAGES,
        "Messages in the queues of the Kafka producers or in flight.",
    ),
    Description::gauge(
        KAFKA_QUEUE_BYTES,
        "Bytes in the queues of the Kafka producers or in flight.",
    )
    .in_bytes(),
    Description::gauge(KAFKA_IN_FLIGHT, "Requests that the Kafka brokers have not answered yet."),
    Description::gauge(
        KAFKA_RTT_P99,
        "99th percentile of the round-trip time to the slowest Kafka broker.",
    )
    .in_seconds(),
    Description::counter(KAFKA_REQUESTS, "Requests sent to Kafka."),
    Description::counter(KAFKA_SENT_BYTES, "Compressed bytes sent to Kafka.").in_bytes(),
    Description::counter(KAFKA_RETRIES, "Requests to Kafka that were repeated."),
    Description::counter(KAFKA_TIMEOUTS, "Requests to Kafka without an answer in time."),
];

/// The metrics of one sink: the sums over its producers.
#[derive(Debug)]
pub(super) struct KafkaMetrics {
    sink: String,
    requests: Counter,
    sent_bytes: Counter,
    retries: Counter,
    timeouts: Counter,
    /// The latest figures of each producer in use.
    producers: Mutex<Vec<Weak<Mutex<Figures>>>>,
}

/// The metrics of one producer. Its figures count until this is dropped.
#[derive(Debug)]
pub(super) struct ProducerMetrics {
    metrics: Arc<KafkaMetrics>,
    latest: Arc<Mutex<Figures>>,
}

/// The statistics that a producer reported last.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    queue_messages: u64,
    queue_bytes: u64,
    in_flight: i64,
    /// The 99th percentile of its slowest broker, in microseconds.
    round_trip: i64,
    // Totals since it was created.
    requests: u64,
    sent_bytes: u64,
    retries: u64,
    timeouts: u64,
}

impl Figures {
    fn of(statistics: &Statistics) -> Self {
        let brokers = || statistics.brokers.values();
        let slowest = brokers().filter_map(|broker| Some(broker.rtt.as_ref()?.p99)).max();
        Self {
            queue_messages: statistics.msg_cnt,
            queue_bytes: statistics.msg_size,
            in_flight: brokers().map(|broker| broker.waitresp_cnt).sum(),
            round_trip: slowest.unwrap_or(0),
            requests: brokers().map(|broker| broker.tx).sum(),
            sent_bytes: brokers().map(|broker| broker.txbytes).sum(),
            retries: brokers().map(|broker| broker.txretries).sum(),
            timeouts: brokers().map(|broker| broker.req_timeouts).sum(),
        }
    }
}

impl KafkaMetrics {
    /// Creates the series of a sink of this name.
    pub(super) fn new(sink: &str) -> Self {
        let counter = |name: &'static str| {
            let series = counter!(name, "sink" => sink.to_owned());
            series.increment(0);
            series
        };
        Self {
            sink: sink.to_owned(),
            requests: counter(KAFKA_REQUESTS),
            sent_bytes: counter(KAFKA_SENT_BYTES),
            retries: counter(KAFKA_RETRIES),
            timeouts: counter(KAFKA_TIMEOUTS),
            producers: Mutex::default(),
        }
    }

    /// Adds a producer.
    pub(super) fn producer(self: &Arc<Self>) -> ProducerMetrics {
        let latest = Arc::default();
        self.producers.lock().push(Arc::downgrade(&latest));
        ProducerMetrics { metrics: self.clone(), latest }
    }

    /// Sets the gauges to the sums over the producers in use.
    fn set_gauges(&self) {
        let mut producers = self.producers.lock();
        producers.retain(|producer| producer.strong_count() > 0);
        let latest: Vec<Figures> =
            producers.iter().filter_map(|producer| Some(*producer.upgrade()?.lock())).collect();
        let gauge = |name: &'static str| gauge!(name, "sink" => self.sink.clone());
        let sum = |figure: fn(&Figures) -> f64| latest.iter().map(figure).sum::<f64>();
        gauge(KAFKA_QUEUE_MESSAGES).set(sum(|figures| figures.queue_messages as f64));
        gauge(KAFKA_QUEUE_BYTES).set(sum(|figures| figures.queue_bytes as f64));
        gauge(KAFKA_IN_FLIGHT).set(sum(|figures| figures.in_flight as f64));
        let slowest = latest.iter().map(|figures| figures.round_trip).max();
        if let Some(micros) = slowest.filter(|micros| *micros > 0) {
            gauge(KAFKA_RTT_P99).set(micros as f64 / 1e6);
        }
    }
}

impl ProducerMetrics {
    /// Updates the metrics from statistics, whose totals begin with the producer.
    pub(super) fn update(&self, statistics: &Statistics) {
        let now = Figures::of(statistics);
        let before = std::mem::replace(&mut *self.latest.lock(), now);
        let since = |now: u64, before: u64| now.saturating_sub(before);
        self.metrics.requests.increment(since(now.requests, before.requests));
        self.metrics.sent_bytes.increment(since(now.sent_bytes, before.sent_bytes));
        self.metrics.retries.increment(since(now.retries, before.retries));
        self.metrics.timeouts.increment(since(now.timeouts, before.timeouts));
        self.metrics.set_gauges();
    }
}
