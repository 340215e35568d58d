//! The context of a test, in a database that is removed when the test passes.

use bson::{Bson, DateTime, Document, doc};
use mongodb::Collection;
use postrider::context::{CollectionKind, Context, ContextSettings};
use postrider::names::{AggregateId, AggregateName};
use postrider::prepare::{PrepareKey, PrepareName};
use postrider::snapshot::SnapshotStore;
use postrider::store::ServerClock;

use crate::support::cleanup::Cleanup;
use crate::support::outbox::{TestOutbox, mongodb_uri};

/// The name of the prepare keys of all tests.
pub const KEYS: &str = "username";

pub struct Home {
    pub context: Context,
    _cleanup: Cleanup,
}

impl Home {
    pub async fn new() -> Self {
        let client = postrider::store::connect::client(&mongodb_uri()).await.unwrap();
        let database = format!("test_{}", uuid::Uuid::new_v4().simple());
        let context = Context::new(client, ContextSettings::new(&database));
        let database = context.database(CollectionKind::Prepare);
        let _cleanup = Cleanup::new(async move || database.drop().await.unwrap());
        Self { context, _cleanup }
    }

    /// The same in the database of an outbox, whose proxies and recorders the context uses too.
    pub fn within(outbox: &TestOutbox, client: &mongodb::Client) -> Self {
        let context = Context::new(client.clone(), ContextSettings::new(&outbox.database));
        Self { context, _cleanup: Cleanup::none() }
    }

    pub fn keys(&self) -> PrepareKey {
        PrepareKey::new(self.context.clone(), PrepareName::new(KEYS).unwrap())
    }

    pub fn snapshots(&self) -> SnapshotStore {
        SnapshotStore::new(self.context.clone())
    }

    /// The stored prepare keys.
    pub fn stored(&self) -> Collection<Document> {
        self.context.collection(CollectionKind::Prepare, KEYS)
    }

    /// One stored prepare key.
    pub async fn stored_key(&self, key: &str) -> Option<Document> {
        self.stored().find_one(doc! { "_id": key }).await.unwrap()
    }

    /// Stores a key that has expired long ago.
    pub async fn store_expired(&self, key: &str, value: impl Into<Bson>) -> Document {
        let expired = doc! {
            "_id": key, "value": value.into(), "ttlAt": DateTime::from_millis(1_000),
        };
        let stored = self.context.ready(CollectionKind::Prepare, KEYS).await.unwrap();
        stored.insert_one(&expired).await.unwrap();
        expired
    }

    /// The server's time.
    pub async fn now(&self) -> DateTime {
        ServerClock::asked(&self.context.database(CollectionKind::Prepare)).await.unwrap()
    }
}

pub fn order() -> AggregateName {
    AggregateName::new("order").unwrap()
}

pub fn id(text: &str) -> AggregateId {
    AggregateId::new(text).unwrap()
}
