//! Collections of the outbox: one database, fixed names with a prefix.

use bson::Document;
use bson::raw::RawDocumentBuf;
use mongodb::{Client, Collection, Database};
use postrider_store::{StoreError, connect};

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

    /// Returns `outbox_records`, undecoded: one invalid record must not fail the others.
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

    /// Returns a collection with majority read and write concern.
    pub fn collection(&self, base: &str) -> Collection<Document> {
        connect::collection(&self.database, &self.name(base))
    }
}
