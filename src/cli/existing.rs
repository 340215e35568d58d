//! The outbox that a command reads or changes: it must exist. A command with a wrong database would
//! otherwise report an empty outbox, or create a part of one.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bson::{Bson, Document, doc};
use mongodb::Database;
use tokio::time::timeout;

use crate::cli::global::{Failure, collections};
use crate::config::Resolved;
use crate::outbox::collections::{Collections, names};
use crate::store::StoreError;
use crate::store::connect::ask;

/// How long the search for other outboxes may take.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Other outboxes that are named at most.
const MAX_NAMED: usize = 10;

/// Returns the outbox of a configuration.
pub(super) async fn outbox(plan: &Resolved) -> Result<Collections, Failure> {
    let outbox = collections(plan).await?;
    check(&outbox).await?;
    Ok(outbox)
}

/// Checks that the collection of the records exists. Names the outboxes that do, if not.
pub(super) async fn check(outbox: &Collections) -> Result<(), Failure> {
    let records = outbox.name(names::RECORDS);
    let found = named(outbox.database(), records.as_str().into()).await;
    if !found.context("cannot find the outbox")?.is_empty() {
        return Ok(());
    }
    let searching = timeout(SEARCH_TIMEOUT, others(outbox));
    let others = match searching.await.ok().and_then(Result::ok).unwrap_or_default().as_slice() {
        [] => "no other outbox is visible to this user".to_owned(),
        found => {
            let shown: Vec<&str> = found.iter().take(MAX_NAMED).map(String::as_str).collect();
            let more = match found.len() - shown.len() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("there is one in {}{more}", shown.join(", "))
        }
    };
    Err(Failure::Failed(anyhow!(
        "there is no outbox in database {:?} (no collection {records}); {others}; correct mongo.uri, \
         outbox.database or outbox.collection_prefix, or create the outbox with `postrider schema apply`",
        outbox.database().name(),
    )))
}

/// Lists the outboxes that the user may see, in any database.
async fn others(outbox: &Collections) -> Result<Vec<String>, StoreError> {
    let admin = outbox.client().database("admin");
    let command = doc! { "listDatabases": 1, "nameOnly": true, "authorizedDatabases": true };
    let listed = ask(&admin, "list the databases", command).await?;
    let databases = documents(&listed, "databases").filter_map(|it| it.get_str("name").ok());
    let mut databases: Vec<&str> = databases.collect();
    // A wrong prefix in the right database first.
    databases.sort_by_key(|name| *name != outbox.database().name());
    let mut found = Vec::new();
    for database in databases {
        let filter = doc! { "$regex": format!("{}$", names::RECORDS) };
        let database = outbox.client().database(database);
        // Of some databases the user may not list the collections.
        for collection in named(&database, filter.into()).await.unwrap_or_default() {
            let prefix = collection.strip_suffix(names::RECORDS).unwrap_or_default();
            found.push(match prefix {
                "" => format!("database {:?}", database.name()),
                prefix => {
                    format!(
                        "database {:?} with outbox.collection_prefix = {prefix:?}",
                        database.name()
                    )
                }
            });
        }
    }
    Ok(found)
}

/// The names of a database's collections that match and that the user may see.
async fn named(database: &Database, name: Bson) -> Result<Vec<String>, StoreError> {
    let command = doc! {
        "listCollections": 1, "nameOnly": true, "authorizedCollections": true,
        "filter": { "name": name },
    };
    let listed = ask(database, "list the collections", command).await?;
    let Ok(cursor) = listed.get_document("cursor") else { return Ok(Vec::new()) };
    let names = documents(cursor, "firstBatch").filter_map(|entry| entry.get_str("name").ok());
    Ok(names.map(str::to_owned).collect())
}

fn documents<'a>(parent: &'a Document, field: &str) -> impl Iterator<Item = &'a Document> {
    parent.get_array(field).into_iter().flatten().filter_map(Bson::as_document)
}
