//! The outbox that a command reads or changes: it must exist. A command with a wrong database would
//! otherwise report an empty outbox, or create a part of one.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bson::{Bson, doc};
use mongodb::Database;
use tokio::time::timeout;

use crate::cli::global::{Failure, collections};
use crate::config::Resolved;
use crate::outbox::collections::{Collections, names};
use crate::store::{StoreError, limits, within};

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
    let listing = outbox.client().list_database_names().authorized_databases(true);
    let mut databases = within("list the databases", limits::BATCH_TIMEOUT, listing).await?;
    // A wrong prefix in the right database first.
    databases.sort_by_key(|name| *name != outbox.database().name());
    let mut found = Vec::new();
    for database in databases {
        let filter = doc! { "$regex": format!("{}$", names::RECORDS) };
        let database = outbox.client().database(&database);
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
    let listing = database.list_collection_names().authorized_collections(true);
    within("list the collections", limits::BATCH_TIMEOUT, listing.filter(doc! { "name": name }))
        .await
}
