//! A feed with read models, in a database of its own.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::{Client, Database};
use postrider::context::{Context, ContextSettings};
use postrider::events::feed::{Feed, FeedConfig, FeedEvent, FeedFilter};
use postrider::events::{Append, EventStore, NewEvent};
use postrider::names::{AggregateId, AggregateName};
use postrider::outbox::collections::Collections;
use postrider_projections::{
    Generation, ProjectionError, Projector, ReadModel, ReadModelSettings, RetryPolicy,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::carts::{CartProjector, Carts, folded, stored};
use crate::support::outbox::{TestOutbox, eventually};

/// An event store with a feed, whose sequencer runs.
pub struct World {
    pub outbox: TestOutbox,
    pub store: EventStore,
    pub feed: Feed,
    sequencer: CancellationToken,
}

/// A read model that runs in this process.
pub struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), ProjectionError>>,
}

impl Running {
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// Waits until an error ends it.
    pub async fn error(self) -> ProjectionError {
        let ended = tokio::time::timeout(Duration::from_secs(60), self.task).await;
        ended.expect("it ends within a minute").unwrap().unwrap_err()
    }
}

/// A policy with pauses that a test can wait for.
pub fn quick_retry() -> RetryPolicy {
    RetryPolicy { pause: Duration::from_millis(5), ..RetryPolicy::default() }
}

pub fn settings() -> ReadModelSettings {
    ReadModelSettings { retry: quick_retry(), ..ReadModelSettings::default() }
}

impl World {
    pub async fn new() -> Self {
        Self::on(TestOutbox::new().await)
    }

    pub fn on(outbox: TestOutbox) -> Self {
        let client = outbox.admin.client().clone();
        let settings = ContextSettings { feed: true, ..ContextSettings::new(&outbox.database) };
        let collections = Collections::new(client.clone(), &outbox.database, "");
        let context = Context::new(client, settings);
        let feed = Feed::new(context.clone());
        let sequencer = CancellationToken::new();
        tokio::spawn(feed.sequencer(FeedConfig::default()).run(sequencer.clone()));
        Self { outbox, store: EventStore::new(context, collections), feed, sequencer }
    }

    pub fn database(&self) -> Database {
        self.outbox.client.database(&self.outbox.database)
    }

    pub fn model(&self) -> ReadModel {
        self.model_with(settings())
    }

    pub fn model_with(&self, settings: ReadModelSettings) -> ReadModel {
        ReadModel::new(self.feed.clone(), self.database(), "carts", settings).unwrap()
    }

    /// The read model in another process.
    pub fn model_at(client: Client, database: &str, settings: ReadModelSettings) -> ReadModel {
        let context = ContextSettings { feed: true, ..ContextSettings::new(database) };
        let feed = Feed::new(Context::new(client.clone(), context));
        ReadModel::new(feed, client.database(database), "carts", settings).unwrap()
    }

    /// Appends events with these names; each body has a number.
    pub async fn append(&self, name: &str, id: &str, events: &[&str]) -> i64 {
        let (name, id) = (AggregateName::new(name).unwrap(), AggregateId::new(id).unwrap());
        let event = |event: &&str| NewEvent::new(*event, doc! { "n": rand::random_range(0..1000) });
        let events = events.iter().map(event).collect();
        let request = uuid::Uuid::new_v4().to_string();
        self.store.append(Append::new(name, id, request, events)).await.unwrap().version
    }

    /// Appends 1 to 3 events to each of some aggregates.
    pub async fn append_some(&self, rounds: usize) {
        for round in 0..rounds {
            let events = ["A", "B", "C"];
            let count = 1 + round % 3;
            self.append("order", &(round % 7).to_string(), &events[..count]).await;
        }
    }

    /// A read model that runs and applies some events, and its live generation.
    pub async fn running(&self) -> (ReadModel, Running, Generation) {
        let model = self.model();
        let running = run(&model, &CartProjector::default());
        self.append_some(5).await;
        let live = live(&model).await;
        (model, running, live)
    }

    /// All events that have a position.
    pub async fn events(&self) -> Vec<FeedEvent> {
        let (mut events, mut after) = (Vec::new(), 0);
        loop {
            let page = self.feed.page(None, after, &FeedFilter::default(), 500).await.unwrap();
            after = page.next;
            events.extend(page.items);
            if after >= page.head {
                return events;
            }
        }
    }

    /// Waits until every append has a position; returns the head.
    pub async fn until_positioned(&self) -> i64 {
        let database = self.database();
        let all = || async {
            let names = database.list_collection_names().await.unwrap();
            for name in names.iter().filter(|name| name.ends_with("_event_stream")) {
                let streams = database.collection::<Document>(name);
                let without = doc! { "position": { "$exists": false } };
                if streams.count_documents(without).await.unwrap() > 0 {
                    return false;
                }
            }
            true
        };
        eventually("a position of every append", all).await;
        self.feed.state().await.unwrap().unwrap().head
    }

    /// Waits until a generation has applied all, and compares it with the events.
    pub async fn check(&self, model: &ReadModel, generation: Generation) -> Carts {
        self.until_positioned().await;
        model.caught_up(generation).await.unwrap();
        let carts = stored(&model.collections(generation)).await;
        assert_eq!(carts, folded(&self.events().await));
        carts
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.sequencer.cancel();
    }
}

/// Runs the live generation.
pub fn run(model: &ReadModel, projector: &(impl Projector + Clone + 'static)) -> Running {
    let (model, projector) = (model.clone(), projector.clone());
    let stop = CancellationToken::new();
    let until = stop.clone();
    Running { stop, task: tokio::spawn(async move { model.run(&projector, until).await }) }
}

/// Runs one generation.
pub fn run_generation(
    model: &ReadModel,
    generation: Generation,
    projector: &(impl Projector + Clone + 'static),
) -> Running {
    let (model, projector) = (model.clone(), projector.clone());
    let stop = CancellationToken::new();
    let until = stop.clone();
    let running = async move { model.run_generation(generation, &projector, until).await };
    Running { stop, task: tokio::spawn(running) }
}

/// Rebuilds, and follows the feed with the new generation.
pub fn run_rebuild(model: &ReadModel, projector: &(impl Projector + Clone + 'static)) -> Running {
    let (model, projector) = (model.clone(), projector.clone());
    let stop = CancellationToken::new();
    let until = stop.clone();
    Running { stop, task: tokio::spawn(async move { model.rebuild(&projector, until).await }) }
}

/// Waits until a read model exists; returns its live generation.
pub async fn live(model: &ReadModel) -> Generation {
    eventually("the read model", async || model.status().await.is_ok()).await;
    model.status().await.unwrap().live
}
