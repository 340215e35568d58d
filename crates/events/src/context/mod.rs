//! A bounded context: the databases in which its events, snapshots and prepare keys live.
//!
//! Each aggregate has collections of its own, made with their indexes before its first append:
//! the unique ones are what guards a version and a request, so that nothing is ever written into
//! a collection that may lack them. A database has one context at most: a document there says
//! which ([`Context::guard`]), written before anything else.

pub mod guard;
pub(crate) mod kind;
mod once;

use std::sync::Arc;

use bson::Document;
use mongodb::{Client, Collection, Database};
use postrider_store::connect;
use postrider_store::schema::{Applied, Difference, Layout, SchemaError};

pub use kind::{Kind, RequestIds};

use crate::context::guard::Guard;
use crate::context::once::Once;
use crate::schema::layout;

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

    /// The database of a kind.
    pub fn database(&self, kind: Kind) -> &str {
        match kind {
            Kind::Events => &self.events,
            Kind::Snapshots => &self.snapshots,
            Kind::Prepare => &self.prepare,
        }
    }

    /// Each database once, with the kinds that live there.
    pub fn databases(&self) -> Vec<(&str, Vec<Kind>)> {
        let mut databases: Vec<(&str, Vec<Kind>)> = Vec::new();
        for kind in Kind::ALL {
            let name = self.database(kind);
            match databases.iter_mut().find(|(other, _)| *other == name) {
                Some((_, kinds)) => kinds.push(kind),
                None => databases.push((name, vec![kind])),
            }
        }
        databases
    }
}

/// A bounded context on a deployment. Clones share what they know of the schema.
#[derive(Clone, Debug)]
pub struct Context {
    client: Client,
    settings: Arc<ContextSettings>,
    /// The collections that were found or made complete.
    ready: Arc<Once<(Kind, String)>>,
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
        self.client.database(self.settings.database(kind))
    }

    /// The collection of a kind called after `name`, there or not: what a majority has is read
    /// on the primary, and a majority acknowledges what is written, whatever the URI says.
    pub fn collection(&self, kind: Kind, name: &str) -> Collection<Document> {
        connect::collection(&self.database(kind), &kind.collection(name))
    }

    /// The same, once it is sure that the collection is there with its indexes, in a database of
    /// this context: for whoever writes.
    ///
    /// Asks once per collection and process: callers who come meanwhile share what it finds. A
    /// failure is told to these, and is not remembered.
    ///
    /// # Errors
    ///
    /// [`SchemaError::Foreign`] and the other ways in which a database is not for this context;
    /// [`SchemaError::Differs`] where something is missing that may not be made; else those of
    /// [`Layout::apply`].
    pub async fn ready(&self, kind: Kind, name: &str) -> Result<Collection<Document>, SchemaError> {
        let making = async {
            if self.settings.auto_init_schema {
                return self.apply(kind, name).await.map(drop);
            }
            let differences = self.verify(kind, name).await?;
            match differences.is_empty() {
                true => Ok(()),
                false => Err(differs(kind, name, &differences)),
            }
        };
        self.ready.once(&(kind, name.to_owned()), making).await?;
        Ok(self.collection(kind, name))
    }

    /// Whether that is sure already.
    pub(crate) fn is_ready(&self, kind: Kind, name: &str) -> bool {
        self.ready.is_done(&(kind, name.to_owned()))
    }

    /// Creates what is missing of a collection, for a command: `auto_init_schema` is not asked.
    /// The database is claimed for this context first, if it is nobody's.
    ///
    /// # Errors
    ///
    /// As [`ready`](Self::ready).
    pub async fn apply(&self, kind: Kind, name: &str) -> Result<Applied, SchemaError> {
        let claimed = self.guard_of(kind).claim().await?;
        let applied = self.layout(kind, name).apply().await?;
        Ok(Applied { claimed, ..applied })
    }

    /// Tells what differs in a collection, and whether the database is nobody's.
    ///
    /// # Errors
    ///
    /// Those of the store, and a database that is another's.
    pub async fn verify(&self, kind: Kind, name: &str) -> Result<Vec<Difference>, SchemaError> {
        let unclaimed = self.guard_of(kind).verify().await?;
        let differences = self.layout(kind, name).verify().await?;
        Ok(unclaimed.into_iter().chain(differences).collect())
    }

    /// Checks that none of its databases is another context's: for the start. One that is nobody's
    /// will be claimed before anything is made there.
    ///
    /// # Errors
    ///
    /// Those of the store, and a database that is another's.
    pub async fn guard(&self) -> Result<(), SchemaError> {
        for (name, kinds) in self.settings.databases() {
            self.guard_at(name, &kinds).verify().await?;
        }
        Ok(())
    }

    fn guard_of(&self, kind: Kind) -> Guard {
        let name = self.settings.database(kind);
        let kinds = Kind::ALL.into_iter().filter(|kind| self.settings.database(*kind) == name);
        self.guard_at(name, &kinds.collect::<Vec<_>>())
    }

    fn guard_at(&self, database: &str, kinds: &[Kind]) -> Guard {
        let settings: Vec<&str> = kinds.iter().map(|kind| kind.setting()).collect();
        Guard {
            database: database.to_owned(),
            metadata: connect::collection(&self.client.database(database), guard::COLLECTION),
            context: self.settings.name.clone(),
            elsewhere: settings.join(", "),
        }
    }

    fn layout(&self, kind: Kind, name: &str) -> Layout {
        layout(self.database(kind), kind, name, self.settings.request_ids)
    }
}

fn differs(kind: Kind, name: &str, differences: &[Difference]) -> SchemaError {
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let option = match kind {
        Kind::Events | Kind::Snapshots => "--aggregate",
        Kind::Prepare => "--prepare",
    };
    SchemaError::Differs { differences: lines.join("; "), target: format!("{option} {name}") }
}
