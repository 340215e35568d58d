//! A feed of a test.

use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::{Client, Collection, Database};
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::feed::{Feed, FeedConfig, FeedEvent, FeedFilter};
use postrider::events::{Append, EventStore, NewEvent};
use postrider::names::{AggregateId, AggregateName};
use postrider::outbox::collections::Collections;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::checker::{judge, stored as stored_appends};
use crate::readers::{RecordingReader, end_all};
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually};

/// An event store with a feed, in a database of their own.
pub struct TestFeed {
    pub outbox: TestOutbox,
    pub store: EventStore,
    pub feed: Feed,
}

/// A sequencer that runs.
pub struct Running {
    pub stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

impl TestFeed {
    pub async fn new() -> Self {
        Self::on(TestOutbox::new().await)
    }

    /// The same in the database of this outbox.
    pub fn on(outbox: TestOutbox) -> Self {
        let (store, feed) = another(&outbox, outbox.admin.client().clone());
        Self { outbox, store, feed }
    }

    /// Runs a sequencer in the process of the store.
    pub fn sequence(&self) -> Running {
        sequence(&self.feed)
    }

    pub async fn append(&self, name: &str, id: &str, request: &str, events: usize) {
        self.store.append(append(name, id, request, events)).await.unwrap();
    }

    /// Waits until the head is at this position, and reads all events.
    pub async fn until(&self, head: i64) -> Vec<FeedEvent> {
        let waiting = self.feed.wait_beyond(head - 1);
        let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
        assert!(waited.is_ok(), "waited a minute for {head}; {:?}", self.feed.state().await);
        self.all().await
    }

    /// All events that have positions.
    pub async fn all(&self) -> Vec<FeedEvent> {
        all(&self.feed).await
    }

    /// The database of the event streams.
    pub fn database(&self) -> Database {
        self.outbox.client.database(&self.outbox.database)
    }

    /// The document of the feed.
    pub fn state(&self) -> Collection<Document> {
        self.database().collection("postrider_feed")
    }

    /// Another process behind a proxy.
    pub async fn behind_proxy(&self) -> (FaultProxy, Feed) {
        let (proxy, collections) = self.outbox.behind_proxy().await;
        let (_, feed) = another(&self.outbox, collections.client().clone());
        (proxy, feed)
    }

    /// Waits until every append has a position; then checks what is stored and what readers saw.
    pub async fn check(&self, readers: Vec<RecordingReader>) {
        let all_have_one = || async {
            let stored = stored_appends(&self.database()).await;
            stored.iter().all(|append| append.position.is_some())
        };
        eventually("the position of every append", all_have_one).await;
        let state = self.feed.state().await.unwrap().unwrap();
        let seen = end_all(readers, state.head).await;
        assert_eq!(judge(&stored_appends(&self.database()).await, state.head, &seen), []);
    }

    /// The stream documents of this name.
    pub fn streams(&self, name: &str) -> Collection<Document> {
        self.store.context().collection(CollectionKind::Events, name)
    }

    /// Inserts a stream document as another program does.
    pub async fn insert(&self, name: &str, id: &str, version: i64, more: Document) {
        self.streams(name).insert_one(stream(name, id, version, more)).await.unwrap();
    }
}

/// Another process: a store and a feed of the same context.
pub fn another(outbox: &TestOutbox, client: Client) -> (EventStore, Feed) {
    let settings = ContextSettings { feed: true, ..ContextSettings::new(&outbox.database) };
    let collections = Collections::new(client.clone(), &outbox.database, "");
    let context = Context::new(client, settings);
    (EventStore::new(context.clone(), collections), Feed::new(context))
}

/// Runs a sequencer.
pub fn sequence(feed: &Feed) -> Running {
    sequence_with(feed, FeedConfig::default())
}

pub fn sequence_with(feed: &Feed, settings: FeedConfig) -> Running {
    let stop = CancellationToken::new();
    let task = tokio::spawn(feed.sequencer(settings).run(stop.clone()));
    Running { stop, task }
}

pub async fn all(feed: &Feed) -> Vec<FeedEvent> {
    let (mut events, mut after) = (Vec::new(), 0);
    loop {
        let page = feed.page(None, after, &FeedFilter::default(), 100).await.unwrap();
        after = page.next;
        events.extend(page.items);
        if after >= page.head {
            return events;
        }
    }
}

pub fn append(name: &str, id: &str, request: &str, events: usize) -> Append {
    let (name, id) = (AggregateName::new(name).unwrap(), AggregateId::new(id).unwrap());
    let events = (0..events).map(|number| NewEvent::new(format!("E{number}"), doc! { "n": 1 }));
    Append::new(name, id, request, events.collect())
}

/// A stream document with one event, as another program writes it.
pub fn stream(name: &str, id: &str, version: i64, more: Document) -> Document {
    let mut document = doc! {
        "_id": format!("{name}/{id}/{version}"),
        "contextName": "default",
        "aggregateName": name,
        "aggregateId": id,
        "requestId": format!("{version}"),
        "version": version,
        "createTime": 1_000 + version,
        "header": {},
        "size": 1,
        "body": [{ "id": format!("{id}-{version}"), "name": "Imported", "body": {} }],
    };
    document.extend(more);
    document
}

/// Each event as `position name/id@version#index`.
pub fn lines(events: &[FeedEvent]) -> Vec<String> {
    let line = |event: &FeedEvent| {
        let FeedEvent { position, aggregate_name, aggregate_id, version, index, .. } = event;
        format!("{position} {aggregate_name}/{aggregate_id}@{version}#{index}")
    };
    events.iter().map(line).collect()
}

/// Each stored position of this name, with the aggregate and version.
pub async fn stored(feed: &TestFeed, name: &str) -> Vec<(String, i64, Option<i64>)> {
    let streams = feed.streams(name);
    let found = streams.find(doc! {}).sort(doc! { "aggregateId": 1, "version": 1 });
    let found: Vec<Document> = found.await.unwrap().try_collect().await.unwrap();
    let number = |value: &bson::Bson| value.as_i64().or_else(|| value.as_i32().map(i64::from));
    found
        .iter()
        .map(|it| {
            let id = it.get_str("aggregateId").unwrap().to_owned();
            (id, it.get("version").and_then(number).unwrap(), it.get("position").and_then(number))
        })
        .collect()
}
