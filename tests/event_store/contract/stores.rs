//! What is asked of the stores under test.

use bson::Bson;
use postrider::events::{Append, AppendError, Appended, EventStream, LoadError, Range};
use postrider::names::{AggregateId, AggregateName};
use postrider::prepare::{PrepareError, Prepared, Ttl, UsingError};
use postrider::snapshot::{Saved, Snapshot, SnapshotError};

/// An event store under test.
pub trait Events {
    async fn append(&self, append: Append) -> Result<Appended, AppendError>;

    async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        range: &Range,
    ) -> Result<Vec<EventStream>, LoadError>;

    async fn single(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        version: i64,
        tenant: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError>;

    async fn last(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError>;

    async fn exists_request_id(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        request: &str,
    ) -> Result<bool, LoadError>;

    async fn aggregate_ids(
        &self,
        name: &AggregateName,
        after: Option<&str>,
        limit: u32,
        tenant: Option<&str>,
    ) -> Result<Vec<String>, LoadError>;
}

/// A snapshot store under test.
pub trait Snapshots {
    async fn save(&self, name: &AggregateName, snapshot: Snapshot) -> Result<Saved, SnapshotError>;

    async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<Snapshot>, SnapshotError>;

    async fn version(&self, name: &AggregateName, id: &AggregateId) -> Result<i64, SnapshotError>;
}

/// Prepare keys of one name under test.
pub trait Keys {
    async fn prepare(&self, key: &str, value: &Bson, ttl: Ttl) -> Result<bool, PrepareError>;

    async fn get(&self, key: &str) -> Result<Option<Prepared>, PrepareError>;

    async fn get_value(&self, key: &str) -> Result<Option<Bson>, PrepareError>;

    async fn reprepare(
        &self,
        key: &str,
        old: Option<&Bson>,
        new: &Bson,
        ttl: Ttl,
    ) -> Result<bool, PrepareError>;

    async fn rollback(&self, key: &str) -> Result<bool, PrepareError>;

    async fn rollback_value(&self, key: &str, value: &Bson) -> Result<bool, PrepareError>;

    async fn move_key(
        &self,
        old: (&str, &Bson),
        new: (&str, &Bson),
        ttl: Ttl,
    ) -> Result<bool, PrepareError>;

    async fn using_prepared(
        &self,
        key: &str,
        value: &Bson,
        ttl: Ttl,
        body: impl Future<Output = Result<u32, String>>,
    ) -> Result<Option<u32>, UsingError<String, u32>>;
}
