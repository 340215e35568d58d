//! Whether the relay of the old outbox still runs, and whether its collections are ours.

use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Client;
use postrider_settings::Violation;
use postrider_store::{StoreError, connect, limits, within};

use crate::mapping::Mapping;
use crate::presets::Preset;

/// The collection of namastack's instances.
const INSTANCES: &str = "outbox_instances";

/// How old the heartbeat of a live instance may be: twice namastack's `stale-instance-timeout`.
const FRESH: Duration = Duration::from_secs(60);

/// Why the bridge does not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OldRelayError {
    /// An instance of namastack lives.
    #[error(
        "the old relay: instance {instance} had a heartbeat within {FRESH:?}; stop all applications that use \
         namastack-outbox, since each of them delivers (docs/adopt.md)"
    )]
    Alive {
        /// Its id.
        instance: String,
    },
    /// Nothing says that it was stopped.
    #[error(
        "--old-relay-stopped: is not set, and nothing shows whether the old relay runs, so that both would send every \
         message; stop the old relay, then add the option"
    )]
    Unconfirmed,
}

/// Refuses a source that is a collection of this outbox, too.
///
/// # Errors
///
/// What is wrong, and what to do.
pub fn check_collections(mapping: &Mapping, outbox: &str, prefix: &str) -> Result<(), Violation> {
    let ours = postrider_outbox::collections::names::ALL.map(|name| format!("{prefix}{name}"));
    // (With namastack's own prefix, its records' collection says so.)
    if mapping.database == outbox && ours.contains(&mapping.collection) {
        let detail = format!(
            "{} is a collection of this outbox, too; set outbox.collection_prefix or outbox.database to others, with \
             which `postrider run` works too",
            mapping.source()
        );
        return Err(Violation { key: "adopt.collection".to_owned(), detail });
    }
    Ok(())
}

/// Refuses while the old relay lives, or where nothing shows whether it does.
///
/// # Errors
///
/// Of the read; the inner one is the refusal.
pub async fn check_stopped(
    client: &Client,
    mapping: &Mapping,
    is_stopped: bool,
) -> Result<Result<(), OldRelayError>, StoreError> {
    if mapping.preset == Preset::Namastack {
        // Also against an operator who believes that it was stopped.
        match last_instance(client, mapping).await? {
            Some((instance, true)) => return Ok(Err(OldRelayError::Alive { instance })),
            Some((_, false)) => return Ok(Ok(())),
            // It removes those that end.
            None => {}
        }
    }
    Ok(if is_stopped { Ok(()) } else { Err(OldRelayError::Unconfirmed) })
}

/// The instance with the last heartbeat, and whether it is alive.
async fn last_instance(
    client: &Client,
    mapping: &Mapping,
) -> Result<Option<(String, bool)>, StoreError> {
    let prefix = mapping.collection.strip_suffix("outbox_records").unwrap_or_default();
    let database = client.database(&mapping.database);
    let instances = connect::collection(&database, &format!("{prefix}{INSTANCES}"));
    let millis = i64::try_from(FRESH.as_millis()).unwrap_or(i64::MAX);
    let is_fresh = doc! { "$gt": ["$lastHeartbeat", { "$subtract": ["$$NOW", millis] }] };
    let finding = instances.find_one(doc! { "lastHeartbeat": { "$type": "date" } });
    let finding = finding.sort(doc! { "lastHeartbeat": -1 }).projection(doc! { "fresh": is_fresh });
    let found: Option<Document> =
        within("read the instances of the old relay", limits::BATCH_TIMEOUT, finding).await?;
    let instance = |found: Document| {
        let id = match found.get("_id") {
            Some(Bson::String(id)) => id.clone(),
            other => other.map(ToString::to_string).unwrap_or_default(),
        };
        (id, found.get_bool("fresh").unwrap_or_default())
    };
    Ok(found.map(instance))
}
