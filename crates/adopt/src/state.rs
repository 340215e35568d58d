//! The document of the bridge: who copies, in which epoch, and the resume token of its change stream.
//!
//! `{prefix}outbox_control` has one document for each source, `{_id: "adopt:<database>.<collection>", owner,
//! ownedUntil, epoch, session, start, token, mapping, copy}`. Each transaction of the bridge changes it in its epoch,
//! so an owner that was replaced copies nothing. `session` is that of the owner's transactions: a successor ends the
//! transaction that a dead owner has open, since every write to the document would wait for its end. `copy` names the
//! last transaction that committed.

use std::time::Duration;

use bson::{Bson, Document, Timestamp, doc};
use mongodb::options::{ReturnDocument, UpdateModifications};
use mongodb::{ClientSession, Collection};
use postrider_outbox::collections::{Collections, names};
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};

use crate::mapping::Mapping;

/// How long an owner may be silent before another process replaces it.
pub const LEASE: Duration = Duration::from_secs(10);

/// What the document says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BridgeState {
    /// Counts the owners.
    pub epoch: i64,
    /// The resume token; absent while everything must be scanned.
    pub token: Option<Bson>,
    /// Whether the token was stored with another mapping.
    pub is_other_mapping: bool,
    /// The start of the change stream of documents without a status, while there is no resume token.
    pub start: Option<Timestamp>,
}

/// The document of one source.
#[derive(Clone, Debug)]
pub struct BridgeStore {
    collection: Collection<Document>,
    id: String,
    /// Names the mapping: stored with the resume token.
    mapping: String,
}

impl BridgeStore {
    /// The document of this source.
    pub fn new(outbox: &Collections, mapping: &Mapping) -> Self {
        let collection = outbox.collection(names::CONTROL);
        let id = format!("adopt:{}", mapping.source());
        Self { collection, id, mapping: mapping.fingerprint.clone() }
    }

    /// The session of another owner whose lease is over: its transaction may still be open.
    pub(crate) async fn expired_session(
        &self,
        owner: &str,
    ) -> Result<Option<Document>, StoreError> {
        let expired = doc! {
            "_id": &self.id,
            "owner": { "$ne": owner },
            "$expr": { "$lte": ["$ownedUntil", "$$NOW"] },
        };
        let finding = self.collection.find_one(expired);
        let found = within("read the state of the bridge", limits::BATCH_TIMEOUT, finding).await?;
        Ok(found.and_then(|found| found.get_document("session").ok().cloned()))
    }

    /// Acquires or renews the right to copy, in this session; `None` while another process has it.
    pub(crate) async fn acquire(
        &self,
        owner: &str,
        session: &Document,
    ) -> Result<Option<BridgeState>, StoreError> {
        let free = doc! {
            "_id": &self.id,
            "$or": [
                { "owner": owner },
                { "ownedUntil": null },
                { "$expr": { "$lte": ["$ownedUntil", "$$NOW"] } },
            ],
        };
        let is_own = doc! { "$eq": ["$owner", owner] };
        let update = vec![doc! { "$set": {
            "epoch": { "$cond": [is_own, "$epoch", { "$add": ["$epoch", 1_i64] }] },
            "owner": owner,
            "ownedUntil": until(),
            "session": { "$literal": session },
        } }];
        let acquiring = self
            .collection
            .find_one_and_update(free, update)
            .return_document(ReturnDocument::After);
        let found =
            within("acquire the lease of the bridge", limits::BATCH_TIMEOUT, acquiring).await?;
        Ok(found.map(|found| BridgeState {
            epoch: found.get_i64("epoch").unwrap_or_default(),
            token: found.get("token").filter(|token| **token != Bson::Null).cloned(),
            is_other_mapping: found.get_str("mapping").ok() != Some(self.mapping.as_str()),
            start: found.get_timestamp("start").ok(),
        }))
    }

    pub(crate) async fn exists(&self) -> Result<bool, StoreError> {
        let finding = self.collection.find_one(doc! { "_id": &self.id });
        Ok(within("read the state of the bridge", limits::BATCH_TIMEOUT, finding).await?.is_some())
    }

    /// Creates the document, unless it exists.
    pub(crate) async fn create(&self) -> Result<(), StoreError> {
        let inserting = self.collection.insert_one(doc! { "_id": &self.id, "epoch": 0_i64 });
        match within("create the state of the bridge", limits::BATCH_TIMEOUT, inserting).await {
            Err(error) if error.code() == Some(DUPLICATE_KEY) => Ok(()),
            other => other.map(drop),
        }
    }

    /// Renews the lease, in the transaction of a batch, and stores the resume token behind it and the id of this copy;
    /// `false` if another process copies.
    pub(crate) async fn advance(
        &self,
        session: &mut ClientSession,
        owner: &str,
        epoch: i64,
        copy: &str,
        token: Option<&Bson>,
    ) -> Result<bool, StoreError> {
        let ours = self.of_owner(owner, epoch);
        let mut update = self.advanced(token);
        update.push(doc! { "$set": { "copy": copy } });
        let updating = self.collection.update_one(ours, update).session(session);
        let updated = within("advance the bridge", limits::BATCH_TIMEOUT, updating).await?;
        Ok(updated.matched_count == 1)
    }

    /// The same outside of a transaction.
    pub(crate) async fn renew(
        &self,
        owner: &str,
        epoch: i64,
        token: Option<&Bson>,
    ) -> Result<bool, StoreError> {
        self.change(owner, epoch, "renew the lease of the bridge", self.advanced(token)).await
    }

    /// Whether the transaction of this copy was the last one that committed. Renews the lease: what a majority
    /// acknowledges is behind the transaction.
    pub(crate) async fn is_copied(
        &self,
        owner: &str,
        epoch: i64,
        copy: &str,
    ) -> Result<bool, StoreError> {
        let mut ours = self.of_owner(owner, epoch);
        ours.insert("copy", copy);
        let updating = self.collection.update_one(ours, self.advanced(None));
        let updated = within("read the outcome of a copy", limits::BATCH_TIMEOUT, updating).await?;
        Ok(updated.matched_count == 1)
    }

    /// Changes the document outside of a transaction; `false` if another process copies.
    async fn change(
        &self,
        owner: &str,
        epoch: i64,
        action: &'static str,
        update: impl Into<UpdateModifications>,
    ) -> Result<bool, StoreError> {
        let updating = self.collection.update_one(self.of_owner(owner, epoch), update);
        Ok(within(action, limits::BATCH_TIMEOUT, updating).await?.matched_count == 1)
    }

    fn of_owner(&self, owner: &str, epoch: i64) -> Document {
        doc! { "_id": &self.id, "owner": owner, "epoch": epoch }
    }

    fn advanced(&self, token: Option<&Bson>) -> Vec<Document> {
        let mut set = doc! { "ownedUntil": until() };
        if let Some(token) = token {
            set.insert("token", doc! { "$literal": token });
            set.insert("mapping", &self.mapping);
        }
        vec![doc! { "$set": set }]
    }

    /// Stores the start of the change stream before it is opened: a process that dies before its first resume token
    /// is stored is continued from there.
    pub(crate) async fn begin(
        &self,
        owner: &str,
        epoch: i64,
        start: Timestamp,
    ) -> Result<bool, StoreError> {
        self.change(owner, epoch, "begin the bridge", doc! { "$set": { "start": start } }).await
    }

    /// Removes the resume token: the next owner scans.
    pub(crate) async fn forget_resume_token(
        &self,
        owner: &str,
        epoch: i64,
    ) -> Result<bool, StoreError> {
        let forgotten = doc! { "$unset": { "token": "", "start": "" } };
        self.change(owner, epoch, "remove the resume token of the bridge", forgotten).await
    }

    /// Releases the right to copy, so that another process does not wait for the end of the lease. (`session` stays: a
    /// transaction whose end is unknown may be open in it.)
    pub(crate) async fn release(&self, owner: &str) -> Result<(), StoreError> {
        let ours = doc! { "_id": &self.id, "owner": owner };
        let update = doc! { "$unset": { "ownedUntil": "", "owner": "" } };
        let leaving = self.collection.update_one(ours, update);
        within("release the lease of the bridge", limits::BATCH_TIMEOUT, leaving).await.map(drop)
    }

    /// Whether a resume token is stored. (A start alone is that of a process that may have died within its scan.)
    pub(crate) async fn has_resume_point(&self) -> Result<bool, StoreError> {
        let known = doc! { "_id": &self.id, "token": { "$ne": null } };
        let finding = self.collection.find_one(known);
        Ok(within("read the state of the bridge", limits::BATCH_TIMEOUT, finding).await?.is_some())
    }
}

/// The end of a lease that begins now, by the server's clock.
fn until() -> Document {
    let millis = i64::try_from(LEASE.as_millis()).unwrap_or(i64::MAX);
    doc! { "$add": ["$$NOW", millis] }
}
