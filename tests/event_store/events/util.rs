//! The event store of a test.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::Client;
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::events::{Append, EventStore, EventStream, Expected, NewEvent, Range};
use postrider::names::{AggregateId, AggregateName};
use postrider::outbox::collections::Collections;

use crate::support::command_recorder::CommandRecorder;
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, mongodb_uri};
use crate::support::queue::host_of;

/// An event store and its outbox, in a database of their own.
pub struct TestStore {
    pub outbox: TestOutbox,
    pub store: EventStore,
}

impl TestStore {
    pub async fn new() -> Self {
        let outbox = TestOutbox::new().await;
        let store = another(&outbox, outbox.admin.client().clone());
        Self { outbox, store }
    }

    /// The stored documents of the aggregates of this name.
    pub async fn streams(&self, name: &str) -> Vec<Document> {
        let streams = self.store.context().collection(CollectionKind::Events, name);
        let found = streams.find(doc! {}).sort(doc! { "aggregateId": 1, "version": 1 });
        found.await.unwrap().try_collect().await.unwrap()
    }

    /// The records of a key, in their order.
    pub async fn records(&self, key: &str) -> Vec<Document> {
        let records = self.outbox.records();
        let found = records.find(doc! { "key": key }).sort(doc! { "seq": 1 }).await.unwrap();
        found.try_collect().await.unwrap()
    }
}

/// A store of the same aggregates, as in another process.
pub fn another(outbox: &TestOutbox, client: Client) -> EventStore {
    let settings = ContextSettings::new(&outbox.database);
    another_with(outbox, client, settings)
}

pub fn another_with(outbox: &TestOutbox, client: Client, settings: ContextSettings) -> EventStore {
    let collections = Collections::new(client.clone(), &outbox.database, "");
    EventStore::new(Context::new(client, settings), collections)
}

/// A store behind a proxy, with a recorder of its commands.
pub async fn behind_a_proxy(outbox: &TestOutbox) -> (FaultProxy, CommandRecorder, EventStore) {
    let host = host_of(&mongodb_uri());
    let proxy = FaultProxy::to(&host).await;
    let uri = mongodb_uri().replace(&host, &proxy.address().to_string());
    let sign = if uri.contains('?') { "&" } else { "/?" };
    let uri = format!("{uri}{sign}directConnection=true&serverSelectionTimeoutMS=2000");
    let recorder = CommandRecorder::at(&uri, outbox).await;
    let store = another(outbox, recorder.collections.client().clone());
    (proxy, recorder, store)
}

pub fn name() -> AggregateName {
    AggregateName::new("order").unwrap()
}

pub fn id(text: &str) -> AggregateId {
    AggregateId::new(text).unwrap()
}

pub fn event(name: &str) -> NewEvent {
    NewEvent::new(name, doc! { "is": name })
}

/// An append of one event, `E`.
pub fn append(aggregate: &str, request: &str) -> Append {
    Append::new(name(), id(aggregate), request, vec![event("E")])
}

pub fn exactly(aggregate: &str, request: &str, version: i64) -> Append {
    append(aggregate, request).expecting(Expected::Exact(version))
}

pub async fn load(store: &EventStore, aggregate: &str, range: Range) -> Vec<EventStream> {
    let found = store.load(&name(), &id(aggregate), &range).await.unwrap();
    found.try_collect().await.unwrap()
}

/// The stored versions of an aggregate.
pub async fn versions(store: &EventStore, aggregate: &str) -> Vec<i64> {
    load(store, aggregate, Range::default()).await.iter().map(|stream| stream.version).collect()
}
