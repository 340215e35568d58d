//! The schema of events, snapshots and prepare keys, and the guard of their databases, on a real
//! MongoDB.

mod commands;
mod guard;
mod layout;
mod positions;
mod privileges;
mod ready;
mod start;

use std::collections::BTreeMap;

use crate::support::cleanup::Cleanup;
use crate::support::outbox::mongodb_uri;
use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::{Client, Database};
use postrider::context::{Context, ContextSettings};
use postrider::store::connect;

/// Empty databases of one test, which are removed when it passes.
struct Home {
    client: Client,
    /// The first one, and separate ones for events, snapshots and prepare keys.
    name: String,
    _cleanup: Cleanup,
}

impl Home {
    async fn new() -> Self {
        let client = connect::client(&mongodb_uri()).await.unwrap();
        let name = format!("test_{}", uuid::Uuid::new_v4().simple());
        let databases =
            ["", "_e", "_s", "_p"].map(|kind| client.database(&format!("{name}{kind}")));
        let _cleanup = Cleanup::new(async move || {
            for database in databases {
                database.drop().await.unwrap();
            }
        });
        Self { client, name, _cleanup }
    }

    /// Settings with one database.
    fn together(&self) -> ContextSettings {
        ContextSettings::new(&self.name)
    }

    /// Settings with a database for each kind.
    fn apart(&self) -> ContextSettings {
        ContextSettings {
            events: format!("{}_e", self.name),
            snapshots: format!("{}_s", self.name),
            prepare: format!("{}_p", self.name),
            ..self.together()
        }
    }

    fn context(&self, settings: ContextSettings) -> Context {
        Context::new(self.client.clone(), settings)
    }

    /// The layout of each database, by the suffix of its name.
    async fn layout(&self) -> BTreeMap<String, Layout> {
        let mut all = BTreeMap::new();
        for ending in ["", "_e", "_s", "_p"] {
            let layout = Layout::of(&self.client.database(&format!("{}{ending}", self.name))).await;
            all.insert(ending.to_owned(), layout);
        }
        all
    }

    fn database(&self) -> Database {
        self.client.database(&self.name)
    }

    async fn collection_names(&self) -> Vec<String> {
        let mut names = self.database().list_collection_names().await.unwrap();
        names.sort();
        names
    }

    /// Runs a command of another program.
    async fn run(&self, command: Document) {
        self.database().run_command(command).await.unwrap();
    }

    /// The names of a collection's indexes, in the order of their creation.
    async fn indexes(&self, collection: &str) -> Vec<String> {
        let collection = self.database().collection::<Document>(collection);
        collection.list_index_names().await.unwrap()
    }
}

/// Collections with their options, their indexes in the order of their creation, and the context of
/// the database.
#[derive(Debug, PartialEq)]
struct Layout {
    collections: BTreeMap<String, (Document, Vec<Document>)>,
    guard: Option<Document>,
}

impl Layout {
    async fn of(database: &Database) -> Self {
        let mut collections = BTreeMap::new();
        for name in database.list_collection_names().await.unwrap() {
            let listing = doc! { "listCollections": 1, "filter": { "name": &name }, "cursor": {} };
            let mut listed = list(database, listing).await;
            let options = listed.remove(0).get_document("options").unwrap().clone();
            let listing = doc! { "listIndexes": &name, "cursor": {} };
            collections.insert(name, (options, list(database, listing).await));
        }
        let metadata = database.collection("wow_database_metadata");
        Self { collections, guard: metadata.find_one(doc! {}).await.unwrap() }
    }
}

async fn list(database: &Database, command: Document) -> Vec<Document> {
    let cursor = database.run_cursor_command(command).await.unwrap();
    cursor.try_collect().await.unwrap()
}
