//! Our own stores.

use futures_util::TryStreamExt;
use postrider::context::{Context, ContextSettings};
use postrider::events::{Append, AppendError, Appended, EventStore, EventStream, LoadError, Range};
use postrider::names::{AggregateId, AggregateName};

use crate::events::Events;
use crate::support::outbox::TestOutbox;

/// A context of the test's own.
pub fn context(outbox: &TestOutbox) -> Context {
    Context::new(outbox.hand.client().clone(), ContextSettings::new(&outbox.database))
}

pub fn events(outbox: &TestOutbox) -> EventStore {
    EventStore::new(context(outbox), outbox.hand.clone())
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
