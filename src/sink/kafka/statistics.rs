//! librdkafka's own figures as metrics, taken every few seconds.

use metrics::{Counter, counter, gauge};
use rdkafka::statistics::Statistics;

use crate::telemetry::metrics::{
    KAFKA_IN_FLIGHT, KAFKA_QUEUE_BYTES, KAFKA_QUEUE_MESSAGES, KAFKA_REQUESTS, KAFKA_RETRIES,
    KAFKA_RTT, KAFKA_SENT_BYTES, KAFKA_TIMEOUTS,
};

/// Figures of one sink's producer.
#[derive(Debug)]
pub(super) struct KafkaMetrics {
    sink: String,
    requests: Counter,
    sent_bytes: Counter,
    retries: Counter,
    timeouts: Counter,
    before: std::sync::Mutex<Totals>,
}

/// Counts since a producer was made.
#[derive(Clone, Copy, Debug, Default)]
struct Totals {
    requests: u64,
    sent_bytes: u64,
    retries: u64,
    timeouts: u64,
}

impl KafkaMetrics {
    /// The series of a sink of this name.
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
            before: std::sync::Mutex::default(),
        }
    }

    /// Takes what a producer says of itself.
    pub(super) fn take(&self, statistics: &Statistics) {
        // Not before they are known.
        let gauge = |name: &'static str| gauge!(name, "sink" => self.sink.clone());
        gauge(KAFKA_QUEUE_MESSAGES).set(statistics.msg_cnt as f64);
        gauge(KAFKA_QUEUE_BYTES).set(statistics.msg_size as f64);
        let brokers = || statistics.brokers.values();
        let in_flight: i64 = brokers().map(|broker| broker.waitresp_cnt).sum();
        gauge(KAFKA_IN_FLIGHT).set(in_flight as f64);
        let slowest = brokers().filter_map(|broker| Some(broker.rtt.as_ref()?.p99)).max();
        if let Some(micros) = slowest.filter(|micros| *micros > 0) {
            gauge(KAFKA_RTT).set(micros as f64 / 1e6);
        }
        let now = Totals {
            requests: brokers().map(|broker| broker.tx).sum(),
            sent_bytes: brokers().map(|broker| broker.txbytes).sum(),
            retries: brokers().map(|broker| broker.txretries).sum(),
            timeouts: brokers().map(|broker| broker.req_timeouts).sum(),
        };
        let mut before = self.before.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // A new producer counts from zero.
        let since = |now: u64, before: u64| if now >= before { now - before } else { now };
        self.requests.increment(since(now.requests, before.requests));
        self.sent_bytes.increment(since(now.sent_bytes, before.sent_bytes));
        self.retries.increment(since(now.retries, before.retries));
        self.timeouts.increment(since(now.timeouts, before.timeouts));
        *before = now;
    }
}
