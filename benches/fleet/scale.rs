//! One, two, four and eight daemons on one backlog, and the cost per record.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use bson::{Bson, Document, Timestamp, doc};
use postrider::outbox::collections::Collections;

use crate::support;
use crate::support::cost;
use crate::support::daemon::{Daemon, command, until_divided};
use crate::support::queue::Queue;

const ROUNDS: usize = 3;

/// A small share of a core: eight idle daemons cost mongod 0.04.
const IDLE_CPU_SHARE: f64 = 0.15;

/// The sink: none, or RabbitMQ.
#[derive(Clone, Copy, Debug)]
enum To {
    Nothing,
    RabbitMq,
}

pub async fn measure() {
    let count = support::records();
    let mut ratios: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for round in 1..=ROUNDS {
        for to in [To::RabbitMq, To::Nothing] {
            let mut alone = 0.0;
            for daemons in [1, 2, 4, 8] {
                let rate = drain(to, daemons, count, round).await;
                if daemons == 1 {
                    alone = rate;
                } else {
                    let name = format!("{to:?}, {daemons} daemons / one");
                    ratios.entry(name).or_default().push(rate / alone);
                }
            }
        }
    }
    for (name, mut values) in ratios {
        println!("scale    median {name}: {:.2} of {values:.2?}", support::median(&mut values));
    }
}

/// Records per second of this many daemons, which have divided the partitions beforehand.
async fn drain(to: To, count: usize, records: usize, round: usize) -> f64 {
    let collections = support::outbox().await;
    let queue = Queue::declare("classic").await;
    let (sink, settings) = match to {
        To::Nothing => ("out", vec!["sinks.out.kind=stdout".to_owned()]),
        To::RabbitMq => ("rabbit", queue.settings()),
    };
    let mut daemons: Vec<Daemon> =
        (0..count).map(|_| Daemon::start(&collections, &settings)).collect();
    until_divided(&mut daemons).await;
    relay(&collections, "pause");
    for daemon in &mut daemons {
        while daemon.metric("postrider_relay_paused").await == 0.0 {
            daemon.pause().await;
        }
    }
    let filling = now(&collections).await;
    support::fill(&collections, 0, records, support::KEYS).await;
    until_rest(&cost::mongo(&collections).await.pid, &mut daemons[0]).await;
    let (before, began) = (cost::mongo(&collections).await, now(&collections).await);
    let cpu = |daemons: &[Daemon]| {
        daemons.iter().map(|daemon| cost::cpu_micros(&daemon.pid())).sum::<u64>() as f64
    };
    let (mongod, own) = (cost::cpu_micros(&before.pid), cpu(&daemons));
    let started = Instant::now();
    relay(&collections, "resume");
    let mut done = vec![0.0; count];
    while done.iter().sum::<f64>() < records as f64 {
        for (daemon, done) in daemons.iter_mut().zip(&mut done) {
            *done = daemon.done(sink).await;
        }
        daemons[0].pause().await;
    }
    let rate = records as f64 / started.elapsed().as_secs_f64();
    let per = |total: f64| total / records as f64;
    let (mongod, own) =
        (per((cost::cpu_micros(&before.pid) - mongod) as f64), per(cpu(&daemons) - own));
    let after = cost::mongo(&collections).await;
    let peak = daemons.iter().map(|daemon| cost::peak_mb(&daemon.pid())).max().unwrap();
    done.sort_by(f64::total_cmp);
    println!(
        "scale    round {round}  {to:?}, {count} daemons  {rate:>6.0}/s  each settled {done:?}  cpu us/record: own {own:.0} mongod {mongod:.0}  commands/record {:.4}  bytes/record {:.0}  peak {peak} MB each",
        per((after.commands - before.commands) as f64),
        per((after.bytes - before.bytes) as f64),
    );
    if count == 1 {
        keeps(&collections, records, filling, began).await;
    }
    for daemon in daemons {
        daemon.stop().await;
    }
    support::drop(collections).await;
    queue.delete().await;
    rate
}

/// Waits until mongod is idle after the filling: the change streams read all of it, once for each
/// daemon.
async fn until_rest(mongod: &str, daemon: &mut Daemon) {
    loop {
        let (before, began) = (cost::cpu_micros(mongod), Instant::now());
        for _ in 0..10 {
            daemon.pause().await;
        }
        let busy = (cost::cpu_micros(mongod) - before) as f64 / 1e6;
        if busy < began.elapsed().as_secs_f64() * IDLE_CPU_SHARE {
            return;
        }
    }
}

/// `postrider relay pause` or `resume`.
fn relay(collections: &Collections, switch: &str) {
    let mut command: Command = command(collections, &["relay", switch]);
    assert!(command.status().unwrap().success());
}

/// The time of the oplog's last entry.
async fn now(collections: &Collections) -> Timestamp {
    let hello = collections.database().run_command(doc! { "hello": 1 }).await.unwrap();
    let last = hello.get_document("lastWrite").unwrap().get_document("opTime").unwrap();
    last.get_timestamp("ts").unwrap()
}

/// What MongoDB writes and stores per record: oplog, data, indexes.
async fn keeps(collections: &Collections, records: usize, filling: Timestamp, began: Timestamp) {
    let (inserting, relaying) =
        (oplog(collections, filling, Some(began)).await, oplog(collections, began, None).await);
    let pipeline = [doc! { "$collStats": { "storageStats": {} } }];
    let mut stats = collections.records().aggregate(pipeline).await.unwrap();
    assert!(stats.advance().await.unwrap());
    let stats = stats.deserialize_current().unwrap();
    let stats = stats.get_document("storageStats").unwrap();
    let per = |value: Option<&Bson>| number(value) / records as f64;
    println!(
        "scale    per record: oplog {:.0} bytes by its insertion, {:.0} by lease and settle; as BSON {:.0} bytes, {:.0} on disk, {:.0} of indexes",
        inserting / records as f64,
        relaying / records as f64,
        per(stats.get("size")),
        per(stats.get("storageSize")),
        per(stats.get("totalIndexSize")),
    );
}

/// Bytes of the oplog's entries about these records, as BSON.
async fn oplog(collections: &Collections, from: Timestamp, to: Option<Timestamp>) -> f64 {
    let mut ts = doc! { "$gt": from };
    if let Some(to) = to {
        ts.insert("$lte", to);
    }
    let namespace = collections.records().namespace().to_string();
    let about = doc! { "$or": [{ "ns": &namespace }, { "o.applyOps.ns": &namespace }] };
    let pipeline = [
        doc! { "$match": { "ts": ts } },
        doc! { "$match": about },
        doc! { "$group": { "_id": null, "bytes": { "$sum": { "$bsonSize": "$$ROOT" } } } },
    ];
    let local = collections.database().client().database("local");
    let mut found = local.collection::<Document>("oplog.rs").aggregate(pipeline).await.unwrap();
    assert!(found.advance().await.unwrap());
    number(found.deserialize_current().unwrap().get("bytes"))
}

fn number(value: Option<&Bson>) -> f64 {
    match value {
        Some(Bson::Int32(n)) => f64::from(*n),
        Some(Bson::Int64(n)) => *n as f64,
        Some(Bson::Double(n)) => *n,
        _ => 0.0,
    }
}
