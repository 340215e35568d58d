//! Where the outbox lives: one database, fixed names behind a prefix.

use bson::Document;
use bson::raw::RawDocumentBuf;
use mongodb::{Client, Collection, Database};
use postrider_store::{StoreError, connect};

/// Handles on the outbox's collections, each of which reads and writes on the primary.
#[derive(Clone, Debug)]
pub struct Collections {
    client: Client,
    database: Database,
    prefix: String,
    standalone: bool,
    sharded: bool,
}

/// The base names; a configured prefix goes in front of these and of no others.
pub mod names {
    /// The records themselves.
    pub const RECORDS: &str = "outbox_records";
    /// Running instances.
    pub const INSTANCES: &str = "outbox_instances";
    /// Who owns which partition.
    pub const ASSIGNMENTS: &str = "outbox_partition_assignments";
    /// Fleet-wide switches.
    pub const CONTROL: &str = "outbox_control";
    /// All of them, in the order in which they are created.
    pub const ALL: [&str; 4] = [RECORDS, INSTANCES, ASSIGNMENTS, CONTROL];
}

impl Collections {
    /// The collections of `database` whose names begin with `prefix`.
    pub fn new(client: Client, database: &str, prefix: &str) -> Self {
        let database = client.database(database);
        Self { client, database, prefix: prefix.to_owned(), standalone: false, sharded: false }
    }

    /// The same on a sharded cluster, whose change streams wait for idle shards.
    pub fn sharded(self) -> Self {
        Self { sharded: true, ..self }
    }

    /// Whether events may come seconds late.
    pub fn is_sharded(&self) -> bool {
        self.sharded
    }

    /// The same on a server without replication, which has no snapshot reads.
    pub fn standalone(self) -> Self {
        Self { standalone: true, ..self }
    }

    /// The same by another client, with connections of its own.
    pub fn through(&self, client: Client) -> Self {
        let database = client.database(self.database.name());
        Self { client, database, ..self.clone() }
    }

    /// Whether there are no snapshot reads.
    pub fn is_standalone(&self) -> bool {
        self.standalone
    }

    /// The client, for sessions.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The outbox's database.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// The full name of a collection.
    pub fn name(&self, base: &str) -> String {
        format!("{}{base}", self.prefix)
    }

    /// `outbox_records`, undecoded: one broken record must not fail its neighbours.
    pub fn records(&self) -> Collection<RawDocumentBuf> {
        self.collection(names::RECORDS).clone_with_type()
    }

    /// Waits for a read of the records by `index`; where there is no such index the error says so.
    pub async fn by_index<T>(
        &self,
        index: &str,
        read: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        read.await.map_err(|error| error.of_index(&self.name(names::RECORDS), index))
    }

    /// Any of them: what a majority has is read, and a majority acknowledges what is written.
    pub fn collection(&self, base: &str) -> Collection<Document> {
        connect::collection(&self.database, &self.name(base))
    }
}
