//! A steady flow of the README's records, window by window: how long each takes from before its
//! insertion to its arrival at a consumer, and what MongoDB, the broker and the relay spend on it.
//!
//! First the insertion alone is measured, by the same producer without a relay, to find what the
//! relay adds.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use postrider::outbox::collections::Collections;
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use support::cost;
use support::daemon::{Daemon, until_divided};
use support::queue::Queue;
use support::topic::{PARTITIONS, Topic, brokers};
use tokio::task::{JoinHandle, JoinSet};

/// How long a flow lasts, in windows.
const WINDOWS: usize = 10;

#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    broker: Broker,
    /// Records a second.
    rate: usize,
    /// Records per insertion.
    by: usize,
    daemons: usize,
}

#[derive(Clone, Copy)]
enum Broker {
    RabbitMq,
    Kafka,
}

const SCENARIOS: [Scenario; 7] = [
    Scenario { name: "rabbitmq", broker: Broker::RabbitMq, rate: 1_000, by: 10, daemons: 1 },
    Scenario { name: "kafka", broker: Broker::Kafka, rate: 1_000, by: 10, daemons: 1 },
    Scenario { name: "single", broker: Broker::RabbitMq, rate: 200, by: 1, daemons: 1 },
    Scenario { name: "hundred", broker: Broker::RabbitMq, rate: 100, by: 1, daemons: 1 },
    Scenario { name: "slow", broker: Broker::RabbitMq, rate: 20, by: 1, daemons: 1 },
    Scenario { name: "ten", broker: Broker::RabbitMq, rate: 10, by: 1, daemons: 1 },
    Scenario { name: "three", broker: Broker::RabbitMq, rate: 1_000, by: 10, daemons: 3 },
];

/// When each record was sent, and when it first arrived, by its number.
#[derive(Default)]
struct Times {
    sent: Mutex<Vec<Instant>>,
    arrived: Mutex<Vec<Option<Instant>>>,
    /// When an insertion was sent, and how many milliseconds its answer took.
    answers: Mutex<Vec<(Instant, f64)>>,
}

impl Times {
    /// Notes the arrival of the record with this payload.
    fn arrived(&self, payload: &[u8]) {
        let number: usize = std::str::from_utf8(payload).unwrap().parse().unwrap();
        let mut arrived = self.arrived.lock().unwrap();
        if arrived.len() <= number {
            arrived.resize(number + 1, None);
        }
        arrived[number].get_or_insert_with(Instant::now);
    }

    fn are_all_there(&self) -> bool {
        let arrived = self.arrived.lock().unwrap();
        arrived.len() == self.sent.lock().unwrap().len() && arrived.iter().all(Option::is_some)
    }

    /// Milliseconds from sending to arrival of the records sent within this time, sorted.
    fn took(&self, from: Instant, to: Instant) -> Vec<f64> {
        let (sent, arrived) = (self.sent.lock().unwrap(), self.arrived.lock().unwrap());
        let both = sent.iter().zip(arrived.iter()).filter(|(sent, _)| (from..to).contains(*sent));
        let took = |(sent, arrived): (&Instant, &Option<Instant>)| {
            arrived.unwrap().duration_since(*sent).as_secs_f64() * 1_000.0
        };
        let mut took: Vec<f64> = both.map(took).collect();
        took.sort_by(f64::total_cmp);
        took
    }

    /// Milliseconds from sending to answer of the insertions sent within this time, sorted.
    fn answered(&self, from: Instant, to: Instant) -> Vec<f64> {
        let answers = self.answers.lock().unwrap();
        let within = answers.iter().filter(|(sent, _)| (from..to).contains(sent));
        let mut took: Vec<f64> = within.map(|(_, took)| *took).collect();
        took.sort_by(f64::total_cmp);
        took
    }
}

/// Inserts for this long, at an even pace.
async fn produce(collections: &Collections, flow: Scenario, time: Duration, times: &Arc<Times>) {
    let mut ticks =
        tokio::time::interval(Duration::from_secs(1) * flow.by as u32 / flow.rate as u32);
    let (began, mut inserts) = (Instant::now(), JoinSet::new());
    while began.elapsed() < time {
        ticks.tick().await;
        let from = times.sent.lock().unwrap().len();
        let records: Vec<_> =
            (from..from + flow.by).map(|n| support::record(n, support::KEYS)).collect();
        let sent = Instant::now();
        times.sent.lock().unwrap().extend(vec![sent; flow.by]);
        let (outbox, times) = (collections.records(), times.clone());
        inserts.spawn(async move {
            outbox.insert_many(records).await.unwrap();
            let took = sent.elapsed().as_secs_f64() * 1_000.0;
            times.answers.lock().unwrap().push((sent, took));
        });
        while let Some(inserted) = inserts.try_join_next() {
            inserted.unwrap();
        }
    }
    inserts.join_all().await;
}

/// Where the records go.
enum Target {
    Queue(Box<Queue>),
    Topic(Topic),
}

impl Target {
    async fn make(broker: Broker) -> Self {
        match broker {
            Broker::RabbitMq => Self::Queue(Box::new(Queue::declare("classic").await)),
            Broker::Kafka => Self::Topic(Topic::make().await),
        }
    }

    fn settings(&self) -> Vec<String> {
        match self {
            Self::Queue(queue) => queue.settings(),
            Self::Topic(topic) => topic.settings(),
        }
    }

    /// A word in the command line of the broker's process.
    fn process(&self) -> &'static str {
        match self {
            Self::Queue(_) => "beam.smp",
            Self::Topic(_) => "kafka.Kafka",
        }
    }

    /// Notes what arrives, until it is aborted.
    async fn consume(&self, times: Arc<Times>) -> JoinHandle<()> {
        match self {
            Self::Queue(queue) => {
                let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
                let name = queue.name.as_str().into();
                let consuming = queue.channel.basic_consume(
                    name,
                    "bench".into(),
                    options,
                    FieldTable::default(),
                );
                let mut messages = consuming.await.unwrap();
                tokio::spawn(async move {
                    while let Some(message) = messages.next().await {
                        times.arrived(&message.unwrap().data);
                    }
                })
            }
            Self::Topic(topic) => {
                let consumer: StreamConsumer = ClientConfig::new()
                    .set("bootstrap.servers", brokers())
                    .set("group.id", &topic.name)
                    .set("enable.auto.commit", "false")
                    .create()
                    .unwrap();
                let mut partitions = TopicPartitionList::new();
                for partition in 0..PARTITIONS {
                    let from = Offset::Beginning;
                    partitions.add_partition_offset(&topic.name, partition, from).unwrap();
                }
                consumer.assign(&partitions).unwrap();
                tokio::spawn(async move {
                    loop {
                        // A new partition has no leader yet.
                        if let Ok(message) = consumer.recv().await {
                            times.arrived(message.payload().unwrap());
                        }
                    }
                })
            }
        }
    }

    async fn delete(self) {
        match self {
            Self::Queue(queue) => queue.delete().await,
            Self::Topic(topic) => topic.delete().await,
        }
    }
}

/// What was used up to a moment.
struct Usage {
    at: Instant,
    mongod: u64,
    broker: u64,
    daemons: u64,
    finds: i64,
}

impl Usage {
    async fn now(collections: &Collections, broker: &str, daemons: &[Daemon]) -> Self {
        let mongo = cost::mongo(collections).await;
        Self {
            at: Instant::now(),
            mongod: cost::cpu_micros(&mongo.pid),
            broker: cost::pid_of(broker).map_or(0, |pid| cost::cpu_micros(&pid)),
            daemons: daemons.iter().map(|daemon| cost::cpu_micros(&daemon.pid())).sum(),
            finds: mongo.finds,
        }
    }
}

/// Microseconds of mongod per record that is only inserted.
async fn insertion(flow: Scenario, time: Duration) -> f64 {
    let collections = support::outbox().await;
    let times: Arc<Times> = Arc::default();
    let before = Usage::now(&collections, "", &[]).await;
    produce(&collections, flow, time, &times).await;
    let after = Usage::now(&collections, "", &[]).await;
    support::drop(collections).await;
    let count = times.sent.lock().unwrap().len();
    (after.mongod - before.mongod) as f64 / count as f64
}

async fn steady(flow: Scenario, time: Duration) {
    let Scenario { name, rate, by, daemons: instances, .. } = flow;
    let window = time / WINDOWS as u32;
    let alone = insertion(flow, window.max(Duration::from_secs(10))).await;
    println!(
        "{name}: {rate}/s, {by} per insertion, {instances} daemon(s); mongod {alone:.0} us per record for the insertion"
    );

    let (collections, target) = (support::outbox().await, Target::make(flow.broker).await);
    let times: Arc<Times> = Arc::default();
    let consuming = target.consume(times.clone()).await;
    let mut daemons: Vec<Daemon> =
        (0..instances).map(|_| Daemon::start(&collections, &target.settings())).collect();
    until_divided(&mut daemons).await;
    let mut spent = vec![Usage::now(&collections, target.process(), &daemons).await];
    let sampling = async {
        for _ in 0..WINDOWS {
            tokio::time::sleep(window).await;
            spent.push(Usage::now(&collections, target.process(), &daemons).await);
        }
    };
    tokio::join!(produce(&collections, flow, time, &times), sampling);
    while !times.are_all_there() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    for (number, pair) in spent.windows(2).enumerate() {
        let [from, to] = pair else { unreachable!() };
        let took = times.took(from.at, to.at);
        let per_record = |spent: u64| spent as f64 / took.len() as f64;
        let at = |share| support::at(&took, share);
        let answered = times.answered(from.at, to.at);
        println!(
            "  window {:>2}  {:>6} records  ms: p50 {:>5.1}  p90 {:>5.1}  p99 {:>6.1}  max {:>6.1} (the insertion's answer: p50 {:>4.1}  p99 {:>5.1}  max {:>5.1})  us per record: mongod {:>4.0} beside the insertion, daemons {:>4.0}, broker {:>4.0}  finds per record {:.3}",
            number + 1,
            took.len(),
            at(0.5),
            at(0.9),
            at(0.99),
            at(1.0),
            support::at(&answered, 0.5),
            support::at(&answered, 0.99),
            support::at(&answered, 1.0),
            per_record(to.mongod - from.mongod) - alone,
            per_record(to.daemons - from.daemons),
            per_record(to.broker - from.broker),
            (to.finds - from.finds) as f64 / took.len() as f64,
        );
    }
    let peak = daemons.iter().map(|daemon| cost::peak_mb(&daemon.pid())).max().unwrap();
    let findings = "postrider_audit_findings_total";
    let mut found = 0.0;
    for daemon in &daemons {
        found += daemon.metric(findings).await;
    }
    println!("  peak memory {peak} MB; found by audits {found}");
    consuming.abort();
    drop(daemons);
    support::drop(collections).await;
    target.delete().await;
}

/// `cargo bench --bench steady -- rabbitmq slow` measures those alone.
fn main() {
    let names = SCENARIOS.map(|flow| flow.name);
    let time = Duration::from_secs(support::seconds_or(600) as u64);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    for flow in SCENARIOS.into_iter().filter(|flow| support::is_chosen(&names, flow.name)) {
        runtime.block_on(steady(flow, time));
    }
}
