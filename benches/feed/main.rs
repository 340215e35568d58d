//! The feed: backfill, reads, latency, what it costs appends, and what erasures cost subscriptions.
//!
//! `cargo bench --bench feed -- backfill read` measures those parts alone.

#![allow(clippy::unwrap_used, reason = "a benchmark ends by a panic")]

mod appends;
mod backfill;
mod erasures;
mod lag;
mod latency;
mod names;
mod read;
#[path = "../support/mod.rs"]
mod support;

use bson::{Document, doc};
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::feed::{Feed, FeedConfig};
use postrider::outbox::collections::Collections;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

fn main() {
    postrider::telemetry::init(Some(false), "warn").unwrap();
    let parts = ["backfill", "read", "names", "latency", "appends", "lag", "erasures"];
    tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap().block_on(async {
        for part in parts.into_iter().filter(|part| support::is_chosen(&parts, part)) {
            match part {
                "backfill" => backfill::measure().await,
                "read" => read::measure().await,
                "names" => names::measure().await,
                "latency" => latency::measure().await,
                "appends" => appends::measure().await,
                "lag" => lag::measure().await,
                _ => erasures::measure().await,
            }
        }
    });
}

/// The context of an outbox, with a feed.
fn context(collections: &Collections) -> Context {
    let settings =
        ContextSettings { feed: true, ..ContextSettings::new(collections.database().name()) };
    Context::new(collections.client().clone(), settings)
}

/// A running sequencer, without a limit of its backfill.
struct Sequencing {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Sequencing {
    fn start(feed: &Feed) -> Self {
        let stop = CancellationToken::new();
        let settings = FeedConfig { backfill_rate: 0, ..FeedConfig::default() };
        let task = tokio::spawn(feed.sequencer(settings).run(stop.clone()));
        Self { stop, task }
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// The payload of each event: about 400 bytes.
fn body() -> Document {
    doc! { "order": 7, "total": "120.00", "lines": "x".repeat(350) }
}

/// A stream document with one event of the README's payload, as another program writes it.
fn stream(name: &str, number: usize, aggregates: usize) -> Document {
    let (id, version) = (number % aggregates, number / aggregates + 1);
    doc! {
        "_id": format!("{name}-{number}"),
        "contextName": "default",
        "aggregateName": name,
        "aggregateId": format!("o-{id}"),
        "requestId": format!("{number}"),
        "version": i32::try_from(version).unwrap(),
        "createTime": bson::DateTime::now().timestamp_millis(),
        "header": {},
        "size": 1,
        "body": [{ "id": format!("{name}-{number}"), "name": "OrderCreated", "body": body() }],
    }
}

/// Inserts streams without positions.
async fn fill(context: &Context, name: &str, count: usize) {
    let streams = context.ready(CollectionKind::Events, name).await.unwrap();
    for begin in (0..count).step_by(1_000) {
        let part = (begin..(begin + 1_000).min(count)).map(|number| stream(name, number, 1_000));
        streams.insert_many(part).await.unwrap();
    }
}
