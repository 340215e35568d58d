//! Draining a backlog into a sink that discards, compared with the ceiling: the same find, lease
//! and settle commands in a bare loop through the same driver.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod support;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use postrider::ids::{InstanceId, LeaseId, RecordId};
use postrider::outbox::collections::Collections;
use postrider::outbox::lease::{LeaseRequest, Leaser, OwnerId};
use postrider::outbox::position::Position;
use postrider::outbox::record::Record;
use postrider::outbox::settle::{Outcome, Settlement, Settlements};
use postrider::outbox::snapshot::{OutboxSnapshot, ReadLimit, SkippedKeys};
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::Relay;
use postrider::sink::{Message, PublishError, Sink, SinkDown};
use postrider::wakeup::Wakeup;
use support::cost;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

struct Discard;

impl Sink for Discard {
    async fn publish(&self, _message: Message) -> Result<(), PublishError> {
        Ok(())
    }
    async fn probe(&self) -> Result<(), SinkDown> {
        Ok(())
    }
    async fn lost(&self) -> SinkDown {
        pending().await
    }
    async fn close(&self) {}
    fn isolated(&self) -> Self {
        Self
    }
}

/// Records per second of a bare loop with `workers` workers, each over its own partitions.
async fn ceiling(collections: &Collections, count: usize, workers: usize) -> f64 {
    let started = Instant::now();
    join_all((0..workers).map(|worker| {
        let collections = collections.clone();
        tokio::spawn(async move {
            let owned: Vec<u8> = (0..=255u8).filter(|p| *p as usize % workers == worker).collect();
            let leaser = Leaser::new(
                collections.clone(),
                OwnerId::new(InstanceId::fresh()),
                Duration::from_secs(30),
            );
            let settlements = Settlements::new(collections.clone(), false);
            let room = ReadLimit { records: 500, bytes: 16 << 20 };
            let mut position = Position::start();
            let mut found = false;
            loop {
                let mut snapshot = OutboxSnapshot::begin(&collections).await.unwrap();
                let page =
                    snapshot.page(&position, &owned, &SkippedKeys::default(), room).await.unwrap();
                found |= !page.records.is_empty();
                if page.next.is_none() && !std::mem::take(&mut found) {
                    return;
                }
                position = page.next.unwrap_or_default();
                let ids: Vec<RecordId> = page.records.iter().map(|r| r.id.clone()).collect();
                if ids.is_empty() {
                    continue;
                }
                let lease = LeaseId::fresh();
                let untouched = page.records.iter().filter_map(Record::version).collect();
                let request = LeaseRequest { untouched, ..LeaseRequest::default() };
                let grant = leaser.lease(lease, &request).await.unwrap();
                assert_eq!(grant.held.len(), ids.len());
                let batch: Vec<Settlement> = ids
                    .into_iter()
                    .map(|id| Settlement { id, lease, attempt: 1, outcome: Outcome::Done })
                    .collect();
                assert!(settlements.write(&batch).await.unwrap().is_empty());
            }
        })
    }))
    .await;
    count as f64 / started.elapsed().as_secs_f64()
}

async fn relay(collections: &Collections, count: usize) -> f64 {
    let stop = CancellationToken::new();
    let (_owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let started = Instant::now();
    let confirmed = Arc::new(AtomicUsize::new(0));
    let counted = confirmed.clone();
    let note = move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
    };
    let sink = support::ReportingSink { inner: Discard, given: |_: &str| {}, note };
    let sink = ("discard", sink);
    let parts = support::relay_parts(collections, sink, "{type}", share, Wakeup::default());
    let running = tokio::spawn(Relay::new(parts, stop.clone()).run());
    support::until_drained(collections, (&confirmed, count), &running).await;
    let rate = count as f64 / started.elapsed().as_secs_f64();
    stop.cancel();
    running.await.unwrap().unwrap();
    rate
}

/// The README's record without, and with a partition.
const KINDS: [&str; 2] = ["README's", "stamped"];

/// Records per second of the relay over a backlog of one kind.
async fn measured(round: usize, kind: &str, count: usize) -> f64 {
    let collections = support::outbox().await;
    match kind {
        "stamped" => support::fill_stamped(&collections, 0, count, support::KEYS).await,
        _ => support::fill(&collections, 0, count, support::KEYS).await,
    }
    let before = cost::mongo(&collections).await;
    let cpu = (cost::cpu_micros("self"), cost::cpu_micros(&before.pid));
    let rate = relay(&collections, count).await;
    let own = (cost::cpu_micros("self") - cpu.0) as f64 / count as f64;
    let mongod = (cost::cpu_micros(&before.pid) - cpu.1) as f64 / count as f64;
    let after = cost::mongo(&collections).await;
    let bytes = (after.bytes - before.bytes) / count as i64;
    let commands = (after.commands - before.commands) as f64 / count as f64;
    println!(
        "round {round}  relay, {kind:<8} record {rate:>8.0}/s  cpu us/record: own {own:.0} mongod {mongod:.0}  commands/record {commands:.4}  bytes/record {bytes}  peak {} MB",
        cost::peak_mb("self")
    );
    support::drop(collections).await;
    rate
}

/// `cargo bench --bench drain -- relay`, for a profiler.
fn profile_relay() -> bool {
    std::env::args().any(|argument| argument == "relay")
}

fn main() {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(run());
}

async fn run() {
    let count = support::records();
    let rounds = 5;
    let mut ratios: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for round in 1..=rounds {
        let (mut alone, mut best): (f64, f64) = (0.0, 0.0);
        let ceilings: &[usize] = if profile_relay() { &[] } else { &[1, 2, 4] };
        for &workers in ceilings {
            let collections = support::outbox().await;
            support::fill_stamped(&collections, 0, count, support::KEYS).await;
            let before = cost::mongo(&collections).await;
            let cpu = (cost::cpu_micros("self"), cost::cpu_micros(&before.pid));
            let rate = ceiling(&collections, count, workers).await;
            let own = (cost::cpu_micros("self") - cpu.0) as f64 / count as f64;
            let mongod = (cost::cpu_micros(&before.pid) - cpu.1) as f64 / count as f64;
            println!(
                "round {round}  ceiling, {workers} workers  {rate:>8.0}/s  cpu us/record: own {own:.0} mongod {mongod:.0}"
            );
            best = best.max(rate);
            if workers == 1 {
                alone = rate;
            }
            support::drop(collections).await;
        }
        let mut rates = [0.0; 2];
        // The order alternates, so that no kind always runs first.
        let kinds = [KINDS, [KINDS[1], KINDS[0]]][round % 2];
        for kind in kinds {
            rates[usize::from(kind == "stamped")] = measured(round, kind, count).await;
        }
        let [rate, stamped] = rates;
        println!("round {round}  relay / one loop {:.2}, / best {:.2}", rate / alone, rate / best);
        println!("round {round}  README's record / a stamped one {:.2}", rate / stamped);
        ratios.entry("relay / one loop").or_default().push(rate / alone);
        ratios.entry("relay / best of 1, 2 and 4 loops").or_default().push(rate / best);
        ratios.entry("README's record / a stamped one").or_default().push(rate / stamped);
    }
    for (name, mut values) in ratios {
        println!("median {name}: {:.2}", support::median(&mut values));
    }
}
