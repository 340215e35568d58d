//! Reads the instances and assignments from MongoDB, and changes them by conditional writes.
//!
//! One command reads everything with read concern `majority`; the server's clock decides what is stale.
//! A change of owner is one update that matches the `epoch` that was read, and raises it: of several
//! instances that claim a partition one succeeds. An instance learns the outcome from its next read,
//! never from the reply.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, DateTime, Document, doc};
use futures_util::TryStreamExt;
use postrider_outbox::collections::{Collections, names as collections};
use postrider_outbox::fields::ID;
use postrider_outbox::ids::InstanceId;
use postrider_outbox::undecoded::{RawId, RawWriter, decode_lossy, decode_valid_fields};
use postrider_store::text::{MAX_NAME_CHARS, bounded};
use postrider_store::write::{self, AckLevel};
use postrider_store::{DUPLICATE_KEY, StoreError, limits, within};
use tracing::debug;

use crate::partition::fields;
use crate::partition::fingerprint::Fingerprint;
use crate::partition::names::{self, NameEntry};
use crate::partition::plan::{Move, plan};

/// `_id` of the switches of the relay, in `outbox_control`.
pub const RELAY_SWITCH: &str = "relay";

/// In an instance's document: it gets its partitions by assignment.
pub const ASSIGNED: &str = "assigned";
/// In an instance's document: it relays nothing.
pub const NONE: &str = "none";

/// A live instance: its heartbeat is fresh.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveInstance {
    /// Its id.
    pub id: InstanceId,
    /// Whether it is stopping.
    pub draining: bool,
    /// When it started, by the server's clock.
    pub started_at: Option<DateTime>,
    /// The settings in which instances must agree, if they can be read.
    pub fingerprint: Option<Fingerprint>,
    /// Whether it gets its partitions by assignment.
    pub assigned: bool,
    /// Whether it relays at all.
    pub relays: bool,
    /// Whether it waits for partitions that others have.
    pub wants_partitions: bool,
    /// The id under which it leases.
    pub lease_owner: InstanceId,
}

/// The assignment of a partition, as read.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    /// The owner, live or not.
    pub owner: Option<InstanceId>,
    /// Whether it names an owner that can't be read.
    pub is_unreadable: bool,
    /// The epoch as it was read, byte by byte, for the condition of a write; null if there is none.
    epoch: RawId,
}

/// A document with fields that cannot be read; defaults replace them.
///
/// An instance with an unreadable `_id` owns nothing and counts as stale. One with an unreadable
/// `lastHeartbeat` may be alive: like a stopping instance it gets no partitions, and others request and
/// later take those that it owns. One with a fresh heartbeat is alive, whatever else is unreadable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unreadable {
    /// Its collection, with the prefix.
    pub collection: String,
    /// Its `_id`, in the form of [`RawId::text`].
    pub id: String,
    /// The fields.
    pub fields: Vec<String>,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { collection, id, remedy, .. } = self;
        let (id, fields) = (bounded(id, MAX_NAME_CHARS), self.fields.join(", "));
        let fields = bounded(&fields, MAX_NAME_CHARS);
        write!(f, "{collection}: _id = {id}: {fields}: cannot be read; {remedy}")
    }
}

#[cfg(test)]
impl Assignment {
    pub(crate) fn of(owner: InstanceId) -> Self {
        let epoch = RawId::from(&Bson::Int64(1));
        Self { owner: Some(owner), is_unreadable: false, epoch }
    }

    pub(crate) fn unreadable() -> Self {
        let epoch = RawId::from(&Bson::Int64(1));
        Self { owner: None, is_unreadable: true, epoch }
    }
}

/// The result of one read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetView {
    /// The live instances, by id.
    pub members: BTreeMap<InstanceId, LiveInstance>,
    /// Whether there are documents with stale heartbeats.
    pub some_stale: bool,
    /// Assignments by partition; a missing one was never made.
    pub assignments: BTreeMap<u8, Assignment>,
    /// Whether the fleet is paused.
    pub paused: bool,
    /// The holder of each name.
    pub names: BTreeMap<String, NameEntry>,
    /// The documents with unreadable fields.
    pub unreadable: Vec<Unreadable>,
}

impl FleetView {
    /// Returns the fingerprint of the instance that has run longest: it applies to all.
    pub fn fingerprint(&self) -> Option<&Fingerprint> {
        let relaying = self.members.values().filter(|member| member.relays);
        let fingerprinted = relaying.filter(|member| member.fingerprint.is_some());
        // An instance without a start time was written by other software: it comes last.
        let first = fingerprinted.min_by_key(|member| {
            (member.started_at.map_or(i64::MAX, DateTime::timestamp_millis), member.id)
        });
        first?.fingerprint.as_ref()
    }

    /// Returns the fingerprint of the other instances if it differs from ours.
    pub fn differs(&self, ours: &Fingerprint) -> Option<&Fingerprint> {
        self.fingerprint().filter(|fleet| *fleet != ours)
    }

    /// Returns the instances that share the partitions.
    pub fn sharing(&self) -> Vec<InstanceId> {
        let fleet = self.fingerprint();
        let agrees = |member: &LiveInstance| match (&member.fingerprint, fleet) {
            (Some(own), Some(fleet)) => own == fleet,
            _ => true,
        };
        let sharing = self.members.values().filter(|member| {
            member.assigned && member.relays && !member.draining && agrees(member)
        });
        sharing.map(|member| member.id).collect()
    }

    /// Returns whether this partition's owner cannot be read.
    pub fn is_unreadable(&self, partition: u8) -> bool {
        let assignment = self.assignments.get(&partition);
        assignment.is_some_and(|assignment| assignment.is_unreadable)
    }

    /// Returns the owner ids of the live instances.
    pub fn lease_owners(&self) -> BTreeSet<InstanceId> {
        self.members.values().map(|member| member.lease_owner).collect()
    }

    /// Returns an old name whose holder has no document, if there is one.
    pub fn unused_name(&self) -> Option<(&str, InstanceId)> {
        let is_unused =
            |entry: &NameEntry| entry.is_old && !self.members.contains_key(&entry.holder);
        let unused = self.names.iter().find(|(_, entry)| !self.some_stale && is_unused(entry));
        unused.map(|(name, entry)| (name.as_str(), entry.holder))
    }

    /// Returns the live owners by partition.
    pub fn owners(&self) -> BTreeMap<u8, InstanceId> {
        let owners = self.assignments.iter().filter_map(|(partition, assignment)| {
            let owner = assignment.owner.filter(|owner| self.members.contains_key(owner))?;
            Some((*partition, owner))
        });
        owners.collect()
    }

    /// Returns the partitions of one instance, in order.
    pub fn owned_by(&self, id: InstanceId) -> Vec<u8> {
        let owned = self.assignments.iter().filter(|(_, held)| held.owner == Some(id));
        owned.map(|(partition, _)| *partition).collect()
    }

    /// Plans the moves that balance the partitions.
    pub fn moves(&self) -> Vec<Move> {
        plan(&self.sharing(), &self.owners())
    }

    /// Returns how many partitions no live instance owns.
    pub fn unassigned(&self) -> usize {
        256 - self.owners().len()
    }
}

/// Access to the documents of instances and assignments.
#[derive(Clone, Debug)]
pub struct Fleet {
    collections: Collections,
    stale_after: Duration,
    limit: Duration,
}

impl Fleet {
    /// Creates the access; a heartbeat is stale after `stale_after`.
    pub fn new(collections: Collections, stale_after: Duration) -> Self {
        // A later reply may be outdated.
        let limit = (stale_after / 4).max(Duration::from_secs(1));
        Self { collections, stale_after, limit }
    }

    /// Reads everything.
    pub async fn view(&self) -> Result<FleetView, StoreError> {
        // The state that a relay reports is for operators, and larger than the rest.
        let control = doc! { KIND: SWITCH, names::IS_OLD: names::is_old() };
        let instance = doc! { KIND: INSTANCE, FRESH: self.is_fresh(), fields::RELAY: "$$REMOVE" };
        let pipeline = [
            doc! { "$set": { KIND: ASSIGNMENT } },
            self.also(collections::INSTANCES, doc! { "$set": instance }),
            self.also(collections::CONTROL, doc! { "$set": control }),
        ];
        let documents = self.read(collections::ASSIGNMENTS, pipeline).await?;
        let mut view = FleetView::default();
        for raw in &documents {
            let (document, mut lost) = decode_valid_fields(raw);
            let base = match document.get_str(KIND) {
                Ok(ASSIGNMENT) => {
                    view.note_assignment(raw, &document, &mut lost);
                    collections::ASSIGNMENTS
                }
                Ok(INSTANCE) => {
                    view.note_instance(&document, &mut lost);
                    collections::INSTANCES
                }
                _ => {
                    view.note_switch(&document, &mut lost);
                    collections::CONTROL
                }
            };
            if !lost.is_empty() {
                view.unreadable.push(self.unreadable(base, raw, lost));
            }
        }
        view.unreadable.sort();
        Ok(view)
    }

    /// Assigns partitions to `owner`, or to none, each if its assignment has not changed since the read.
    /// The next read shows the outcome.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; some assignments may be written.
    pub async fn assign(
        &self,
        partitions: &[u8],
        view: &FleetView,
        owner: Option<InstanceId>,
    ) -> Result<(), StoreError> {
        if partitions.is_empty() {
            return Ok(());
        }
        let new_owner = owner.map_or(Bson::Null, Bson::from);
        let statement = |partition: &u8| {
            let known = view.assignments.get(partition);
            let from = known.and_then(|assignment| assignment.owner);
            debug!(
                partition,
                from = from.map(tracing::field::display),
                to = owner.map(tracing::field::display),
                "assigning a partition"
            );
            let null = RawId::from(&Bson::Null);
            let epoch = known.map_or(&null, |assignment| &assignment.epoch);
            let q = RawWriter::default().fields(&doc! { ID: i32::from(*partition) });
            let q = q.equal(EPOCH, epoch).finish();
            // A numeric epoch is raised; any other restarts at 1.
            let counted =
                doc! { "$convert": { "input": "$epoch", "to": "long", "onError": 0_i64 } };
            let raised = doc! { "$cond": [
                { "$isNumber": "$epoch" }, { "$add": [counted, 1_i64] }, 1_i64,
            ] };
            let change = doc! {
                "u": [{ "$set": { OWNER: &new_owner, EPOCH: raised, "updatedAt": "$$NOW" } }],
                // Of several concurrent inserts one succeeds; the others fail on the `_id`.
                "upsert": known.is_none(),
            };
            RawWriter::default().document("q", &q).fields(&change).finish()
        };
        let statements: Vec<RawDocumentBuf> = partitions.iter().map(statement).collect();
        let command = RawWriter::default()
            .fields(&doc! { "update": self.collections.name(collections::ASSIGNMENTS) })
            .documents("updates", &statements)
            .fields(&write::options(AckLevel::Majority));
        let action = "assign partitions";
        let written = write::send(self.collections.database(), action, command.finish()).await?;
        // A concurrent insert by another instance is not a failure.
        match written.failed.iter().find(|(_, code)| *code != DUPLICATE_KEY) {
            Some((_, code)) => Err(StoreError::Refused { action, code: *code }),
            None => Ok(()),
        }
    }

    /// Removes the documents with stale heartbeats, but none with an unreadable heartbeat.
    pub async fn forget_stale(&self) -> Result<(), StoreError> {
        let instances = self.collections.collection(collections::INSTANCES);
        let readable = doc! { "$in": [{ "$type": "$lastHeartbeat" }, ["date", "missing"]] };
        let stale = doc! { "$expr": { "$and": [readable, { "$not": self.is_fresh() }] } };
        let forgetting = instances.delete_many(stale).into_future();
        within("remove stale instances", self.limit, forgetting).await.map(|_| ())
    }

    /// Returns the collections.
    pub fn collections(&self) -> &Collections {
        &self.collections
    }

    /// Reads the instances' documents with `stale` and `partitionsOwned`, and with `invalid` for fields
    /// that cannot be decoded.
    pub async fn instances(&self) -> Result<Vec<Document>, StoreError> {
        let owned = doc! { "$lookup": {
            "from": self.collections.name(collections::ASSIGNMENTS),
            "localField": "_id",
            "foreignField": "instanceId",
            "as": "partitionsOwned",
        } };
        let added = doc! { "$set": {
            "stale": { "$not": self.is_fresh() },
            "partitionsOwned": { "$size": "$partitionsOwned" },
        } };
        let order = doc! { "$sort": { fields::STARTED_AT: 1, "_id": 1 } };
        let found = self.read(collections::INSTANCES, [owned, added, order]).await?;
        Ok(found.iter().map(|document| shown(document)).collect())
    }

    /// Reads the assignments with the `hostname` of the instance, and with `invalid` for fields that
    /// cannot be decoded.
    pub async fn partitions(&self) -> Result<Vec<Document>, StoreError> {
        let instance = doc! { "$lookup": {
            "from": self.collections.name(collections::INSTANCES),
            "localField": "instanceId",
            "foreignField": "_id",
            "as": fields::HOSTNAME,
        } };
        let hostname = doc! { "$first": format!("${0}.{0}", fields::HOSTNAME) };
        let added = doc! { "$set": { fields::HOSTNAME: { "$ifNull": [hostname, Bson::Null] } } };
        let order = doc! { "$sort": { "_id": 1 } };
        let found = self.read(collections::ASSIGNMENTS, [instance, added, order]).await?;
        Ok(found.iter().map(|document| shown(document)).collect())
    }

    /// Pauses or resumes all instances, until the next call; restarts do not change it.
    pub async fn pause(&self, paused: bool) -> Result<(), StoreError> {
        let switches = self.collections.collection(collections::CONTROL);
        let update = vec![doc! { "$set": { PAUSED: paused, "updatedAt": "$$NOW" } }];
        let pausing = switches.update_one(doc! { "_id": RELAY_SWITCH }, update).upsert(true);
        within("change the pause", limits::BATCH_TIMEOUT, pausing.into_future()).await.map(|_| ())
    }

    async fn read<const N: usize>(
        &self,
        base: &str,
        pipeline: [Document; N],
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let collection = self.collections.collection(base);
        let reading = async {
            let reading = collection.aggregate(pipeline).batch_size(BATCH_SIZE);
            reading.with_type::<RawDocumentBuf>().await?.try_collect().await
        };
        within("read the instances", self.limit, reading).await
    }

    fn unreadable(&self, base: &str, raw: &RawDocument, lost: Vec<String>) -> Unreadable {
        let has = |field: &str| lost.iter().any(|one| one == field);
        let remedy = if has(ID) {
            "delete the document, and find its writer"
        } else if has(fields::LAST_HEARTBEAT) {
            "a running instance replaces it; without one, delete the document"
        } else if has(OWNER) {
            "an instance acquires the partition after partitions.stale_after; find its writer"
        } else {
            "remove the field (updateOne with $unset), and find its writer"
        };
        let (collection, id) = (self.collections.name(base), RawId::of(raw).text());
        Unreadable { collection, id, fields: lost, remedy }
    }

    fn is_fresh(&self) -> Document {
        is_fresh(self.stale_after)
    }

    fn also(&self, base: &str, stage: Document) -> Document {
        doc! { "$unionWith": { "coll": self.collections.name(base), "pipeline": [stage] } }
    }
}

/// Returns an expression: the heartbeat is younger than `stale_after` by the server's clock.
pub fn is_fresh(stale_after: Duration) -> Document {
    let millis = i64::try_from(stale_after.as_millis()).unwrap_or(i64::MAX);
    let oldest = doc! { "$subtract": ["$$NOW", millis] };
    doc! { "$and": [
        { "$eq": [{ "$type": "$lastHeartbeat" }, "date"] },
        { "$gt": ["$lastHeartbeat", oldest] },
    ] }
}

/// Decodes a document for operators.
fn shown(document: &RawDocument) -> Document {
    let (mut document, invalid) = decode_lossy(document);
    if !invalid.is_empty() {
        document.insert("invalid", invalid);
    }
    document
}

/// The owner of a partition.
const OWNER: &str = "instanceId";
/// The field of the switch: whether all relays pause.
const PAUSED: &str = "paused";
/// A number that each change of owner raises.
const EPOCH: &str = "epoch";

/// Documents per batch: more than there are, so that one command reads all.
const BATCH_SIZE: u32 = 10_000;

/// The kind of a document in the result.
const KIND: &str = "_kind";
const ASSIGNMENT: &str = "assignment";
const INSTANCE: &str = "instance";
const SWITCH: &str = "switch";
/// Whether the heartbeat is younger than `stale_after`.
const FRESH: &str = "_fresh";

impl FleetView {
    fn note_assignment(&mut self, raw: &RawDocument, document: &Document, lost: &mut Vec<String>) {
        let id = match document.get("_id") {
            Some(Bson::Int32(id)) => i64::from(*id),
            Some(Bson::Int64(id)) => *id,
            #[expect(clippy::cast_possible_truncation, reason = "checked to be integral")]
            Some(Bson::Double(id)) if id.fract() == 0.0 => *id as i64,
            _ => return,
        };
        let Ok(partition) = u8::try_from(id) else { return };
        let owner = document.get(OWNER).and_then(InstanceId::read);
        let is_unreadable = owner.is_none() && !RawId::field(raw, OWNER).is_null();
        if is_unreadable {
            note(lost, OWNER);
        }
        let epoch = RawId::field(raw, EPOCH);
        self.assignments.insert(partition, Assignment { owner, is_unreadable, epoch });
    }

    fn note_instance(&mut self, document: &Document, lost: &mut Vec<String>) {
        let Some(id) = document.get(ID).and_then(InstanceId::read) else {
            return note(lost, ID);
        };
        let heartbeat = document.get(fields::LAST_HEARTBEAT);
        if heartbeat.is_some_and(|at| !matches!(at, Bson::DateTime(_))) {
            note(lost, fields::LAST_HEARTBEAT);
        }
        let may_be_alive = lost.iter().any(|field| field == fields::LAST_HEARTBEAT);
        if !may_be_alive && !document.get_bool(FRESH).unwrap_or(false) {
            self.some_stale = true;
            return;
        }
        let takes = document.get_str(fields::PARTITIONS).unwrap_or(ASSIGNED);
        let member = LiveInstance {
            id,
            draining: may_be_alive
                || document.get_str(fields::STATUS).is_ok_and(|status| status == "draining"),
            started_at: document.get_datetime(fields::STARTED_AT).ok().copied(),
            // The fingerprint of an instance that may be gone does not count.
            fingerprint: document
                .get_document(fields::FINGERPRINT)
                .ok()
                .filter(|_| !may_be_alive)
                .and_then(Fingerprint::read),
            assigned: takes == ASSIGNED,
            relays: takes != NONE,
            wants_partitions: document.get_bool(fields::ASKS).unwrap_or(false),
            lease_owner: document.get(fields::LEASE_OWNER).and_then(InstanceId::read).unwrap_or(id),
        };
        self.members.insert(id, member);
    }

    fn note_switch(&mut self, document: &Document, lost: &mut Vec<String>) {
        let Ok(id) = document.get_str("_id") else { return };
        if id == RELAY_SWITCH {
            match document.get(PAUSED) {
                Some(Bson::Boolean(paused)) => self.paused = *paused,
                // (It must not stop the relay.)
                Some(_) => note(lost, PAUSED),
                None => {}
            }
        } else if let Some((name, entry)) = names::read(document) {
            self.names.insert(name, entry);
        }
    }
}

/// Records an unreadable field, once.
fn note(lost: &mut Vec<String>, field: &str) {
    if !lost.iter().any(|noted| noted == field) {
        lost.push(field.to_owned());
    }
}

#[cfg(test)]
mod tests;
