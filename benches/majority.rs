//! What the records of one queue wait for while another one of the same sink does not confirm: a quorum
//! queue on a cluster of three RabbitMQ nodes, of which two are killed for a third of the time.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

#[path = "../tests/support/rabbitmq/node.rs"]
#[allow(dead_code, reason = "as of all that is shared")]
mod node;
mod support;

use std::time::{Duration, Instant};

use bson::raw::cstr;
use bson::{DateTime, Document, doc};
use futures_util::TryStreamExt;
use node::Node;
use postrider::outbox::collections::Collections;
use support::daemon::Daemon;
use support::queue::Queue;
use tokio::task::JoinSet;

/// Records a second, of which one in ten is for the queue that loses its majority.
const RATE: u64 = 500;

const PHASES: [&str; 3] = ["all is well", "no majority", "a majority again"];

/// Inserts for so long, one by one.
async fn flow(collections: &Collections, from: usize, time: Duration) -> usize {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / RATE as u32);
    let (began, mut inserts, mut n) = (Instant::now(), JoinSet::new(), from);
    while began.elapsed() < time {
        ticks.tick().await;
        let kind = if n.is_multiple_of(10) { "sick" } else { "well" };
        let mut record = support::record_with(kind, n, support::KEYS);
        record.append(cstr!("createdAt"), DateTime::now());
        let records = collections.records();
        inserts.spawn(async move { records.insert_one(record).await.unwrap() });
        n += 1;
    }
    inserts.join_all().await;
    n
}

/// Milliseconds from the record to its settlement, of the records of a type by phase.
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

async fn measure(phase: Duration) {
    let [third, second, first] = Node::cluster().await;
    let sick = Queue::declare_at(&first.uri(), "quorum", "sick".into()).await;
    let well = Queue::declare_at(&first.uri(), "classic", "well".into()).await;
    let collections = support::outbox().await;
    let sink =
        ["sinks.rabbit.kind=rabbitmq".to_owned(), format!("sinks.rabbit.uri={}", first.uri())];
    let daemon = Daemon::start(&collections, &sink);
    // Until it has begun.
    collections.records().insert_one(support::record_with("well", 0, support::KEYS)).await.unwrap();
    while support::is_pending(&collections).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    collections.records().delete_many(doc! {}).await.unwrap();

    let mut begins = vec![DateTime::now()];
    let mut n = flow(&collections, 0, phase).await;
    begins.push(DateTime::now());
    (n, ..) = tokio::join!(flow(&collections, n, phase), second.kill(), third.kill());
    begins.push(DateTime::now());
    (_, ..) = tokio::join!(flow(&collections, n, phase), second.start());
    while support::is_pending(&collections).await {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    for queue in [well, sick] {
        let kind = queue.name.as_str();
        let by_phase = waits(&collections, kind, &begins).await;
        for (phase, waits) in PHASES.iter().zip(&by_phase) {
            let at = |share| support::at(waits, share);
            println!(
                "{kind}, {phase:<16} {:>6} records  p50 {:>5.0} ms  p99 {:>6.0} ms  max {:>6.0} ms",
                waits.len(),
                at(0.5),
                at(0.99),
                at(1.0)
            );
        }
        let sent: usize = by_phase.iter().map(Vec::len).sum();
        let arrived = queue.messages().await;
        // The first one is not among the records any more.
        let arrived = arrived - usize::from(kind == "well");
        println!("{kind}: {} of {sent} are there twice", arrived - sent);
    }
    daemon.stop().await;
    support::drop(collections).await;
    drop((third, second, first));
}

fn main() {
    let phase = Duration::from_secs(support::seconds_or(60) as u64);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure(phase));
}
