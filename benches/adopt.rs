//! The bridge from another outbox (`postrider adopt`): documents of namastack-outbox with the payload of the README's
//! record, copied from a backlog and as they arrive.
//!
//! `cargo bench --bench adopt`; the number of documents is `POSTRIDER_BENCH_RECORDS`.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::time::{Duration, Instant};

use bson::{DateTime, Document, doc};
use mongodb::Collection;
use postrider::adopt::bridge::Bridge;
use postrider::adopt::config::AdoptConfig;
use postrider::adopt::mapping::Mapping;
use postrider::adopt::presets::Preset;
use postrider::outbox::collections::{Collections, names};
use tokio_util::sync::CancellationToken;

use support::cost;

const KEYS: usize = 4_000;

/// How often each is measured.
const ROUNDS: usize = 3;

fn main() {
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(measure());
}

async fn measure() {
    let count = support::records();
    println!("{count} documents of {KEYS} keys, ≈ 0.6 KB each");
    for (name, arriving) in [("backlog", false), ("arriving", true)] {
        let mut rates = Vec::new();
        for round in 1..=ROUNDS {
            rates.push(copy(name, round, count, arriving).await);
        }
        println!("{name} (median): {:.0} documents/s", support::median(&mut rates));
    }
}

/// Copies a collection of its own; returns documents per second.
async fn copy(name: &str, round: usize, count: usize, arriving: bool) -> f64 {
    let outbox = support::outbox().await;
    let documents = outbox.database().collection::<Document>("old_outbox_records");
    documents
        .create_index(mongodb::IndexModel::builder().keys(doc! { "status": 1 }).build())
        .await
        .unwrap();
    fill(&documents, 1, "COMPLETED").await;
    if !arriving {
        fill(&documents, count, "NEW").await;
    }
    let bridge = bridge(&outbox);
    let before = cost::mongo(&outbox).await;
    let cpu = (cost::cpu_micros("self"), cost::cpu_micros(&before.pid));
    let began = Instant::now();
    let rate = if arriving {
        let stop = CancellationToken::new();
        let ending = async {
            fill(&documents, count, "NEW").await;
            until_copied(&outbox, count).await;
            let took = began.elapsed();
            stop.cancel();
            took
        };
        let (ended, took) = tokio::join!(bridge.run(None, false, &stop), ending);
        assert_eq!(ended.unwrap().copied, u64::try_from(count).unwrap());
        report(name, round, count, took, &before, cpu)
    } else {
        let ended = bridge.once(None, &CancellationToken::new()).await.unwrap();
        assert_eq!(ended.copied, u64::try_from(count).unwrap());
        report(name, round, count, began.elapsed(), &before, cpu)
    };
    support::drop(outbox).await;
    rate
}

fn report(
    name: &str,
    round: usize,
    count: usize,
    took: Duration,
    before: &cost::MongoCost,
    cpu: (u64, u64),
) -> f64 {
    let each = |micros: u64| micros as f64 / count as f64;
    let rate = count as f64 / took.as_secs_f64();
    println!(
        "{name} {round}: {rate:.0} documents/s, {:.0} us of CPU of the bridge and {:.0} us of mongod a document",
        each(cost::cpu_micros("self") - cpu.0),
        each(cost::cpu_micros(&before.pid) - cpu.1),
    );
    rate
}

fn bridge(outbox: &Collections) -> Bridge {
    let config = AdoptConfig {
        collection: Some("old_outbox_records".to_owned()),
        handler: Some("orders".to_owned()),
        ..AdoptConfig::default()
    };
    let mapping = Mapping::new(Preset::Namastack, &config, outbox.database().name()).unwrap();
    Bridge::new(outbox.clone(), mapping)
}

async fn fill(documents: &Collection<Document>, count: usize, status: &str) {
    let now = DateTime::now().timestamp_millis();
    let document = |number: usize| {
        let at = DateTime::from_millis(now + i64::try_from(number).unwrap());
        let payload =
            format!(r#"{{"order": {number}, "total": "120.00", "lines": "{}"}}"#, "x".repeat(200));
        doc! {
            "_id": uuid::Uuid::new_v4().to_string(), "status": status, "recordKey": format!("order-{}", number % KEYS),
            "recordType": "com.shop.OrderCreated", "payload": payload, "context": "{}", "partitionNo": 7,
            "createdAt": at, "completedAt": null, "failureCount": 0, "failureReason": null,
            "nextRetryAt": at, "handlerId": "orders",
        }
    };
    for begin in (0..count).step_by(500) {
        documents.insert_many((begin..(begin + 500).min(count)).map(document)).await.unwrap();
    }
}

async fn until_copied(outbox: &Collections, count: usize) {
    let records = outbox.collection(names::RECORDS);
    while records.estimated_document_count().await.unwrap() < u64::try_from(count).unwrap() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
