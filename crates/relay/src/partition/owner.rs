//! Finds the owner of a partition and its reported state, for operators.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, DateTime, Document, doc};
use postrider_outbox::collections::{Collections, names};
use postrider_outbox::ids::RecordId;
use postrider_outbox::undecoded::decode_valid_fields;
use postrider_store::dates::rfc3339;
use postrider_store::{StoreError, limits, within};

use crate::partition::fields;
use crate::partition::fleet::{ASSIGNED, Fleet, NONE, RELAY_SWITCH};
use crate::partition::set::partition_set;

/// An instance as its document describes it.
#[derive(Clone, Debug)]
pub struct PartitionOwner {
    /// Its id.
    pub id: String,
    /// Its host.
    pub host: Option<String>,
    /// When it was last seen, by the server's clock.
    pub last_heartbeat: Option<DateTime>,
    /// The state that its relay reports; `None` for an older version.
    pub relay: Option<Document>,
}

/// Which instance delivers the records of a partition.
#[derive(Clone, Debug)]
pub enum Ownership {
    /// None: all instances are paused.
    Paused,
    /// None: no live instance relays.
    NoInstance,
    /// No instance owns it yet.
    Unowned,
    /// Its owner is gone, or its heartbeat is stale.
    Stale(PartitionOwner),
    /// A live instance.
    Owned(PartitionOwner),
}

impl PartitionOwner {
    fn of(instance: &Document) -> Self {
        Self {
            id: text(instance.get("_id")),
            host: instance.get_str(fields::HOSTNAME).ok().map(ToOwned::to_owned),
            last_heartbeat: instance.get_datetime(fields::LAST_HEARTBEAT).ok().copied(),
            relay: instance.get_document(fields::RELAY).ok().cloned(),
        }
    }

    /// Returns a description with id and host.
    pub fn name(&self) -> String {
        match &self.host {
            Some(host) => format!("instance {} on {host}", self.id),
            None => format!("instance {}", self.id),
        }
    }

    /// Returns the time of its last heartbeat as text.
    pub fn as_of(&self) -> String {
        let at = self.last_heartbeat.and_then(rfc3339);
        at.map(|at| format!("as of {at}")).unwrap_or_default()
    }
}

fn text(id: Option<&Bson>) -> String {
    RecordId::from(id.cloned().unwrap_or(Bson::Null)).to_string()
}

/// Finds the instance that delivers the records of `partition`.
pub async fn of_partition(
    collections: &Collections,
    partition: u8,
    stale_after: Duration,
) -> Result<Ownership, StoreError> {
    let instances = Fleet::new(collections.clone(), stale_after).instances().await?;
    let takes =
        |instance: &Document| instance.get_str(fields::PARTITIONS).unwrap_or(ASSIGNED).to_owned();
    let is_stale = |instance: &Document| instance.get_bool("stale").unwrap_or(true);
    let living = || instances.iter().filter(|&instance| !is_stale(instance));
    if !living().any(|instance| takes(instance) != NONE) {
        return Ok(Ownership::NoInstance);
    }
    let switch = one(collections, names::CONTROL, "read the pause", RELAY_SWITCH.into()).await?;
    if switch.is_some_and(|switch| switch.get_bool("paused").unwrap_or(false)) {
        return Ok(Ownership::Paused);
    }
    let has_it = |instance: &&Document| {
        partition_set(&takes(instance)).is_ok_and(|fixed| fixed.contains(&partition))
    };
    if let Some(instance) = living().find(has_it) {
        return Ok(Ownership::Owned(PartitionOwner::of(instance)));
    }
    let id = i32::from(partition).into();
    let found = one(collections, names::ASSIGNMENTS, "read an assignment", id).await?;
    let owner = found.and_then(|assignment| assignment.get("instanceId").cloned());
    let Some(owner) = owner.filter(|owner| *owner != Bson::Null) else {
        return Ok(Ownership::Unowned);
    };
    let instance = instances.iter().find(|instance| instance.get("_id") == Some(&owner));
    Ok(match instance {
        Some(instance) if is_stale(instance) => Ownership::Stale(PartitionOwner::of(instance)),
        Some(instance) => Ownership::Owned(PartitionOwner::of(instance)),
        None => {
            let id = text(Some(&owner));
            Ownership::Stale(PartitionOwner { id, host: None, last_heartbeat: None, relay: None })
        }
    })
}

/// Reads the document with this `_id`, as far as it can be decoded.
async fn one(
    collections: &Collections,
    base: &str,
    action: &'static str,
    id: Bson,
) -> Result<Option<Document>, StoreError> {
    let documents = collections.collection(base).clone_with_type::<RawDocumentBuf>();
    let finding = documents.find_one(doc! { "_id": id });
    let found = within(action, limits::BATCH_TIMEOUT, finding.into_future()).await?;
    Ok(found.map(|found| decode_valid_fields(&found).0))
}
