//! A bounded context: the databases in which its events, snapshots and prepare keys live.
//!
//! Each aggregate has collections of its own, made with their indexes before its first append:
//! the unique ones are what guards a version and a request, so that nothing is ever written into
//! a collection that may lack them.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use bson::{Document, doc};
use mongodb::options::{CollectionOptions, ReadConcern};
use mongodb::{Client, Collection, Database};

use crate::schema::SchemaError;
use crate::store::connect::{majority, primary};
use crate::store::{limits, within};

/// Within what a request id is unique.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestIds {
    /// Within an aggregate: the unique index begins with the shard key.
    #[default]
    Aggregate,
    /// Within all aggregates of a name: for collections that are not sharded.
    Global,
}

/// What a context is made from.
#[derive(Clone, Debug)]
pub struct ContextSettings {
    /// Its name: one per database.
    pub name: String,
    /// The database of the event streams.
    pub events: String,
    /// The database of the snapshots.
    pub snapshots: String,
    /// The database of the prepare keys.
    pub prepare: String,
    /// Within what a request id is unique.
    pub request_ids: RequestIds,
    /// Whether missing collections and indexes are made; else they must be there.
    pub auto_init_schema: bool,
}

impl ContextSettings {
    /// The context `default`, all of it in one database, made on demand.
    pub fn new(database: &str) -> Self {
        Self {
            name: "default".into(),
            events: database.to_owned(),
            snapshots: database.to_owned(),
            prepare: database.to_owned(),
            request_ids: RequestIds::default(),
            auto_init_schema: true,
        }
    }
}

/// A kind of collection that a context has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `{aggregateName}_event_stream`.
    Events,
    /// `{aggregateName}_snapshot`.
    Snapshots,
    /// `prepare_{name}`.
    Prepare,
}

impl Kind {
    /// The collection called after `name`.
    pub fn collection(self, name: &str) -> String {
        match self {
            Self::Events => format!("{name}_event_stream"),
            Self::Snapshots => format!("{name}_snapshot"),
            Self::Prepare => format!("prepare_{name}"),
        }
    }
}

/// A bounded context on a deployment. Clones share what they know of the schema.
#[derive(Clone, Debug)]
pub struct Context {
    client: Client,
    settings: Arc<ContextSettings>,
    /// The collections that were found or made complete.
    ready: Arc<Mutex<HashSet<(Kind, String)>>>,
}

impl Context {
    /// The context on this deployment; nothing is contacted yet.
    pub fn new(client: Client, settings: ContextSettings) -> Self {
        Self { client, settings: Arc::new(settings), ready: Arc::default() }
    }

    /// The client, for sessions.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What it was made from.
    pub fn settings(&self) -> &ContextSettings {
        &self.settings
    }

    /// The database of a kind.
    pub fn database(&self, kind: Kind) -> Database {
        self.client.database(match kind {
            Kind::Events => &self.settings.events,
            Kind::Snapshots => &self.settings.snapshots,
            Kind::Prepare => &self.settings.prepare,
        })
    }

    /// The collection of a kind called after `name`, there or not: what a majority has is read
    /// on the primary, and a majority acknowledges what is written, whatever the URI says.
    pub fn collection(&self, kind: Kind, name: &str) -> Collection<Document> {
        let options = CollectionOptions::builder()
            .selection_criteria(primary())
            .read_concern(ReadConcern::majority())
            .write_concern(majority())
            .build();
        self.database(kind).collection_with_options(&kind.collection(name), options)
    }

    /// The same, once it is sure that the collection is there with its indexes, in a database of
    /// this context: for whoever writes. Asks once per collection and process.
    ///
    /// # Errors
    ///
    /// Those of the schema.
    pub async fn ready(&self, kind: Kind, name: &str) -> Result<Collection<Document>, SchemaError> {
        let known = (kind, name.to_owned());
        let collection = self.collection(kind, name);
        if self.known().contains(&known) {
            return Ok(collection);
        }
        self.make(kind, name).await?;
        self.known().insert(known);
        Ok(collection)
    }

    /// Whether that is sure already.
    pub(crate) fn is_ready(&self, kind: Kind, name: &str) -> bool {
        self.known().contains(&(kind, name.to_owned()))
    }

    async fn make(&self, kind: Kind, name: &str) -> Result<(), SchemaError> {
        let indexes = match kind {
            Kind::Events => vec![
                doc! { "name": "aggregateId_hashed", "key": { "aggregateId": "hashed" } },
                doc! { "name": "aggregateId_1_version_1",
                "key": { "aggregateId": 1, "version": 1 }, "unique": true },
                match self.settings.request_ids {
                    RequestIds::Aggregate => doc! { "name": "aggregateId_1_requestId_1",
                    "key": { "aggregateId": 1, "requestId": 1 }, "unique": true },
                    RequestIds::Global => doc! { "name": "requestId_1",
                    "key": { "requestId": 1 }, "unique": true },
                },
                doc! { "name": "tenantId_hashed", "key": { "tenantId": "hashed" } },
                doc! { "name": "ownerId_hashed", "key": { "ownerId": "hashed" } },
            ],
            Kind::Snapshots => vec![
                doc! { "name": "tenantId_hashed", "key": { "tenantId": "hashed" } },
                doc! { "name": "ownerId_hashed", "key": { "ownerId": "hashed" } },
                doc! { "name": "_id_hashed", "key": { "_id": "hashed" } },
                doc! { "name": "deleted_hashed", "key": { "deleted": "hashed" } },
            ],
            Kind::Prepare => vec![
                doc! { "name": "ttlAt_1", "key": { "ttlAt": 1 }, "expireAfterSeconds": 0 },
                doc! { "name": "_id_hashed", "key": { "_id": "hashed" } },
            ],
        };
        let command = doc! {
            "createIndexes": kind.collection(name),
            "indexes": indexes,
            "writeConcern": { "w": "majority" },
        };
        let database = self.database(kind);
        let making = database.run_command(command).selection_criteria(primary());
        within("make the schema of an aggregate", limits::SCHEMA, making.into_future()).await?;
        Ok(())
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashSet<(Kind, String)>> {
        self.ready.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
