//! A database for one test without a schema, and the ways to create the schema.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;
use postrider::outbox::collections::{Collections, names};
use postrider::schema::roles::SCHEMA;
use postrider::store::connect;

use super::cleanup::Cleanup;
use super::environment::{unique, variable};
use super::outbox::mongodb_uri;
use super::roles;

/// The variable with the path of mongosh.
pub const MONGOSH: &str = "POSTRIDER_TEST_MONGOSH";

/// The script that users run.
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schema/mongodb-setup.js");

/// The schema of a database: options by collection, and the records' indexes by name.
#[derive(Debug, PartialEq)]
pub struct Layout {
    pub options: BTreeMap<String, Document>,
    pub indexes: BTreeMap<String, Document>,
}

/// An empty database and the collections that belong there. It is removed when the test passes.
pub struct BareDatabase {
    pub name: String,
    /// The URI of the server's administrator.
    uri: String,
    /// For the creation of the schema: the administrator's, or those of a user with that role only.
    pub collections: Collections,
    admin: Collections,
    _cleanup: Cleanup,
}

impl BareDatabase {
    pub async fn new(prefix: &str) -> Self {
        let (uri, name) = (mongodb_uri(), unique("test_"));
        let client = connect::client(&uri).await.unwrap();
        let admin = Collections::new(client.clone(), &name, prefix);
        let database = client.database(&name);
        let _cleanup = Cleanup::new(async move || database.drop().await.unwrap());
        Self { name, uri, collections: admin.clone(), admin, _cleanup }
    }

    /// The same on the server with access control, for a user with the schema role only.
    pub async fn restricted(prefix: &str) -> Self {
        let (uri, name) = (roles::admin_uri(), unique("test_"));
        let client = connect::client(&uri).await.unwrap();
        let admin = Collections::new(client.clone(), &name, prefix);
        roles::make(&client, &name, prefix, Duration::MAX).await;
        let user = connect::client(&roles::uri_of(&SCHEMA, &name)).await.unwrap();
        let database = client.database(&name);
        let _cleanup = Cleanup::new(async move || {
            roles::forget(&database).await;
            database.drop().await.unwrap();
        });
        Self { collections: Collections::new(user, &name, prefix), name, uri, admin, _cleanup }
    }

    /// The records, decoded.
    pub fn records(&self) -> Collection<Document> {
        self.admin.records().clone_with_type()
    }

    /// Runs any command in the database.
    pub async fn run(&self, command: Document) -> Document {
        self.admin.database().run_command(command).await.unwrap()
    }

    /// Creates an index, as another program would.
    pub async fn create_index(&self, index: Document) {
        let records = self.admin.name(names::RECORDS);
        self.run(doc! { "createIndexes": records, "indexes": [index] }).await;
    }

    /// The current schema.
    pub async fn layout(&self) -> Layout {
        let mut options = BTreeMap::new();
        for mut entry in self.list(doc! { "listCollections": 1, "cursor": {} }).await {
            let name = entry.get_str("name").unwrap().to_owned();
            let Some(Bson::Document(found)) = entry.remove("options") else { panic!("{entry}") };
            options.insert(name, found);
        }
        Layout { options, indexes: self.indexes().await }
    }

    /// The collections that exist.
    pub async fn collection_names(&self) -> Vec<String> {
        self.admin.database().list_collection_names().await.unwrap()
    }

    /// The records' indexes by name.
    pub async fn indexes(&self) -> BTreeMap<String, Document> {
        let records = self.admin.name(names::RECORDS);
        let listed = self.list(doc! { "listIndexes": records, "cursor": {} }).await;
        listed.into_iter().map(|index| (index.get_str("name").unwrap().into(), index)).collect()
    }

    /// The seconds after which the TTL index deletes.
    pub async fn expiry(&self) -> i64 {
        let indexes = self.indexes().await;
        match indexes["done_ttl_idx"].get("expireAfterSeconds") {
            Some(Bson::Int32(seconds)) => i64::from(*seconds),
            Some(Bson::Int64(seconds)) => *seconds,
            other => panic!("{other:?}"),
        }
    }

    async fn list(&self, command: Document) -> Vec<Document> {
        let cursor = self.admin.database().run_cursor_command(command).await.unwrap();
        cursor.try_collect().await.unwrap()
    }

    /// Runs the script of the repository with these variables.
    pub async fn mongosh(&self, environment: &[(&str, &str)]) -> Output {
        self.mongosh_file(Path::new(SCRIPT), environment).await
    }

    /// Runs any script with these variables.
    pub async fn mongosh_file(&self, script: &Path, environment: &[(&str, &str)]) -> Output {
        mongosh(&self.uri, &self.name, script, environment).await
    }

    /// The same, where it must succeed; what it printed.
    pub async fn mongosh_ok(&self, environment: &[(&str, &str)]) -> String {
        let output = self.mongosh(environment).await;
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same, where it must fail; its error output.
    pub async fn mongosh_err(&self, environment: &[(&str, &str)]) -> String {
        let output = self.mongosh(environment).await;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// The variables that the scripts read.
const SCRIPT_VARIABLES: [&str; 13] = [
    "OUTBOX_PREFIX",
    "OUTBOX_RETENTION",
    "OUTBOX_VALIDATOR",
    "OUTBOX_CHANGE_STREAM",
    "AGGREGATES",
    "PREPARE_KEYS",
    "EVENTS_ENABLED",
    "EVENTS_CONTEXT",
    "EVENTS_REQUEST_ID_UNIQUE",
    "FEED_ENABLED",
    "EVENTS_DATABASE",
    "SNAPSHOTS_DATABASE",
    "PREPARE_DATABASE",
];

/// A command without the script's variables in its environment.
fn command_of(program: &str) -> std::process::Command {
    let mut command = std::process::Command::new(program);
    for name in SCRIPT_VARIABLES {
        command.env_remove(name);
    }
    command
}

/// Runs a script in a database of the server at this URI, which names none.
pub async fn mongosh(
    uri: &str,
    database: &str,
    script: &Path,
    environment: &[(&str, &str)],
) -> Output {
    let mongosh = variable(MONGOSH);
    let (server, query) = uri.split_once('?').unwrap_or((uri, ""));
    let uri = format!("{}/{database}?{query}", server.trim_end_matches('/'));
    let mut command = command_of(&mongosh);
    command.arg("--quiet").arg(uri).arg(script).envs(environment.iter().copied());
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}
