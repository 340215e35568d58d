//! `postrider outbox …` on a million records, compared with one bare pass of the server over them.
//!
//! `cargo bench --bench tools`; `POSTRIDER_BENCH_RECORDS` for another number.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::process::{Command, Stdio};
use std::time::Instant;

use bson::{DateTime, Document, Timestamp, doc};
use postrider::outbox::collections::Collections;

/// The shares: 70 % delivered, 20 % pending of 10,000 keys, 10 % dead.
fn count() -> i32 {
    let count = std::env::var("POSTRIDER_BENCH_RECORDS").ok().and_then(|n| n.parse().ok());
    count.unwrap_or(1_000_000)
}

#[tokio::main]
async fn main() {
    let collections = support::outbox().await;
    let all = count();
    fill(&collections, "done", all / 10 * 7, doc! { "doneAt": DateTime::now() }).await;
    fill(&collections, "pending", all / 10 * 2, doc! {}).await;
    let reason = doc! { "$cond": [{ "$eq": [{ "$mod": ["$n", 10] }, 0] }, "refused: no", "attempts exhausted: 10"] };
    let death = doc! { "deadAt": DateTime::now(), "deadReason": reason };
    fill(&collections, "dead", all / 10, death).await;

    let started = Instant::now();
    let records = collections.records();
    let bare = records.count_documents(doc! { "x-none": 1 });
    assert_eq!(bare.await.unwrap(), 0);
    let pass = started.elapsed().as_secs_f64();
    println!("{all} records; one bare pass over them takes {pass:.2} s\n");
    println!("{:<58} {:>8} {:>8}", "", "seconds", "passes");
    for command in [
        "stats",
        "list",
        "list --status dead --type T7",
        "list --status pending --key pending-77",
        "list --key done-77",
        "show str:pending-150077",
        "requeue --all --key dead-77 --yes",
        "requeue --all --reason refused --yes",
        "requeue --all --yes",
        "discard --all --status pending --key pending-77 --yes",
        "prune --older-than 1s",
        "stats",
    ] {
        let started = Instant::now();
        call(&collections, command);
        let took = started.elapsed().as_secs_f64();
        println!("{command:<58} {took:>8.2} {:>8.2}", took / pass);
    }
    support::drop(collections).await;
}

/// Fills the outbox on the server: keys `status-0` to `status-9999`, types `T0` to `T99`.
async fn fill(collections: &Collections, status: &str, count: i32, fields: Document) {
    let number = |within: i32| doc! { "$toString": { "$mod": ["$n", within] } };
    let mut made = doc! {
        "_id": { "$concat": [format!("{status}-"), { "$toString": "$n" }] },
        "key": { "$concat": [format!("{status}-"), number(10_000)] },
        "type": { "$concat": ["T", number(100)] },
        "payload": "x".repeat(400),
        "status": status,
        "seq": { "$literal": Timestamp { time: 1_700_000_000, increment: 1 } },
        "partition": { "$mod": ["$n", 256] },
    };
    made.extend(fields);
    let pipeline = [
        doc! { "$documents": [{ "n": { "$range": [0, count] } }] },
        doc! { "$unwind": "$n" },
        doc! { "$replaceWith": made },
        doc! { "$merge": "outbox_records" },
    ];
    collections.database().aggregate(pipeline).await.unwrap();
}

fn call(collections: &Collections, command: &str) {
    let mut postrider = Command::new(env!("CARGO_BIN_EXE_postrider"));
    postrider.arg("outbox").args(command.split(' ')).env_clear();
    postrider.args(["--set", &format!("mongo.uri={}", support::mongodb_uri())]);
    postrider.args(["--set", &format!("mongo.database={}", collections.database().name())]);
    let ended = postrider.stdout(Stdio::null()).stderr(Stdio::piped()).output().unwrap();
    assert!(ended.status.success(), "{command}: {}", String::from_utf8_lossy(&ended.stderr));
}
