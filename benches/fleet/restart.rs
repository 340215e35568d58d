//! A single daemon is killed during a backlog and restarts under the same name: when its leased
//! records resume, and what arrives twice. Then one that is stopped for 5 s under load.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;
use postrider::ids::RecordId;
use postrider::outbox::collections::Collections;

use crate::kill::{end, since, until_all};
use crate::support;
use crate::support::daemon::Daemon;
use crate::support::flow::Flow;
use crate::support::queue::{Arrivals, Queue};

const KILLS: usize = 3;

/// Records per second.
const RECORDS_PER_SECOND: u32 = 500;

/// As for a frozen host, or a slow election.
const PAUSE: Duration = Duration::from_secs(5);

pub async fn measure() {
    for number in 1..=KILLS {
        for stamped in [false, true] {
            in_place(number, stamped).await;
        }
    }
    suspended().await;
}

/// The records of these that are leased and not settled.
async fn leased(collections: &Collections) -> BTreeSet<String> {
    let filter = doc! { "status": "pending", "leaseId": { "$exists": true } };
    let records = collections.records().clone_with_type::<Document>();
    let found = records.find(filter).projection(doc! { "_id": 1 }).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    found.iter().map(id_of).collect()
}

fn id_of(record: &Document) -> String {
    RecordId::from(record.get("_id").unwrap().clone()).to_string()
}

async fn in_place(number: usize, stamped: bool) {
    let (collections, queue) = (support::outbox().await, Queue::declare("classic").await);
    let arrivals: Arrivals = queue.arrivals().await;
    let records = support::records();
    let all: Vec<_> = (0..records)
        .map(|n| support::record(n, support::KEYS))
        .map(|record| if stamped { support::stamped(record) } else { record })
        .collect();
    for chunk in all.chunks(1_000) {
        collections.records().insert_many(chunk).await.unwrap();
    }
    let killed = Daemon::start(&collections, &queue.settings());
    while arrivals.count() < records * 2 / 5 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    killed.kill();
    let in_flight = leased(&collections).await;
    let before: HashMap<String, Instant> = arrivals.first();
    let restarted = Instant::now();
    let next = Daemon::start(&collections, &queue.settings());
    until_all(&arrivals, records).await;
    // A repeated message precedes its key's first new one.
    while !leased(&collections).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let arrived = arrivals.first();
    let mut after: Vec<f64> = arrived
        .iter()
        .filter(|(id, _)| !before.contains_key(*id))
        .map(|(_, at)| since(restarted, *at))
        .filter(|at| *at > 0.1)
        .collect();
    after.sort_by(f64::total_cmp);
    let of_leased = in_flight.iter().filter(|id| !before.contains_key(*id));
    let last_leased = of_leased
        .filter_map(|id| arrived.get(id))
        .map(|at| since(restarted, *at))
        .fold(0.0, f64::max);
    println!(
        "restart  {number}, {}, {records} in a backlog: {} leased at the kill; after the start the first message at {:.1} s, the last leased one at {last_leased:.1} s, the last of all at {:.1} s; arrived twice {}",
        if stamped { "stamped" } else { "the README's record" },
        in_flight.len(),
        after[0],
        after.last().unwrap(),
        arrivals.repeated(),
    );
    end(collections, queue, next).await;
}

/// It keeps its partitions: there is no other instance, and its heartbeat does not become stale.
async fn suspended() {
    let (collections, queue) = (support::outbox().await, Queue::declare("classic").await);
    let arrivals = queue.arrivals().await;
    let daemon = Daemon::start(&collections, &queue.settings());
    let flow = Flow::start(&collections, RECORDS_PER_SECOND);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let rebalances = "postrider_rebalances_total";
    let before = daemon.metric(rebalances).await;
    daemon.signal(rustix::process::Signal::STOP);
    tokio::time::sleep(PAUSE).await;
    daemon.signal(rustix::process::Signal::CONT);
    let woken = Instant::now();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let sent = flow.stop().await;
    until_all(&arrivals, sent.len()).await;
    let arrived = arrivals.first();
    let first = sent.iter().map(|sent| since(woken, arrived[&sent.id])).filter(|at| *at > 0.0);
    let lost = daemon.metric("postrider_deliveries_total{sink=\"rabbit\",outcome=\"lost\"}").await;
    println!(
        "suspended for {PAUSE:?} at {RECORDS_PER_SECOND}/s: first arrival {:.2} s after it woke; changes of partitions {}; leases lost {lost}; arrived twice {}",
        first.fold(f64::MAX, f64::min),
        daemon.metric(rebalances).await - before,
        arrivals.repeated(),
    );
    end(collections, queue, daemon).await;
}
