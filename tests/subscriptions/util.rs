//! Subscriptions of a test.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use postrider::events::feed::{Feed, FeedFilter};
use postrider::events::subscriptions::{
    NewSubscription, PulledEvents, Pusher, SubscriptionDelivery, SubscriptionError, Subscriptions,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::feed::{Running, TestFeed, another};
use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::{TestOutbox, eventually};

/// A feed whose sequencer runs, and its subscriptions.
pub struct TestSubscriptions {
    pub test: TestFeed,
    pub subscriptions: Subscriptions,
    sequencer: Running,
}

impl TestSubscriptions {
    pub async fn new() -> Self {
        let test = TestFeed::new().await;
        let sequencer = test.sequence();
        let subscriptions = Subscriptions::new(test.store.context(), test.feed.clone());
        let exists = async || matches!(test.feed.state().await, Ok(Some(_)));
        eventually("the feed", exists).await;
        Self { test, subscriptions, sequencer }
    }

    /// Appends one event to each of these aggregates of a name: their positions are in this order.
    pub async fn append(&self, name: &str, ids: &[&str], request: &str) {
        let head = async || self.test.feed.state().await.unwrap().unwrap().head;
        for id in ids {
            let before = head().await;
            self.test.append(name, id, request, 1).await;
            eventually("the position", || async { head().await > before }).await;
        }
    }

    pub async fn create(&self, new: &NewSubscription) {
        self.subscriptions.create(new).await.unwrap();
    }

    pub async fn position(&self, name: &str) -> i64 {
        self.subscriptions.get(name).await.unwrap().position
    }

    /// Waits until a subscription has reached a position.
    pub async fn until_position(&self, name: &str, position: i64) {
        let what = format!("{name} at {position}");
        eventually(&what, || async { self.position(name).await >= position }).await;
    }

    /// Runs a pusher of this process.
    pub fn push(&self) -> RunningPusher {
        RunningPusher::start(&self.test.outbox, self.test.feed.clone(), &self.test)
    }

    /// Runs a pusher of another process.
    pub fn push_elsewhere(&self) -> RunningPusher {
        let (store, feed) = another(&self.test.outbox, self.test.outbox.admin.client().clone());
        let other = TestOther { context: store.context().clone(), feed };
        RunningPusher::of(Pusher::new(
            &other.context,
            other.feed,
            self.test.outbox.admin.clone(),
            None,
        ))
    }

    /// Runs a pusher of another process, whose commands are recorded.
    pub async fn push_recorded(&self) -> (RunningPusher, CommandRecorder) {
        let recorder = CommandRecorder::on(&self.test.outbox).await;
        let client = recorder.collections.client().clone();
        let (store, feed) = another(&self.test.outbox, client);
        let pusher = Pusher::new(store.context(), feed, recorder.collections.clone(), None);
        (RunningPusher::of(pusher), recorder)
    }

    /// The records of a subscription in the order of their insertion.
    pub async fn copies(&self, name: &str) -> Vec<Document> {
        copies(&self.test.outbox, name).await
    }

    /// The pending records of a subscription.
    pub async fn pending(&self, name: &str) -> u64 {
        self.test.outbox.count(doc! { "headers.subscription": name, "status": "pending" }).await
    }

    /// Reads without waiting.
    pub async fn pull(&self, name: &str, member: &str) -> Result<PulledEvents, SubscriptionError> {
        self.subscriptions.pull(name, member, 10).await
    }

    /// Changes the document of a subscription.
    pub async fn set(&self, name: &str, fields: Document) {
        let database = self.test.outbox.client.database(&self.test.outbox.database);
        let collection = database.collection::<Document>("postrider_subscriptions");
        let set = doc! { "$set": fields };
        let done = collection.update_one(doc! { "_id": name }, set).await.unwrap();
        assert_eq!(done.matched_count, 1);
    }

    pub async fn stop(self) {
        self.sequencer.stop().await;
    }
}

/// The records of a subscription in the order of their insertion.
pub async fn copies(outbox: &TestOutbox, name: &str) -> Vec<Document> {
    let records = outbox.records();
    let found = records.find(doc! { "headers.subscription": name }).sort(doc! { "seq": 1 });
    found.await.unwrap().try_collect().await.unwrap()
}

struct TestOther {
    context: postrider::context::Context,
    feed: Feed,
}

/// A pusher that runs.
pub struct RunningPusher {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl RunningPusher {
    fn start(outbox: &TestOutbox, feed: Feed, test: &TestFeed) -> Self {
        Self::of(Pusher::new(test.store.context(), feed, outbox.admin.clone(), None))
    }

    fn of(pusher: Pusher) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(pusher.run(stop.clone()));
        Self { stop, task }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// Whether a command has read events of `order` to copy them: not one event, as to measure the lag.
pub fn is_page(command: &Command) -> bool {
    let batch = command.answer.get_document("cursor").and_then(|it| it.get_array("firstBatch"));
    // A read of one event serves the lag.
    let is_of_many = |stage: &Bson| {
        let limit = stage.as_document().and_then(|stage| stage.get_i64("$limit").ok());
        limit.is_some_and(|limit| limit > 1)
    };
    command.sent.get_str("aggregate").is_ok_and(|name| name == "order_event_stream")
        && command.sent.get_array("pipeline").is_ok_and(|stages| stages.iter().any(is_of_many))
        && batch.is_ok_and(|batch| !batch.is_empty())
}

/// Waits until a transaction has ended.
pub async fn until_transaction(recorder: &CommandRecorder) {
    let ended = || async {
        ["commitTransaction", "abortTransaction"]
            .iter()
            .any(|name| !recorder.commands(name).is_empty())
    };
    eventually("the end of a transaction", ended).await;
}

pub fn push(name: &str, max_pending: i64) -> NewSubscription {
    let delivery = SubscriptionDelivery::Push { destination: "copies".into(), max_pending };
    NewSubscription { name: name.into(), delivery, filter: FeedFilter::default(), after: 0 }
}

pub fn pull(name: &str, lease: Duration) -> NewSubscription {
    let delivery = SubscriptionDelivery::Pull { lease };
    NewSubscription { name: name.into(), delivery, filter: FeedFilter::default(), after: 0 }
}

/// Only of these aggregate names.
pub fn of(new: NewSubscription, aggregates: &[&str]) -> NewSubscription {
    let aggregates = aggregates.iter().map(|name| (*name).to_owned()).collect();
    NewSubscription { filter: FeedFilter { aggregates, ..FeedFilter::default() }, ..new }
}

/// The feed position of each record.
pub fn positions(copies: &[Document]) -> Vec<i64> {
    let header = |copy: &Document| copy.get_document("headers").unwrap().clone();
    copies.iter().map(|copy| header(copy).get_i64("feed-position").unwrap()).collect()
}

/// Asserts that each position was copied once, and that each key is in the order of positions.
pub fn assert_once_in_order(copies: &[Document], expected: impl Iterator<Item = i64>) {
    let mut sorted = positions(copies);
    sorted.sort_unstable();
    assert_eq!(sorted, expected.collect::<Vec<_>>());
    let mut by_key: BTreeMap<String, Vec<i64>> = BTreeMap::new();
    for (copy, position) in copies.iter().zip(positions(copies)) {
        by_key.entry(copy.get_str("key").unwrap().to_owned()).or_default().push(position);
    }
    for (key, positions) in by_key {
        assert!(positions.is_sorted(), "{key}: {positions:?}");
    }
}
