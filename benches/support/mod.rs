//! Shared by the benchmarks: a filled outbox, cost accounting, and a table of ratios.

#![allow(dead_code, reason = "each benchmark uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]
#![allow(missing_docs, reason = "not an API")]

#[path = "../../tests/support/authority.rs"]
pub mod authority;
pub mod blocked;
#[path = "../../tests/support/child_guard.rs"]
pub mod child_guard;
pub mod cost;
pub mod daemon;
pub mod flow;
pub mod queue;
pub mod topic;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bson::raw::{RawDocumentBuf, cstr};
use bson::{Bson, Timestamp, doc};
use futures_util::future::join_all;
use postrider::ids::InstanceId;
use postrider::outbox::collections::Collections;
use postrider::outbox::lease::OwnerId;
use postrider::outbox::snapshot::LANE_INDEX;
use postrider::partition::owned::OwnedPartitions;
use postrider::partition::suspension::SuspensionDetector;
use postrider::relay::RelayParts;
use postrider::relay::settings::Settings;
use postrider::routing::{Router, SinkRules, Template};
use postrider::schema::{self, SchemaOptions};
use postrider::sink::{Message, PublishError, Sink, SinkDown};
use postrider::wakeup::Wakeup;
use postrider_settings::Glob;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The number of records: `POSTRIDER_BENCH_RECORDS`.
pub fn records() -> usize {
    std::env::var("POSTRIDER_BENCH_RECORDS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000)
}

/// How long a steady flow is measured; longer with `POSTRIDER_BENCH_SECONDS`.
pub fn seconds() -> usize {
    seconds_or(10)
}

/// The same, with another default.
pub fn seconds_or(usual: usize) -> usize {
    std::env::var("POSTRIDER_BENCH_SECONDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

pub const KEYS: usize = 1_000;

/// The defaults.
pub fn settings() -> Settings {
    Settings::default()
}

pub fn mongodb_uri() -> String {
    variable("POSTRIDER_TEST_MONGODB_URI")
}

pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run `make bench`"))
}

/// Whether the command line names this part of a benchmark, or none of its parts.
pub fn is_chosen(parts: &[&str], part: &str) -> bool {
    let named: Vec<String> =
        std::env::args().filter(|argument| parts.contains(&argument.as_str())).collect();
    named.is_empty() || named.iter().any(|name| name == part)
}

/// The parts of a relay to one sink, whose messages have this template as their key.
pub fn relay_parts<S: Sink>(
    collections: &Collections,
    (name, sink): (&str, S),
    key: &str,
    share: watch::Receiver<OwnedPartitions>,
    wakeup: Wakeup,
) -> RelayParts<S> {
    let rules = SinkRules {
        destination: Template::parse("").unwrap(),
        key: Some(Template::parse(key).unwrap()),
        allowed_destinations: vec![Glob::new("*")],
        source: None,
    };
    RelayParts {
        settings: settings(),
        collections: collections.clone(),
        owner: OwnerId::new(InstanceId::fresh()),
        router: Router::new(Vec::new(), BTreeMap::from([(name.into(), rules)]), None),
        sinks: BTreeMap::from([(name.to_owned(), sink)]),
        owned: share,
        wakeup,
        delete_done: false,
        suspension: SuspensionDetector::new(),
        predecessor: None,
    }
}

/// A fresh outbox with its schema.
pub async fn outbox() -> Collections {
    let client = postrider::store::connect::client(&mongodb_uri()).await.unwrap();
    let database = format!("bench_{}", uuid::Uuid::new_v4().simple());
    let collections = Collections::new(client, &database, "");
    schema::apply(&collections, &SchemaOptions::default()).await.unwrap();
    collections
}

/// Fills the outbox with the records of the README, over `keys` keys, round robin.
pub async fn fill(collections: &Collections, from: usize, count: usize, keys: usize) {
    fill_with(collections, KIND, from, count, keys).await;
}

/// The same with records of another type, with keys of its own.
pub async fn fill_with(
    collections: &Collections,
    kind: &str,
    from: usize,
    count: usize,
    keys: usize,
) {
    fill_from(collections, from..from + count, |n| record_with(kind, n, keys)).await;
}

/// The same with records that name their partition.
pub async fn fill_stamped(collections: &Collections, from: usize, count: usize, keys: usize) {
    fill_from(collections, from..from + count, |n| stamped(record(n, keys))).await;
}

async fn fill_from(
    collections: &Collections,
    numbers: Range<usize>,
    record: impl Fn(usize) -> RawDocumentBuf,
) {
    let numbers: Vec<usize> = numbers.collect();
    let record = &record;
    for batch in numbers.chunks(4_000) {
        let inserts = batch.chunks(1_000).map(|chunk| async move {
            let documents = chunk.iter().map(|n| record(*n));
            collections.records().insert_many(documents).await.unwrap();
        });
        join_all(inserts).await;
    }
}

/// The type of a record, where it does not matter.
pub const KIND: &str = "OrderCreated";

pub fn record(n: usize, keys: usize) -> RawDocumentBuf {
    record_with(KIND, n, keys)
}

/// The record of the README, with a payload of 400 bytes.
pub fn record_with(kind: &str, n: usize, keys: usize) -> RawDocumentBuf {
    let document = doc! {
        "_id": bson::oid::ObjectId::new(),
        "key": format!("{kind}-{}", n % keys),
        "type": kind,
        "payload": Bson::String(payload(n)),
        "status": "pending",
        "seq": Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
    };
    RawDocumentBuf::try_from(&document).unwrap()
}

/// The partition of a record, which [`stamped`] writes into it.
pub fn partition_of(record: &RawDocumentBuf) -> u8 {
    postrider::partition::of_key(record.get_str("key").unwrap())
}

/// The same record with its partition, as a producer may write it.
pub fn stamped(mut record: RawDocumentBuf) -> RawDocumentBuf {
    record.append(cstr!("partition"), i32::from(partition_of(&record)));
    record
}

fn payload(n: usize) -> String {
    format!("{n:0>400}")
}

/// A sink that reports each message, by its id, when it is published and when it is confirmed.
pub struct ReportingSink<S, G, F> {
    pub inner: S,
    pub given: G,
    pub note: F,
}

impl<S, G, F> Sink for ReportingSink<S, G, F>
where
    S: Sink,
    G: Fn(&str) + Clone + Send + Sync + 'static,
    F: Fn(String) + Clone + Send + Sync + 'static,
{
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let id = message.id.clone();
        (self.given)(&id);
        self.inner.publish(message).await?;
        (self.note)(id);
        Ok(())
    }
    async fn probe(&self) -> Result<(), SinkDown> {
        self.inner.probe().await
    }
    async fn lost(&self) -> SinkDown {
        self.inner.lost().await
    }
    async fn close(&self) {
        self.inner.close().await;
    }
    fn isolated(&self) -> Self {
        let (given, note) = (self.given.clone(), self.note.clone());
        Self { inner: self.inner.isolated(), given, note }
    }
}

/// Waits, as long as `running` does not end, until `count` are confirmed and all is settled.
pub async fn until_drained<T>(
    collections: &Collections,
    (confirmed, count): (&AtomicUsize, usize),
    running: &JoinHandle<T>,
) {
    let pause = || async {
        assert!(!running.is_finished(), "the relay has ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    while confirmed.load(Ordering::Relaxed) < count {
        pause().await;
    }
    while is_pending(collections).await {
        pause().await;
    }
}

/// Whether anything is pending. Only for the end: the query must pass over all index entries that
/// were deleted.
pub async fn is_pending(collections: &Collections) -> bool {
    let hint = mongodb::options::Hint::Name(LANE_INDEX.into());
    let records = collections.records();
    let pending =
        records.find_one(doc! { "status": "pending" }).projection(doc! { "_id": 1 }).hint(hint);
    pending.await.unwrap().is_some()
}

pub async fn drop(collections: Collections) {
    collections.database().drop().await.unwrap();
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    at(values, 0.5)
}

/// The value below which this share of sorted values lies.
pub fn at(sorted: &[f64], share: f64) -> f64 {
    sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)]
}
