//! A bounded context: the databases of its events, snapshots and prepare keys.
//!
//! Each aggregate has collections of its own, created with their indexes before its first append:
//! unique indexes guard versions and requests, so nothing is written into a collection that may lack
//! them. A database has at most one context. A document names it ([`Context::guard`]), and is written
//! before anything else.

pub mod guard;
pub(crate) mod kind;
mod single_flight;

use std::sync::Arc;

use bson::{Document, doc};
use mongodb::{Client, Collection, Database};
use postrider_settings::Glob;
use postrider_store::connect;
use postrider_store::schema::{Applied, Difference, Layout, SchemaError};
use postrider_store::{limits, within};

pub use kind::{CollectionKind, RequestIds};

use crate::commits::CommitReports;
use crate::context::guard::DatabaseGuard;
use crate::context::single_flight::SingleFlight;
use crate::schema::{layout, position_layout};

/// The settings of a context.
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
    /// The scope in which a request id is unique.
    pub request_ids: RequestIds,
    /// Whether missing collections and indexes are created; else they must exist.
    pub auto_init_schema: bool,
    /// Whether there is a feed: each collection of event streams has an index of positions.
    pub feed: bool,
    /// The names of which collections may be created.
    pub names: Vec<Glob>,
}

impl ContextSettings {
    /// The context `default` in one database; collections are created on demand.
    pub fn new(database: &str) -> Self {
        Self {
            name: "default".into(),
            events: database.to_owned(),
            snapshots: database.to_owned(),
            prepare: database.to_owned(),
            request_ids: RequestIds::default(),
            auto_init_schema: true,
            feed: false,
            names: vec![Glob::new("*")],
        }
    }

    /// The database of a kind.
    pub fn database(&self, kind: CollectionKind) -> &str {
        match kind {
            CollectionKind::Events => &self.events,
            CollectionKind::Snapshots => &self.snapshots,
            CollectionKind::Prepare => &self.prepare,
        }
    }
}

/// A bounded context on a deployment. Clones share which collections are ready.
#[derive(Clone, Debug)]
pub struct Context {
    client: Client,
    settings: Arc<ContextSettings>,
    /// The collections that are known to be complete.
    ready: Arc<SingleFlight<(CollectionKind, String)>>,
    /// The collections that are known to have the index of positions.
    with_positions: Arc<SingleFlight<String>>,
    commits: Arc<CommitReports>,
}

impl Context {
    /// The context on this deployment. Sends nothing.
    pub fn new(client: Client, settings: ContextSettings) -> Self {
        Self {
            client,
            settings: Arc::new(settings),
            ready: Arc::default(),
            with_positions: Arc::default(),
            commits: Arc::default(),
        }
    }

    /// The same through another client, for reads that must not delay those of this one.
    pub fn through(&self, client: Client) -> Self {
        Self { client, ..self.clone() }
    }

    /// The client, for sessions.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The settings.
    pub fn settings(&self) -> &ContextSettings {
        &self.settings
    }

    /// The database of a kind.
    pub fn database(&self, kind: CollectionKind) -> Database {
        self.client.database(self.settings.database(kind))
    }

    /// The collection of a kind and name, which may not exist. Reads are of the primary and of a
    /// majority, writes are acknowledged by a majority, whatever the URI says.
    pub fn collection(&self, kind: CollectionKind, name: &str) -> Collection<Document> {
        connect::collection(&self.database(kind), &kind.collection(name))
    }

    /// The same for writers: the collection exists with its indexes, in a database of this context.
    ///
    /// Checks once per collection and process. Concurrent callers share the result; a failure is not
    /// remembered.
    ///
    /// # Errors
    ///
    /// [`SchemaError::Name`] for a name that may not be created; [`SchemaError::Foreign`] for a database of
    /// another context; [`SchemaError::Differs`] when something is missing that may not be created; else
    /// those of [`Layout::apply`].
    pub async fn ready(
        &self,
        kind: CollectionKind,
        name: &str,
    ) -> Result<Collection<Document>, SchemaError> {
        let making = async {
            self.permit(kind, name).await?;
            if self.settings.auto_init_schema {
                return self.apply_layout(kind, &self.guarding_layout(kind, name)).await.map(drop);
            }
            let differences = self.verify_layout(kind, &self.guarding_layout(kind, name)).await?;
            if differences.is_empty() { Ok(()) } else { Err(differs(kind, name, &differences)) }
        };
        self.ready.run(&(kind, name.to_owned()), making).await?;
        Ok(self.collection(kind, name))
    }

    /// Refuses a name that may not be created, unless its collection exists: then it costs nothing more.
    async fn permit(&self, kind: CollectionKind, name: &str) -> Result<(), SchemaError> {
        if self.settings.names.iter().any(|glob| glob.matches(name)) {
            return Ok(());
        }
        let (database, collection) = (self.database(kind), kind.collection(name));
        let listing = database.list_collection_names().filter(doc! { "name": &collection });
        let found = within("list collections", limits::BATCH_TIMEOUT, listing).await?;
        if found.is_empty() { Err(SchemaError::Name { name: name.to_owned() }) } else { Ok(()) }
    }

    /// Makes sure that a collection of event streams has the index of positions, which the feed needs and
    /// no append waits for.
    ///
    /// # Errors
    ///
    /// As [`ready`](Self::ready).
    pub(crate) async fn feed_ready(&self, name: &str) -> Result<(), SchemaError> {
        let making = async {
            let layout = position_layout(self.database(CollectionKind::Events), name);
            if self.settings.auto_init_schema {
                return layout.apply().await.map(drop);
            }
            let differences = layout.verify().await?;
            if differences.is_empty() {
                Ok(())
            } else {
                Err(differs(CollectionKind::Events, name, &differences))
            }
        };
        self.with_positions.run(&name.to_owned(), making).await
    }

    /// Forgets which collections have the index of positions: one may have been dropped.
    pub(crate) fn forget_feed_ready(&self) {
        self.with_positions.forget();
    }

    /// The difference of a collection of event streams from one with an index of positions, if any.
    ///
    /// # Errors
    ///
    /// [`SchemaError`].
    pub(crate) async fn verify_positions(
        &self,
        name: &str,
    ) -> Result<Option<Difference>, SchemaError> {
        let layout = position_layout(self.database(CollectionKind::Events), name);
        Ok(layout.verify().await?.into_iter().next())
    }

    /// What this process commits.
    pub(crate) fn commits(&self) -> &CommitReports {
        &self.commits
    }

    /// Whether the collection is known to be ready.
    pub(crate) fn is_ready(&self, kind: CollectionKind, name: &str) -> bool {
        self.ready.is_done(&(kind, name.to_owned()))
    }

    /// Creates what is missing of a collection, whatever `auto_init_schema` says. Claims the database for
    /// this context first, if it has none.
    ///
    /// # Errors
    ///
    /// As [`ready`](Self::ready).
    pub async fn apply(&self, kind: CollectionKind, name: &str) -> Result<Applied, SchemaError> {
        self.apply_layout(kind, &self.layout(kind, name)).await
    }

    async fn apply_layout(
        &self,
        kind: CollectionKind,
        layout: &Layout,
    ) -> Result<Applied, SchemaError> {
        let claimed = self.guard_of(self.settings.database(kind)).claim().await?;
        let applied = layout.apply().await?;
        Ok(Applied { claimed, ..applied })
    }

    /// Lists the differences of a collection, and whether its database has no context yet.
    ///
    /// # Errors
    ///
    /// [`SchemaError`], also for a database of another context.
    pub async fn verify(
        &self,
        kind: CollectionKind,
        name: &str,
    ) -> Result<Vec<Difference>, SchemaError> {
        self.verify_layout(kind, &self.layout(kind, name)).await
    }

    async fn verify_layout(
        &self,
        kind: CollectionKind,
        layout: &Layout,
    ) -> Result<Vec<Difference>, SchemaError> {
        let unclaimed = self.guard_of(self.settings.database(kind)).verify().await?;
        let differences = layout.verify().await?;
        Ok(unclaimed.into_iter().chain(differences).collect())
    }

    /// Checks at the start that no database of the context belongs to another one.
    ///
    /// # Errors
    ///
    /// [`SchemaError`], also for a database of another context.
    pub async fn guard(&self) -> Result<(), SchemaError> {
        let mut databases = CollectionKind::ALL.map(|kind| self.settings.database(kind)).to_vec();
        databases.dedup();
        for database in databases {
            self.guard_of(database).verify().await?;
        }
        Ok(())
    }

    fn guard_of(&self, database: &str) -> DatabaseGuard {
        let kinds = CollectionKind::ALL.into_iter();
        let kinds = kinds.filter(|kind| self.settings.database(*kind) == database);
        let settings: Vec<&str> = kinds.map(CollectionKind::setting).collect();
        DatabaseGuard {
            database: database.to_owned(),
            metadata: connect::collection(&self.client.database(database), guard::COLLECTION),
            context: self.settings.name.clone(),
            elsewhere: settings.join(", "),
        }
    }

    /// All of a collection.
    fn layout(&self, kind: CollectionKind, name: &str) -> Layout {
        layout(self.database(kind), kind, name, self.settings.request_ids, self.settings.feed)
    }

    /// What a writer waits for: without the index of positions, which may take long on a large collection.
    fn guarding_layout(&self, kind: CollectionKind, name: &str) -> Layout {
        layout(self.database(kind), kind, name, self.settings.request_ids, false)
    }
}

fn differs(kind: CollectionKind, name: &str, differences: &[Difference]) -> SchemaError {
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    let option = match kind {
        CollectionKind::Events | CollectionKind::Snapshots => "--aggregate",
        CollectionKind::Prepare => "--prepare",
    };
    SchemaError::Differs { differences: lines.join("; "), target: format!("{option} {name}") }
}
