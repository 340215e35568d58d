//! An idle instance next to very many keys that dead records block (`relay.on_dead = "block"`): its
//! cost, how soon a freed key is delivered, and what deletions of delivered records cost.

use std::time::{Duration, Instant};

use bson::{Bson, DateTime, Document, doc};
use mongodb::Collection;
use postrider::outbox::collections::Collections;
use postrider::outbox::redrive::{Redrive, Redriver};
use postrider::outbox::undecoded::RawId;

use crate::support;
use crate::support::blocked::{behind, dead, insert, record};
use crate::support::cost;
use crate::support::daemon::Daemon;

/// Delivered records that are deleted each second.
const DELETED_PER_SECOND: usize = 1_000;

/// How long they are deleted.
const DELETING: Duration = Duration::from_secs(10);

/// Keys that are freed in either way.
const FREED: usize = 10;

pub async fn measure() {
    for count in [0, support::records()] {
        measure_with(count).await;
    }
}

async fn measure_with(count: usize) {
    let collections = support::outbox().await;
    let records = collections.records().clone_with_type::<Document>();
    insert(&collections, (0..count).flat_map(|n| [dead(n), behind(n)])).await;
    let done = DELETED_PER_SECOND * DELETING.as_secs() as usize;
    insert(&collections, (0..done).map(delivered)).await;
    let settings = ["sinks.out.kind=stdout".to_owned()];
    let mut daemon = Daemon::start(&collections, &settings);
    let started = Instant::now();
    let blocked = "postrider_blocked_keys{reason=\"blocked\"}";
    while daemon.metric("postrider_partitions_live").await < 256.0
        || daemon.metric(blocked).await < count as f64
    {
        daemon.pause().await;
    }
    println!("blocked  {count} keys: known after {:.1} s", started.elapsed().as_secs_f64());
    until_verified(&daemon).await;

    let idle = Duration::from_secs(support::seconds_or(30) as u64);
    let seen = seen(&daemon).await;
    print_cost(&collections, &daemon, count, "idle", tokio::time::sleep(idle)).await;
    let read = self::seen(&daemon).await - seen;
    let memory = cost::peak_mb(&daemon.pid());
    println!("blocked  {count} keys: {read} records read meanwhile; peak memory {memory} MB");

    if count > 0 {
        let redriver = Redriver::new(collections.clone());
        let requeue = async |n: usize| {
            let id = RawId::from(&Bson::from(format!("dead-{n}")));
            redriver.redrive(Redrive::Requeue, &[id]).await.unwrap().unwrap();
        };
        let delete = async |n: usize| {
            records.delete_one(doc! { "_id": format!("dead-{n}") }).await.unwrap();
        };
        print_freed("requeued", count, &records, requeue, 0).await;
        print_freed("deleted", count, &records, delete, FREED).await;
    }

    let deleting = async {
        let mut ticks = tokio::time::interval(Duration::from_millis(10));
        for n in 0..done {
            if n % (DELETED_PER_SECOND / 100) == 0 {
                ticks.tick().await;
            }
            records.delete_one(doc! { "_id": format!("done-{n}") }).await.unwrap();
        }
    };
    print_cost(&collections, &daemon, count, "1,000 deletions/s", deleting).await;
    daemon.stop().await;
    support::drop(collections).await;
}

/// Prints what the instance and MongoDB spend meanwhile.
async fn print_cost(
    collections: &Collections,
    daemon: &Daemon,
    count: usize,
    what: &str,
    meanwhile: impl Future<Output = ()>,
) {
    let mongod = cost::mongo(collections).await.pid;
    let (own, server) = (cost::cpu_micros(&daemon.pid()), cost::cpu_micros(&mongod));
    let started = Instant::now();
    meanwhile.await;
    let percent = |before: u64, pid: &str| {
        (cost::cpu_micros(pid) - before) as f64 / started.elapsed().as_secs_f64() / 10_000.0
    };
    println!(
        "blocked  {count} keys, {what}: own {:.2} % of a core, mongod {:.2} %",
        percent(own, &daemon.pid()),
        percent(server, &mongod),
    );
}

/// Frees some keys, one after the other, and prints how soon the record behind is delivered.
async fn print_freed(
    how: &str,
    count: usize,
    records: &Collection<Document>,
    free: impl AsyncFn(usize),
    from: usize,
) {
    let mut took = Vec::new();
    for n in from..from + FREED {
        let began = Instant::now();
        free(n).await;
        let delivered = doc! { "_id": format!("behind-{n}"), "status": "done" };
        while records.count_documents(delivered.clone()).await.unwrap() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        took.push(began.elapsed().as_secs_f64());
    }
    took.sort_by(f64::total_cmp);
    println!(
        "blocked  {count} keys, blocker {how}: delivered after {:.2} s (median), {:.2} s (longest)",
        support::at(&took, 0.5),
        support::at(&took, 1.0),
    );
}

/// Waits until no record is read any more.
async fn until_verified(daemon: &Daemon) {
    let mut before = -1.0;
    while seen(daemon).await != before {
        before = seen(daemon).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    }
}

async fn seen(daemon: &Daemon) -> f64 {
    let mut all = 0.0;
    for source in ["scan", "recheck", "audit"] {
        let series = format!("postrider_records_seen_total{{source=\"{source}\"}}");
        all += daemon.metric(&series).await;
    }
    all
}

fn delivered(n: usize) -> Document {
    let mut record = record(format!("done-{n}"), format!("other-{n}"));
    record.extend(doc! { "status": "done", "doneAt": DateTime::now() });
    record
}
