//! What a process must be allowed to do, asked before it begins.
//!
//! A privilege that is missing would otherwise show at the first record, and as an outage.
//! `explain` wants the privileges of the command that it explains, and does nothing.

use bson::{Document, doc};

use crate::outbox::collections::{Collections, names};
use crate::store::connect::primary;
use crate::store::{StoreError, limits, within};

/// Asks for what a heartbeat does.
///
/// # Errors
///
/// The refusal, which names what was tried; else those of the store.
pub async fn of_instance(collections: &Collections) -> Result<(), StoreError> {
    let instances = collections.name(names::INSTANCES);
    ask(collections, "write to outbox_instances", update(&instances, true)).await?;
    ask(collections, "delete from outbox_instances", delete(&instances)).await
}

/// Asks for what a relay does; `delete_done`: whether done records are deleted at once.
///
/// # Errors
///
/// As above.
pub async fn of_relay(collections: &Collections, delete_done: bool) -> Result<(), StoreError> {
    let records = collections.name(names::RECORDS);
    let find = doc! { "find": &records, "filter": { "_id": 0 } };
    ask(collections, "read outbox_records", find).await?;
    ask(collections, "update outbox_records", update(&records, false)).await?;
    if delete_done {
        ask(collections, "delete from outbox_records", delete(&records)).await?;
    }
    Ok(())
}

fn update(collection: &str, upsert: bool) -> Document {
    let change = doc! { "$set": { "lastHeartbeat": 0 } };
    doc! { "update": collection, "updates": [{ "q": { "_id": 0 }, "u": change, "upsert": upsert }] }
}

fn delete(collection: &str) -> Document {
    doc! { "delete": collection, "deletes": [{ "q": { "_id": 0 }, "limit": 1 }] }
}

async fn ask(
    collections: &Collections,
    action: &'static str,
    command: Document,
) -> Result<(), StoreError> {
    let explain = doc! { "explain": command, "verbosity": "queryPlanner" };
    let asking = collections.database().run_command(explain).selection_criteria(primary());
    within(action, limits::BATCH, asking.into_future()).await.map(drop)
}
