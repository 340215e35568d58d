//! Collections of the outbox: one database, fixed names with a prefix.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::action::Action;
use mongodb::options::Hint;
use mongodb::{Client, Collection, Database};
use postrider_store::{StoreError, connect, limits, within};

use crate::fields::ID;

/// MongoDB's own index of `_id`.
pub(crate) const ID_INDEX: &str = "_id_";

/// Handles of the outbox's collections; all reads and writes use the primary.
#[derive(Clone, Debug)]
pub struct Collections {
    client: Client,
    database: Database,
    prefix: String,
    standalone: bool,
    sharded: bool,
}

/// Base names. The configured prefix precedes these and no others.
pub mod names {
    /// The records themselves.
    pub const RECORDS: &str = "outbox_records";
    /// Running instances.
    pub const INSTANCES: &str = "outbox_instances";
    /// Owners of partitions.
    pub const ASSIGNMENTS: &str = "outbox_partition_assignments";
    /// Switches of all instances.
    pub const CONTROL: &str = "outbox_control";
    /// All collections, in the order of their creation.
    pub const ALL: [&str; 4] = [RECORDS, INSTANCES, ASSIGNMENTS, CONTROL];
}

impl Collections {
    /// Creates handles of the collections of `database` whose names begin with `prefix`.
    pub fn new(client: Client, database: &str, prefix: &str) -> Self {
        let database = client.database(database);
        Self { client, database, prefix: prefix.to_owned(), standalone: false, sharded: false }
    }

    /// Marks the deployment as sharded: change streams wait for idle shards.
    pub fn sharded(self) -> Self {
        Self { sharded: true, ..self }
    }

    /// Returns whether change events may arrive seconds late.
    pub fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// Marks the server as standalone: it has no snapshot reads.
    pub fn standalone(self) -> Self {
        Self { standalone: true, ..self }
    }

    /// Returns handles that use another client and its connections.
    pub fn through(&self, client: Client) -> Self {
        let database = client.database(self.database.name());
        Self { client, database, ..self.clone() }
    }

    /// Returns whether the server lacks snapshot reads.
    pub fn is_standalone(&self) -> bool {
        self.standalone
    }

    /// Returns the client, for sessions.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the outbox's database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// Returns the full name of a collection.
    pub fn name(&self, base: &str) -> String {
        format!("{}{base}", self.prefix)
    }

    /// Returns `outbox_records`, undecoded: one invalid record must not fail the others. Reads are of
    /// the primary and of a majority.
    pub fn records(&self) -> Collection<RawDocumentBuf> {
        self.collection(names::RECORDS).clone_with_type()
    }

    /// Runs a read by `index`; the error names the index if it is missing.
    pub async fn by_index<T>(
        &self,
        index: &str,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        read.await.map_err(|error| error.of_index(&self.name(names::RECORDS), index))
    }

    /// Reads records.
    pub(crate) async fn find(&self, find: Find) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let Find { action, index, filter, fields, order, limit, timeout } = find;
        let records = self.records();
        let finding = records
            .find(filter)
            .projection(fields)
            .sort(order)
            .limit(i64::try_from(limit).unwrap_or(i64::MAX))
            .hint(Hint::Name(index.to_owned()));
        let reading = async { finding.await?.try_collect().await };
        self.by_index(index, within(action, timeout, reading)).await
    }

    /// Counts the records of an index that match, up to a limit if there is one.
    pub(crate) async fn count(
        &self,
        index: &str,
        filter: Document,
        limit: Option<u64>,
    ) -> Result<u64, StoreError> {
        let records = self.records();
        let counting = records
            .count_documents(filter)
            .optional(limit, |counting, limit| counting.limit(limit))
            .hint(Hint::Name(index.to_owned()));
        let counted = within("count records", limits::REPORT_TIMEOUT, counting);
        self.by_index(index, counted).await
    }

    /// Returns a collection with majority read and write concern.
    pub fn collection(&self, base: &str) -> Collection<Document> {
        connect::collection(&self.database, &self.name(base))
    }
}

/// A read of records by an index.
pub(crate) struct Find {
    pub(crate) action: &'static str,
    pub(crate) index: &'static str,
    pub(crate) filter: Document,
    /// The projection.
    pub(crate) fields: Document,
    pub(crate) order: Document,
    /// Maximum number of records; 0 for all.
    pub(crate) limit: usize,
    pub(crate) timeout: Duration,
}

impl Find {
    /// Reads all fields, in any order.
    pub(crate) fn whole(action: &'static str, index: &'static str, filter: Document) -> Self {
        let (fields, order) = (Document::new(), Document::new());
        Self { action, index, filter, fields, order, limit: 0, timeout: limits::BATCH_TIMEOUT }
    }

    /// Reads ids, in any order.
    pub(crate) fn ids(action: &'static str, index: &'static str, filter: Document) -> Self {
        Self { fields: doc! { ID: 1 }, ..Self::whole(action, index, filter) }
    }
}
