//! From MongoDB to RabbitMQ, beside the broker's own ceiling by `lapin` with as many
//! unconfirmed messages; one hot key beside confirms one by one; and the latency of a steady flow.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bson::{Document, RawDocumentBuf};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use lapin::BasicProperties;
use lapin::options::BasicPublishOptions;
use lapin::types::{AMQPValue, FieldTable, LongString};
use postrider::ids::InstanceId;
use postrider::outbox::collections::Collections;
use postrider::partition::share::Share;
use postrider::relay::wake::Wake;
use postrider::relay::{Relay, RelayParts};
use postrider::routing::{Glob, Router, SinkRules, Template};
use postrider::sink::Sink;
use postrider::sink::rabbitmq::{RabbitMq, RabbitMqSettings};
use support::daemon::Relayed;
use support::queue::{Queue, amqp_uri};
use support::{cost, daemon};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Unconfirmed messages of the ceiling: as many as the relay has keys to publish at a time.
const WINDOW: usize = 1_000;

/// Records of the hot key: some seconds, beside which the start is nothing.
const HOT: usize = 10_000;

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

fn sink() -> RabbitMq {
    RabbitMq::new(RabbitMqSettings::new("rabbit", &amqp_uri())).unwrap()
}

struct Running {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), postrider::relay::RelayError>>,
    _owner: watch::Sender<Share>,
}

fn start<S: Sink>(collections: &Collections, queue: &str, sink: S) -> Running {
    let stop = CancellationToken::new();
    let (owner, share) = watch::channel(Share::of(0..=255));
    let rules = SinkRules {
        destination: Template::parse("").unwrap(),
        key: Some(Template::parse(queue).unwrap()),
        allow: vec![Glob::new("*")],
        source: None,
    };
    let parts = RelayParts {
        settings: support::settings(),
        collections: collections.clone(),
        instance: InstanceId::fresh(),
        router: Router::new(Vec::new(), BTreeMap::from([("rabbit".into(), rules)]), None),
        sinks: BTreeMap::from([("rabbit".to_owned(), sink)]),
        share,
        wake: Wake::default(),
        delete_done: false,
    };
    let task = tokio::spawn(Relay::new(parts, stop.clone()).run());
    Running { stop, task, _owner: owner }
}

impl Running {
    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
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

/// Records so large that `relay.batch_bytes` bounds what is in hand: the memory that they take.
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

/// A steady thousand a second: from before the insertion to the confirm.
async fn steady(seconds: usize) {
    let queue = Queue::declare("classic").await;
    let collections = support::outbox().await;
    let confirmed: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let noted = confirmed.clone();
    let note = move |id| {
        noted.lock().unwrap().insert(id, Instant::now());
    };
    let sink = support::Noting { inner: sink(), given: |_: &str| {}, note };
    let running = start(&collections, &queue.name, sink);
    let mut inserted = HashMap::new();
    let mut tasks = tokio::task::JoinSet::new();
    let mut ticks = tokio::time::interval(Duration::from_millis(1));
    let before = cost::mongo(&collections).await;
    let cpu = (cost::cpu_micros("self"), cost::cpu_micros(&before.pid));
    for n in 0..seconds * 1_000 {
        ticks.tick().await;
        let record = support::record(n, support::KEYS);
        inserted.insert(support::flow::id(&record), Instant::now());
        let records = collections.records();
        tasks.spawn(async move { records.insert_one(record).await.unwrap() });
    }
    while tasks.join_next().await.is_some() {}
    while confirmed.lock().unwrap().len() < inserted.len() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let own = (cost::cpu_micros("self") - cpu.0) / seconds as u64 / 10_000;
    let mongod = (cost::cpu_micros(&before.pid) - cpu.1) / seconds as u64 / 10_000;
    let confirmed = std::mem::take(&mut *confirmed.lock().unwrap());
    let mut took: Vec<f64> = inserted
        .iter()
        .map(|(id, at)| confirmed[id].duration_since(*at).as_secs_f64() * 1_000.0)
        .collect();
    took.sort_by(f64::total_cmp);
    let at = |share| support::at(&took, share);
    println!(
        "steady 1k/s for {seconds} s  insert to confirm: p50 {:.1} ms  p90 {:.1} ms  p99 {:.1} ms  cpu: own, with the producer {own} %  mongod {mongod} %",
        at(0.5),
        at(0.9),
        at(0.99)
    );
    running.stop().await;
    support::drop(collections).await;
    queue.delete().await;
}

/// How large, and how many of them: what is in hand, some times over.
const LARGE: [(usize, usize); 3] = [(64_000, 2_000), (1_000_000, 300), (8_000_000, 40)];

/// `cargo bench --bench rabbitmq -- hot steady` measures those parts alone.
fn main() {
    // What the relay has to say: nothing, if all is well.
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let asked: Vec<String> = std::env::args().collect();
    let parts = ["classic", "quorum", "hot", "steady", "large"];
    let any = parts.iter().any(|part| asked.iter().any(|asked| asked == part));
    let wanted = |part: &str| !any || asked.iter().any(|asked| asked == part);
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        let count = support::records();
        let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for _ in 0..3 {
            for kind in ["classic", "quorum"].into_iter().filter(|kind| wanted(kind)) {
                ratios.entry(kind).or_default().push(drain(kind, count).await);
            }
            if wanted("hot") {
                ratios.entry("hot key").or_default().push(hot_key(HOT).await);
            }
            if wanted("steady") {
                steady(support::seconds()).await;
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
