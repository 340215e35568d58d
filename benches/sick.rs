//! How long the records of one destination wait while another destination of the same sink fails
//! for a third of the time, with the daemon's defaults:
//!
//! - `majority`: a RabbitMQ quorum queue, on three nodes of which two are killed;
//! - `killer`: a RabbitMQ queue; each message to it ends its connection;
//! - `replicas`: a Kafka topic below `min.insync.replicas`.
//!
//! All of them, or the named ones: `cargo bench --bench sick -- killer`.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]
#![allow(clippy::duplicate_mod, reason = "the benchmarks share some files with the tests")]

#[path = "support/mod.rs"]
mod bench;
#[path = "../tests/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use bench::daemon::Daemon;
use bench::queue::{Queue, amqp_uri};
use bench::topic::PARTITIONS;
use bson::raw::cstr;
use bson::{DateTime, Document, doc};
use futures_util::TryStreamExt;
use postrider::outbox::collections::Collections;
use support::fault_proxy::FaultProxy;
use support::kafka;
use support::kafka::options::Options;
use support::kafka::topic::Topic;
use support::rabbitmq::node::Node;
use support::rabbitmq::{address, at};
use tokio::task::JoinSet;

/// Records per second, one in ten of them for the failing destination.
const RECORDS_PER_SECOND: u64 = 500;

const PHASES: [&str; 3] = ["all is well", "it is sick", "it is well again"];

/// The destinations, by the types of their records.
struct Destinations {
    well: String,
    sick: String,
}

/// Inserts one by one for this long; returns the number of the next record.
async fn flow(collections: &Collections, to: &Destinations, from: usize, time: Duration) -> usize {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RECORDS_PER_SECOND as u32);
    let (began, mut inserts, mut n) = (Instant::now(), JoinSet::new(), from);
    while began.elapsed() < time {
        ticks.tick().await;
        let kind = if n.is_multiple_of(10) { &to.sick } else { &to.well };
        let mut record = bench::record_with(kind, n, bench::KEYS);
        record.append(cstr!("createdAt"), DateTime::now());
        let records = collections.records();
        inserts.spawn(async move { records.insert_one(record).await.unwrap() });
        n += 1;
    }
    inserts.join_all().await;
    n
}

/// Milliseconds from insertion to settlement, of the records of a type, by phase.
async fn waits(collections: &Collections, kind: &str, begins: &[DateTime]) -> Vec<Vec<f64>> {
    let records = collections.records().clone_with_type::<Document>();
    let times = doc! { "createdAt": 1, "doneAt": 1 };
    let mut found = records.find(doc! { "type": kind }).projection(times).await.unwrap();
    let mut waits = vec![Vec::new(); begins.len()];
    while let Some(record) = found.try_next().await.unwrap() {
        let time = |field| *record.get_datetime(field).unwrap();
        let phase = begins.iter().rposition(|begin| time("createdAt") >= *begin).unwrap();
        let waited = time("doneAt").timestamp_millis() - time("createdAt").timestamp_millis();
        waits[phase].push(waited as f64);
    }
    waits.iter_mut().for_each(|waits| waits.sort_by(f64::total_cmp));
    waits
}

async fn until_drained(collections: &Collections) {
    while bench::is_pending(collections).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Measures a steady flow in three phases; `arrived` counts a destination's messages.
async fn measure(
    what: &str,
    sink: &[String],
    to: &Destinations,
    phase: Duration,
    (sicken, heal): (impl AsyncFnOnce(), impl AsyncFnOnce()),
    arrived: impl AsyncFn(&str) -> usize,
) {
    let collections = bench::outbox().await;
    let daemon = Daemon::start(&collections, sink);
    // Until it has begun.
    let first = bench::record_with(&to.well, 0, bench::KEYS);
    collections.records().insert_one(first).await.unwrap();
    until_drained(&collections).await;
    collections.records().delete_many(doc! {}).await.unwrap();

    let mut begins = vec![DateTime::now()];
    let mut n = flow(&collections, to, 0, phase).await;
    begins.push(DateTime::now());
    (n, ()) = tokio::join!(flow(&collections, to, n, phase), sicken());
    begins.push(DateTime::now());
    tokio::join!(flow(&collections, to, n, phase), heal());
    until_drained(&collections).await;

    for (name, kind) in [("its neighbour", &to.well), ("the sick one", &to.sick)] {
        let by_phase = waits(&collections, kind, &begins).await;
        for (phase, waits) in PHASES.iter().zip(&by_phase) {
            let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| bench::at(waits, share));
            println!(
                "{what}: {name}, {phase:<16} {:>6} records  ms: p50 {p50:>6.0}  p99 {p99:>6.0}  max {max:>6.0}",
                waits.len(),
            );
        }
        let sent: usize = by_phase.iter().map(Vec::len).sum();
        // The first one is no longer among the records.
        let arrived = arrived(kind).await - usize::from(*kind == to.well);
        println!("{what}: {name}: {} of {sent} are there twice", arrived - sent);
    }
    daemon.stop().await;
    bench::drop(collections).await;
}

async fn majority(phase: Duration) {
    let [third, second, first] = Node::cluster().await;
    let sick = Queue::declare_at(&first.uri(), "quorum", "sick".into()).await;
    let well = Queue::declare_at(&first.uri(), "classic", "well".into()).await;
    let to = Destinations { well: well.name.clone(), sick: sick.name.clone() };
    let sink = rabbitmq(&first.uri());
    let sicken = async || {
        tokio::join!(second.kill(), third.kill());
    };
    let acts = (sicken, async || second.start().await);
    let arrived = async |kind: &str| if kind == "well" { &well } else { &sick }.messages().await;
    measure("majority", &sink, &to, phase, acts, arrived).await;
    drop((third, second, first));
}

async fn killer(phase: Duration) {
    let [well, sick] = [Queue::declare("classic").await, Queue::declare("classic").await];
    let to = Destinations { well: well.name.clone(), sick: sick.name.clone() };
    let uri = amqp_uri();
    let wire = FaultProxy::to_address(address(&uri)).await;
    let sink = rabbitmq(&at(&uri, wire.address()));
    let acts = (async || wire.cut_at(&sick.name), async || wire.cut_at(""));
    let arrived = async |kind: &str| if kind == well.name { &well } else { &sick }.messages().await;
    measure("killer", &sink, &to, phase, acts, arrived).await;
    well.delete().await;
    sick.delete().await;
}

fn rabbitmq(uri: &str) -> [String; 2] {
    ["sinks.rabbit.kind=rabbitmq".to_owned(), format!("sinks.rabbit.uri={uri}")]
}

/// One of the two replicas of the failing topic is on a broker that is killed.
async fn replicas(phase: Duration) {
    let node = kafka::node::Node::with(Options::default()).await;
    kafka::node::Node::joining(&node).await.stop().await;
    let both = [&[1, 2] as &[i32]; PARTITIONS as usize];
    let brokers = node.brokers();
    let well = Topic::on(&brokers, PARTITIONS, &[]).await;
    let sick = Topic::assigned(&brokers, "sick", &both, &[("min.insync.replicas", "1")]).await;
    let to = Destinations { well: well.name.clone(), sick: sick.name.clone() };
    let sink = ["sinks.stream.kind=kafka".to_owned(), format!("sinks.stream.brokers={brokers}")];
    let demand = async |count: &str| sick.alter("min.insync.replicas", count).await;
    let acts = (async || demand("2").await, async || demand("1").await);
    let arrived = async |kind: &str| {
        let topic = if kind == well.name { &well } else { &sick };
        topic.read_ids().await.len()
    };
    measure("replicas", &sink, &to, phase, acts, arrived).await;
}

fn main() {
    let phase = Duration::from_secs(bench::seconds_or(60) as u64);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let is_chosen = |part: &str| bench::is_chosen(&["killer", "replicas", "majority"], part);
    runtime.block_on(async {
        if is_chosen("killer") {
            killer(phase).await;
        }
        if is_chosen("replicas") {
            replicas(phase).await;
        }
        if is_chosen("majority") {
            majority(phase).await;
        }
    });
}
