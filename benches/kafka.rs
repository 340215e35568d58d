//! From MongoDB to Kafka, compared with a bare producer with the same settings; one hot key; two
//! brokers at once; and an active sink next to a million records of one that is down.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use postrider::outbox::collections::Collections;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use support::daemon::{Daemon, Relayed};
use support::queue::Queue;
use support::topic::{BROKER_TIMEOUT, Topic, brokers};
use support::{KEYS, KIND, cost, daemon};

/// Unconfirmed messages of the ceiling: as many as the relay publishes keys at a time.
const WINDOW: usize = 1_000;

/// Records of the hot key.
const HOT_RECORDS: usize = 10_000;

/// Records of the sink that is down.
const WAITING_RECORDS: usize = 1_000_000;

/// Their type.
const WAITING: &str = "Waiting";

impl Topic {
    /// Messages per second of a bare producer with a window.
    async fn ceiling(&self, count: usize, window: usize, keys: usize) -> f64 {
        let producer: FutureProducer = ClientConfig::new()
            .set("bootstrap.servers", brokers())
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("linger.ms", "0")
            .set("compression.type", "lz4")
            .set("partitioner", "murmur2_random")
            .create()
            .unwrap();
        let publish = async |n: usize| {
            let id = uuid::Uuid::new_v4().to_string();
            let header = |key, value| Header { key, value: Some(value) };
            let headers = OwnedHeaders::new()
                .insert(header("message-id", id.as_str()))
                .insert(header("message-type", KIND))
                .insert(header("content-type", "text/plain; charset=utf-8"));
            let (key, payload) = (format!("{KIND}-{}", n % keys), format!("{n:0>400}"));
            let record = FutureRecord::to(&self.name).key(&key).payload(&payload).headers(headers);
            producer.send(record, BROKER_TIMEOUT).await.unwrap();
        };
        let started = Instant::now();
        let mut under_way = FuturesUnordered::new();
        for n in 0..count {
            if under_way.len() >= window {
                under_way.next().await;
            }
            under_way.push(publish(n));
        }
        while under_way.next().await.is_some() {}
        count as f64 / started.elapsed().as_secs_f64()
    }
}

async fn relay(collections: &Collections, topic: &Topic, count: usize) -> Relayed {
    let settled = async || !support::is_pending(collections).await;
    let arrived = async || topic.messages().await;
    daemon::drain(collections, &topic.settings(), count, arrived, settled).await
}

/// Sends the same outbox to the daemon's standard output, which is discarded: the limit that
/// MongoDB sets.
async fn discarded(count: usize) -> f64 {
    let collections = support::outbox().await;
    support::fill(&collections, 0, count, KEYS).await;
    let settings = ["sinks.out.kind=stdout".to_owned()];
    let settled = async || !support::is_pending(&collections).await;
    let Relayed { rate, .. } =
        daemon::drain(&collections, &settings, count, async || count, settled).await;
    support::drop(collections).await;
    rate
}

async fn drain(count: usize) -> (f64, f64) {
    let topic = Topic::make().await;
    let ceiling = topic.ceiling(count, WINDOW, KEYS).await;
    topic.delete().await;
    let nowhere = discarded(count).await;
    let topic = Topic::make().await;
    let collections = support::outbox().await;
    support::fill(&collections, 0, count, KEYS).await;
    let before = cost::mongo(&collections).await;
    let broker = cost::pid_of("kafka.Kafka").unwrap();
    let spent = [&before.pid, &broker].map(|pid| cost::cpu_micros(pid));
    let Relayed { rate, cpu: own, peak_mb } = relay(&collections, &topic, count).await;
    let [mongod, kafka] = [(&before.pid, spent[0]), (&broker, spent[1])]
        .map(|(pid, spent)| (cost::cpu_micros(pid) - spent) as f64 / count as f64);
    println!(
        "drain    bare producer {ceiling:>7.0}/s  to stdout {nowhere:>6.0}/s  to Kafka {rate:>6.0}/s  of the producer {:.2}  of stdout {:.2}  cpu us/record: own {own:.0} mongod {mongod:.0} Kafka {kafka:.0}  peak {peak_mb} MB",
        rate / ceiling,
        rate / nowhere,
    );
    support::drop(collections).await;
    topic.delete().await;
    (rate / ceiling, rate / nowhere)
}

async fn hot_key(count: usize) -> f64 {
    let topic = Topic::make().await;
    let ceiling = topic.ceiling(count, 1, 1).await;
    topic.delete().await;
    let topic = Topic::make().await;
    let collections = support::outbox().await;
    support::fill(&collections, 0, count, 1).await;
    let Relayed { rate, .. } = relay(&collections, &topic, count).await;
    println!(
        "hot key  one by one {ceiling:>6.0}/s  relay {rate:>6.0}/s  ratio {:.2}",
        rate / ceiling
    );
    support::drop(collections).await;
    topic.delete().await;
    rate / ceiling
}

/// Half of the records to each broker, compared with all of them to one.
async fn both(count: usize) -> f64 {
    let (topic, queue) = (Topic::make().await, Queue::declare("classic").await);
    let collections = support::outbox().await;
    support::fill(&collections, 0, count / 2, KEYS / 2).await;
    support::fill_with(&collections, "Invoice", 0, count / 2, KEYS / 2).await;
    let routes = "routes=[{type = \"Invoice\", sink = \"rabbit\"}]".to_owned();
    let default = "relay.default_sink=stream".to_owned();
    let settings = [topic.settings(), queue.settings(), vec![routes, default]].concat();
    let arrived = async || topic.messages().await + queue.messages().await;
    let settled = async || !support::is_pending(&collections).await;
    let both = daemon::drain(&collections, &settings, count, arrived, settled).await.rate;
    support::drop(collections).await;
    let mut alone = Vec::new();
    {
        let collections = support::outbox().await;
        support::fill(&collections, 0, count, KEYS).await;
        let topic = Topic::make().await;
        alone.push(relay(&collections, &topic, count).await.rate);
        support::drop(collections).await;
        topic.delete().await;
    }
    {
        let collections = support::outbox().await;
        support::fill(&collections, 0, count, KEYS).await;
        let other = Queue::declare("classic").await;
        let arrived = async || other.messages().await;
        let settled = async || !support::is_pending(&collections).await;
        let rate = daemon::drain(&collections, &other.settings(), count, arrived, settled).await;
        alone.push(rate.rate);
        support::drop(collections).await;
        other.delete().await;
    }
    topic.delete().await;
    queue.delete().await;
    // The time of both, one after the other.
    let apart = 2.0 / (1.0 / alone[0] + 1.0 / alone[1]);
    println!(
        "both     Kafka {:>6.0}/s  RabbitMQ {:>6.0}/s  half to each {both:>6.0}/s  ratio {:.2}",
        alone[0],
        alone[1],
        both / apart
    );
    both / apart
}

/// An active sink alone, and next to the backlog of a sink that is down: after the relay has read
/// that backlog, and at a start that must still read it.
async fn next_to_sink_that_is_down(count: usize, waiting: usize, keys: usize) -> f64 {
    let alone = live(count, 0, 0).await.0;
    let (loaded, learned) = live(count, waiting, keys).await;
    println!(
        "down     alone {alone:>6.0}/s  next to {waiting} waiting records of {keys} keys {loaded:>6.0}/s  ratio {:.2}  met in {learned:.1} s",
        loaded / alone
    );
    loaded / alone
}

/// Records per second that arrive while a relay runs, and how long it took to read what waits.
async fn live(count: usize, waiting: usize, keys: usize) -> (f64, f64) {
    let topic = Topic::make().await;
    let collections = support::outbox().await;
    support::fill_with(&collections, WAITING, 0, waiting, keys).await;
    let more = [
        // No server listens there.
        "sinks.down.kind=rabbitmq".to_owned(),
        "sinks.down.uri=amqp://guest:guest@127.0.0.1:1/".to_owned(),
        "relay.default_sink=stream".to_owned(),
        format!("routes=[{{type = \"{WAITING}\", sink = \"down\"}}]"),
    ];
    let settings = [topic.settings(), more.to_vec()].concat();
    let started = Instant::now();
    let mut daemon = Daemon::start(&collections, &settings);
    // One record shows that it runs.
    support::fill_with(&collections, "First", 0, 1, 1).await;
    let held = "postrider_blocked_keys{reason=\"sink_down\"}";
    while topic.messages().await < 1 || daemon.metric(held).await < keys as f64 {
        daemon.pause().await;
    }
    let learned = started.elapsed().as_secs_f64();
    let started = Instant::now();
    support::fill(&collections, 0, count, KEYS).await;
    while topic.messages().await < count + 1 {
        daemon.pause().await;
    }
    let rate = count as f64 / started.elapsed().as_secs_f64();
    drop(daemon);
    support::drop(collections).await;
    topic.delete().await;
    (rate, learned)
}

/// `cargo bench --bench kafka -- drain hot` measures those parts alone.
fn main() {
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let parts = ["drain", "hot", "both", "down"];
    let wanted = |part: &str| support::is_chosen(&parts, part);
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let count = support::records();
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for _ in 0..3 {
            if wanted("drain") {
                let (of_producer, of_stdout) = drain(count).await;
                ratios.entry("drain / bare producer").or_default().push(of_producer);
                ratios.entry("drain / the same to stdout").or_default().push(of_stdout);
            }
            if wanted("hot") {
                ratios.entry("hot key / one by one").or_default().push(hot_key(HOT_RECORDS).await);
            }
            if wanted("both") {
                ratios
                    .entry("both brokers / one after the other")
                    .or_default()
                    .push(both(count).await);
            }
        }
        for keys in [10_000, 100_000].into_iter().filter(|_| wanted("down")) {
            let ratio = next_to_sink_that_is_down(count, WAITING_RECORDS, keys).await;
            ratios.entry("live next to a sink that is down / alone").or_default().push(ratio);
        }
        for (name, mut values) in ratios {
            println!("median {name}: {:.2}", support::median(&mut values));
        }
    });
}
