//! From MongoDB to RabbitMQ, compared with the broker's own ceiling by `lapin` with as many
//! unconfirmed messages; and one hot key compared with confirms one by one.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::collections::BTreeMap;
use std::time::Instant;

use bson::{Document, RawDocumentBuf};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable, LongString};
use postrider::outbox::collections::Collections;
use support::daemon::Relayed;
use support::queue::Queue;
use support::{cost, daemon};

/// Unconfirmed messages of the ceiling: as many as the relay publishes keys at a time.
const WINDOW: usize = 1_000;

/// Records of the hot key: some seconds, so that the start does not matter.
const HOT_RECORDS: usize = 10_000;

impl Queue {
    async fn publish(&self, n: usize) {
        let options = BasicPublishOptions { mandatory: true, ..Default::default() };
        let mut headers = FieldTable::default();
        let key = LongString::from(format!("customer-{}", n % support::KEYS));
        headers.insert("message-key".into(), AMQPValue::LongString(key));
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(uuid::Uuid::new_v4().to_string().into())
            .with_type("OrderCreated".into())
            .with_content_type("text/plain; charset=utf-8".into())
            .with_headers(headers);
        let payload = format!("{n:0>400}");
        let queue = self.name.as_str().into();
        let sent =
            self.channel.basic_publish("".into(), queue, options, payload.as_bytes(), properties);
        assert!(sent.await.unwrap().await.unwrap().is_ack());
    }

    /// Messages per second of bare publishes with a window.
    async fn ceiling(&self, count: usize, window: usize) -> f64 {
        let started = Instant::now();
        let mut under_way = FuturesUnordered::new();
        for n in 0..count {
            if under_way.len() >= window {
                under_way.next().await;
            }
            under_way.push(self.publish(n));
        }
        while under_way.next().await.is_some() {}
        count as f64 / started.elapsed().as_secs_f64()
    }
}

/// Sends a backlog to a queue by the daemon itself.
async fn relay(collections: &Collections, queue: &Queue, count: usize) -> Relayed {
    let arrived = async || queue.messages().await;
    let settled = async || !support::is_pending(collections).await;
    daemon::drain(collections, &queue.settings(), count, arrived, settled).await
}

async fn drain(kind: &str, count: usize) -> f64 {
    let queue = Queue::declare(kind).await;
    let ceiling = queue.ceiling(count, WINDOW).await;
    queue.delete().await;
    let queue = Queue::declare(kind).await;
    let collections = support::outbox().await;
    support::fill(&collections, 0, count, support::KEYS).await;
    let before = cost::mongo(&collections).await;
    let cpu = cost::cpu_micros(&before.pid);
    let Relayed { rate, cpu: own, peak_mb } = relay(&collections, &queue, count).await;
    let mongod = (cost::cpu_micros(&before.pid) - cpu) as f64 / count as f64;
    println!(
        "{kind:<8} ceiling {ceiling:>7.0}/s  relay {rate:>7.0}/s  ratio {:.2}  cpu us/record: own {own:.0} mongod {mongod:.0}  peak {peak_mb} MB",
        rate / ceiling,
    );
    support::drop(collections).await;
    queue.delete().await;
    rate / ceiling
}

async fn hot_key(count: usize) -> f64 {
    let queue = Queue::declare("classic").await;
    let ceiling = queue.ceiling(count, 1).await;
    let collections = support::outbox().await;
    support::fill(&collections, 0, count, 1).await;
    let Relayed { rate, .. } = relay(&collections, &queue, count).await;
    println!(
        "hot key  one by one {ceiling:>6.0}/s  relay {rate:>6.0}/s  ratio {:.2}",
        rate / ceiling
    );
    support::drop(collections).await;
    queue.delete().await;
    rate / ceiling
}

/// Records so large that `relay.batch_bytes` limits what is in flight: the memory that they take.
async fn large(size: usize, count: usize) {
    let queue = Queue::declare("classic").await;
    let collections = support::outbox().await;
    let payload = "x".repeat(size);
    for n in 0..count {
        let mut record = Document::try_from(&*support::record(n, support::KEYS)).unwrap();
        record.insert("payload", &payload);
        let record = RawDocumentBuf::try_from(&record).unwrap();
        collections.records().insert_one(record).await.unwrap();
    }
    let Relayed { peak_mb, .. } = relay(&collections, &queue, count).await;
    println!("{count:>5} records of {:>5} KB  peak {peak_mb} MB", size / 1_000);
    support::drop(collections).await;
    queue.delete().await;
}

/// Size and number of the records: several times what is in flight.
const LARGE: [(usize, usize); 3] = [(64_000, 2_000), (1_000_000, 300), (8_000_000, 40)];

/// `cargo bench --bench rabbitmq -- hot large` measures those parts alone.
fn main() {
    // The relay's warnings: none are expected.
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let parts = ["classic", "quorum", "hot", "large"];
    let wanted = |part: &str| support::is_chosen(&parts, part);
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let count = support::records();
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for _ in 0..3 {
            for kind in ["classic", "quorum"].into_iter().filter(|kind| wanted(kind)) {
                ratios.entry(kind).or_default().push(drain(kind, count).await);
            }
            if wanted("hot") {
                ratios.entry("hot key").or_default().push(hot_key(HOT_RECORDS).await);
            }
            for (size, count) in LARGE.into_iter().filter(|_| wanted("large")) {
                large(size, count).await;
            }
        }
        for (name, mut values) in ratios {
            println!("median relay / ceiling, {name}: {:.2}", support::median(&mut values));
        }
    });
}
