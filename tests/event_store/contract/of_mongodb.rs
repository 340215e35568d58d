//! Our own stores.

use bson::Bson;
use futures_util::TryStreamExt;
use postrider::context::{Context, ContextSettings};
use postrider::events::{Append, AppendError, Appended, EventStore, EventStream, LoadError, Range};
use postrider::names::{AggregateId, AggregateName};
use postrider::prepare::{PrepareError, PrepareKey, PrepareName, Prepared, Ttl, UsingError};
use postrider::snapshot::{Saved, Snapshot, SnapshotError, SnapshotStore};

use crate::contract::stores::{Events, Keys, Snapshots};
use crate::support::outbox::TestOutbox;

/// The context of a test.
pub fn context(outbox: &TestOutbox) -> Context {
    Context::new(outbox.admin.client().clone(), ContextSettings::new(&outbox.database))
}

pub fn events(outbox: &TestOutbox) -> EventStore {
    EventStore::new(context(outbox), outbox.admin.clone())
}

pub fn snapshots(outbox: &TestOutbox) -> SnapshotStore {
    SnapshotStore::new(context(outbox))
}

pub fn keys(outbox: &TestOutbox, name: &str) -> PrepareKey {
    PrepareKey::new(context(outbox), PrepareName::new(name).unwrap())
}

impl Events for EventStore {
    async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        self.append(append).await
    }

    async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        range: &Range,
    ) -> Result<Vec<EventStream>, LoadError> {
        self.load(name, id, range).await?.try_collect().await
    }

    async fn single(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        version: i64,
        tenant: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError> {
        self.single(name, id, version, tenant).await
    }

    async fn last(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError> {
        self.last(name, id, tenant).await
    }

    async fn exists_request_id(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        request: &str,
    ) -> Result<bool, LoadError> {
        self.exists_request_id(name, id, request).await
    }

    async fn aggregate_ids(
        &self,
        name: &AggregateName,
        after: Option<&str>,
        limit: u32,
        tenant: Option<&str>,
    ) -> Result<Vec<String>, LoadError> {
        self.aggregate_ids(name, after, limit, tenant).await
    }
}

impl Snapshots for SnapshotStore {
    async fn save(&self, name: &AggregateName, snapshot: Snapshot) -> Result<Saved, SnapshotError> {
        self.save(name, snapshot).await
    }

    async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        self.load(name, id, tenant).await
    }

    async fn version(&self, name: &AggregateName, id: &AggregateId) -> Result<i64, SnapshotError> {
        self.version(name, id).await
    }
}

impl Keys for PrepareKey {
    async fn prepare(&self, key: &str, value: &Bson, ttl: Ttl) -> Result<bool, PrepareError> {
        self.prepare(key, value, ttl).await
    }

    async fn get(&self, key: &str) -> Result<Option<Prepared>, PrepareError> {
        self.get(key).await
    }

    async fn get_value(&self, key: &str) -> Result<Option<Bson>, PrepareError> {
        self.get_value(key).await
    }

    async fn reprepare(
        &self,
        key: &str,
        old: Option<&Bson>,
        new: &Bson,
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        self.reprepare(key, old, new, ttl).await
    }

    async fn rollback(&self, key: &str) -> Result<bool, PrepareError> {
        self.rollback(key).await
    }

    async fn rollback_value(&self, key: &str, value: &Bson) -> Result<bool, PrepareError> {
        self.rollback_value(key, value).await
    }

    async fn move_key(
        &self,
        (old_key, old_value): (&str, &Bson),
        (new_key, new_value): (&str, &Bson),
        ttl: Ttl,
    ) -> Result<bool, PrepareError> {
        self.move_key(old_key, old_value, new_key, new_value, ttl).await
    }

    async fn using_prepared(
        &self,
        key: &str,
        value: &Bson,
        ttl: Ttl,
        body: impl Future<Output = Result<u32, String>>,
    ) -> Result<Option<u32>, UsingError<String, u32>> {
        self.using_prepared(key, value, ttl, body).await
    }
}
