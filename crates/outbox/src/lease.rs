//! Leases records: one conditional update per batch, by the server's clock.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::ReadConcern;
use parking_lot::Mutex;
use postrider_store::codes::TOO_LARGE_CODES;
use postrider_store::write::{AckLevel, Written, update};
use postrider_store::{StoreError, limits, within};

use crate::collections::{Collections, Find, ID_INDEX, names};
use crate::fields::{
    ATTEMPT, ATTEMPT_LIMIT, ID, LEASE_CRASHES, LEASE_ID, LEASE_OWNER, LEASE_UNTIL, PENDING, SEQ,
    STATUS, UNTOUCHED, VISIBLE_AT,
};
use crate::ids::{InstanceId, LeaseId, RecordId};
use crate::record::RecordVersion;

/// The action of a lease, in errors and metrics.
const LEASE: &str = "lease records";

/// The owner id of an instance: its own id at first, and another one after each loss of its
/// partitions. An instance that found it dead can take over its old leases, and none of its later
/// ones.
#[derive(Debug)]
pub struct OwnerId(Mutex<Owners>);

#[derive(Debug)]
struct Owners {
    current: LeaseOwner,
    /// The latest ones that were replaced, first the oldest.
    former: VecDeque<InstanceId>,
}

/// Former owner ids that are remembered.
const MAX_FORMER: usize = 32;

/// The owner id, and how often it was replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseOwner {
    /// The id.
    pub id: InstanceId,
    /// How often it was replaced.
    pub lapses: i64,
}

impl OwnerId {
    /// Creates the owner id of an instance that has lost no partitions.
    pub fn new(instance: InstanceId) -> Arc<Self> {
        let current = LeaseOwner { id: instance, lapses: 0 };
        Arc::new(Self(Mutex::new(Owners { current, former: VecDeque::new() })))
    }

    /// Returns the current id.
    pub fn current(&self) -> InstanceId {
        self.get().id
    }

    /// Returns the current id, and how often it was replaced.
    pub fn get(&self) -> LeaseOwner {
        self.0.lock().current
    }

    /// Returns whether this instance leases under this id, or did: it has not crashed since.
    pub fn is_own(&self, id: InstanceId) -> bool {
        let owners = self.0.lock();
        owners.current.id == id || owners.former.contains(&id)
    }

    fn all(&self) -> Vec<InstanceId> {
        let owners = self.0.lock();
        owners.former.iter().copied().chain([owners.current.id]).collect()
    }

    /// Replaces the id after a loss of the partitions.
    pub fn replace(&self) {
        let mut owners = self.0.lock();
        let LeaseOwner { id, lapses } = owners.current;
        if owners.former.len() == MAX_FORMER {
            owners.former.pop_front();
        }
        owners.former.push_back(id);
        owners.current = LeaseOwner { id: InstanceId::fresh(), lapses: lapses + 1 };
    }
}

/// Result of a lease command.
#[derive(Debug, Default)]
pub struct Grant {
    /// Records that the lease holds now.
    pub held: HashSet<RecordId>,
    /// Records too close to 16 MiB for the lease fields.
    pub oversized: Vec<RecordId>,
    /// Records that the server rejects, with its code, because of a foreign validator.
    pub refused: HashMap<RecordId, i32>,
}

/// Request of one lease command.
#[derive(Clone, Debug, Default)]
pub struct LeaseRequest {
    /// Records that have a field that a lease depends on.
    pub touched: Vec<RecordVersion>,
    /// Records without such fields; leased if that is still so.
    pub untouched: Vec<RecordVersion>,
    /// Owner ids of dead instances: their leases can be taken over before they expire (see the
    /// relay's `LeaseOwners`).
    pub dead_owners: Vec<InstanceId>,
}

impl LeaseRequest {
    /// Requests these records, whatever fields they have.
    pub fn touched(records: Vec<RecordVersion>) -> Self {
        Self { touched: records, ..Self::default() }
    }

    /// Returns the ids of all requested records.
    pub fn ids(&self) -> Vec<RecordId> {
        self.versions().map(|record| record.id.clone()).collect()
    }

    fn versions(&self) -> impl Iterator<Item = &RecordVersion> {
        self.touched.iter().chain(&self.untouched)
    }
}

/// Leases records for one instance.
#[derive(Clone, Debug)]
pub struct Leaser {
    collections: Collections,
    owner: Arc<OwnerId>,
    length: Duration,
}

impl Leaser {
    /// Creates a leaser for `owner`, with leases of `length` by the server's clock.
    pub fn new(collections: Collections, owner: Arc<OwnerId>, length: Duration) -> Self {
        Self { collections, owner, length }
    }

    /// Returns the current owner id.
    pub fn owner(&self) -> InstanceId {
        self.owner.current()
    }

    /// Returns the duration of a lease or renewal.
    pub fn length(&self) -> Duration {
        self.length
    }

    /// Leases those records that are still the documents that were read, pending, due and free: not
    /// leased, or by a lease that has expired or whose owner is dead.
    ///
    /// The caller publishes what it has read. So each filter names the `seq` that was read: a record
    /// that was replaced since, or deleted and inserted again, is not leased. (A `seq` is new in
    /// every document, so the filter does not pair it with its `_id`.) An edit in place keeps its
    /// `seq` and is not noticed.
    ///
    /// Counts one attempt on every matched record, and one crash if an earlier lease of another
    /// instance ended without an outcome. An earlier lease of this instance ended because MongoDB was
    /// away, or its release was lost: its attempt is this one.
    ///
    /// The filter repeats status and expiry, since another instance may have settled or
    /// leased a record since it was read. The driver does not retry `updateMany`: after a lost
    /// response it is sent again with the same lease id, and counts only where the id differs.
    ///
    /// # Errors
    ///
    /// [`StoreError`], after one retry; nothing may be published then. What the lease holds is
    /// unknown, unless MongoDB rejects the command: [`release`](Self::release) it.
    pub async fn lease(&self, lease: LeaseId, request: &LeaseRequest) -> Result<Grant, StoreError> {
        let LeaseRequest { touched, untouched, dead_owners } = request;
        let ids = &request.ids();
        let mut statements = Vec::new();
        if !untouched.is_empty() {
            statements.push(self.first(lease, untouched));
        }
        if !touched.is_empty() {
            statements.push(self.statement(lease, touched, dead_owners));
        }
        let written = match self.send(LEASE, statements).await {
            Ok(written) => written,
            Err(error) if error.is_refusal() => return Err(error),
            Err(lost) => {
                let all = self.statement(lease, request.versions(), dead_owners);
                match self.send(LEASE, vec![all]).await {
                    // The first try may have leased them.
                    Err(error) if error.is_refusal() => return Err(lost),
                    written => written?,
                }
            }
        };
        if written.failed.is_empty() && written.matched == ids.len() as u64 {
            return Ok(Grant { held: ids.iter().cloned().collect(), ..Grant::default() });
        }
        // Fewer than requested: some were not free, or one stopped the statement.
        let mut grant = Grant { held: self.held(lease, ids).await?, ..Grant::default() };
        if !written.failed.is_empty() {
            self.one_by_one(lease, request, &mut grant).await?;
        }
        Ok(grant)
    }

    /// Renews the lease on `ids`; returns how many it still holds.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the lease keeps its end.
    pub async fn renew(&self, lease: LeaseId, ids: &[RecordId]) -> Result<u64, StoreError> {
        let statement = doc! {
            "q": held(lease, ids),
            "u": [{ "$set": { LEASE_UNTIL: self.until() } }],
            "multi": true,
        };
        Ok(self.send("renew leases", vec![statement]).await?.matched)
    }

    /// Returns which of `ids` the lease holds, read from the primary.
    pub async fn held(
        &self,
        lease: LeaseId,
        ids: &[RecordId],
    ) -> Result<HashSet<RecordId>, StoreError> {
        let records = self.collections.records().clone_with_type::<Document>();
        let find = records
            .find(held(lease, ids))
            .projection(doc! { ID: 1 })
            // A local read, since the lease is acknowledged by the primary alone.
            .read_concern(ReadConcern::local());
        let reading = async { find.await?.try_collect::<Vec<_>>().await };
        let found = within("read back a lease", limits::BATCH_TIMEOUT, reading).await?;
        Ok(found
            .into_iter()
            .filter_map(|mut document| document.remove(ID))
            .map(RecordId::from)
            .collect())
    }

    /// Releases what a lease of unknown outcome holds of `ids`, not counted; returns whether a
    /// majority confirms that it holds nothing. Safe to retry.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; the lease may still hold them.
    pub async fn release(&self, lease: LeaseId, ids: &[RecordId]) -> Result<bool, StoreError> {
        let action = "release a lease of unknown outcome";
        let held = held(lease, ids);
        let released = doc! { "$inc": { ATTEMPT: -1 }, "$unset": no_lease() };
        let statement = doc! { "q": &held, "u": released, "multi": true };
        let name = self.collections.name(names::RECORDS);
        let database = self.collections.database();
        let written = update(database, &name, action, vec![statement], AckLevel::Majority).await?;
        if let Some((_, code)) = written.failed.first() {
            return Err(StoreError::Refused { action, code: *code });
        }
        let find = Find { limit: 1, ..Find::ids(action, ID_INDEX, held) };
        Ok(self.collections.find(find).await?.is_empty())
    }

    /// Leases the rest of a failed statement one by one, to find the record that failed it.
    async fn one_by_one(
        &self,
        lease: LeaseId,
        request: &LeaseRequest,
        grant: &mut Grant,
    ) -> Result<(), StoreError> {
        let is_missing = |record: &&RecordVersion| !grant.held.contains(&record.id);
        let missing: Vec<&RecordVersion> = request.versions().filter(is_missing).collect();
        let statement =
            |record: &&RecordVersion| self.statement(lease, [*record], &request.dead_owners);
        let written = self.send(LEASE, missing.iter().map(statement).collect()).await?;
        for (index, code) in written.failed {
            let Some(RecordVersion { id, .. }) = missing.get(index) else { continue };
            if TOO_LARGE_CODES.contains(&code) {
                grant.oversized.push(id.clone())
            } else {
                _ = grant.refused.insert(id.clone(), code)
            }
        }
        grant.held = self.held(lease, &request.ids()).await?;
        Ok(())
    }

    async fn send(
        &self,
        action: &'static str,
        statements: Vec<Document>,
    ) -> Result<Written, StoreError> {
        let name = self.collections.name(names::RECORDS);
        update(self.collections.database(), &name, action, statements, AckLevel::Primary).await
    }

    /// Builds the first lease of records without lease fields: it costs MongoDB a quarter less than
    /// the general statement.
    fn first(&self, lease: LeaseId, records: &[RecordVersion]) -> Document {
        let mut filter = read(records);
        filter.extend(UNTOUCHED.map(|name| (name.to_owned(), doc! { "$exists": false }.into())));
        let set = doc! {
            ATTEMPT: 1,
            LEASE_ID: lease,
            LEASE_UNTIL: self.until(),
            LEASE_OWNER: self.owner(),
        };
        doc! { "q": filter, "u": [{ "$set": set }], "multi": true }
    }

    fn statement<'a>(
        &self,
        lease: LeaseId,
        records: impl IntoIterator<Item = &'a RecordVersion>,
        dead_owners: &[InstanceId],
    ) -> Document {
        let mine = Bson::from(lease);
        let mut free_or_mine = free();
        free_or_mine.push(doc! { LEASE_ID: mine.clone() });
        if !dead_owners.is_empty() {
            let dead: Vec<Bson> = dead_owners.iter().map(|owner| Bson::from(*owner)).collect();
            free_or_mine.push(doc! { LEASE_OWNER: { "$in": dead } });
        }
        let is_mine = doc! { "$eq": [format!("${LEASE_ID}"), mine.clone()] };
        let own: Vec<Bson> = self.owner.all().into_iter().map(Bson::from).collect();
        let has_own_lease = doc! { "$and": [
            { "$eq": [{ "$type": format!("${LEASE_ID}") }, "binData"] },
            { "$eq": [{ "$type": format!("${LEASE_UNTIL}") }, "date"] },
            { "$in": [format!("${LEASE_OWNER}"), own] },
        ] };
        let is_counted = doc! { "$or": [is_mine, has_own_lease] };
        let had_no_lease = doc! { "$or": [
            is_counted.clone(),
            { "$ne": [{ "$type": format!("${LEASE_ID}") }, "binData"] },
            { "$ne": [{ "$type": format!("${LEASE_UNTIL}") }, "date"] },
        ] };
        let is_due = doc! { "$or": [
            { VISIBLE_AT: { "$not": { "$type": "date" } } },
            { "$expr": { "$lte": [format!("${VISIBLE_AT}"), "$$NOW"] } },
        ] };
        let mut filter = read(records);
        filter.insert("$and", vec![doc! { "$or": free_or_mine }, is_due]);
        doc! {
            "q": filter,
            "u": [{ "$set": {
                ATTEMPT: { "$cond": [is_counted, format!("${ATTEMPT}"), incremented(ATTEMPT)] },
                LEASE_CRASHES: {
                    "$cond": [had_no_lease, format!("${LEASE_CRASHES}"), incremented(LEASE_CRASHES)],
                },
                LEASE_ID: mine,
                LEASE_UNTIL: self.until(),
                LEASE_OWNER: self.owner(),
            } }],
            "multi": true,
        }
    }

    fn until(&self) -> Document {
        let millis = i64::try_from(self.length.as_millis()).unwrap_or(i64::MAX);
        doc! { "$add": ["$$NOW", millis] }
    }
}

/// Conditions for records that are not leased, by the server's clock.
pub(crate) fn free() -> Vec<Document> {
    vec![
        doc! { LEASE_UNTIL: { "$not": { "$type": "date" } } },
        doc! { LEASE_ID: { "$not": uuids() } },
        doc! { LEASE_ID: { "$type": "array" } },
        doc! { "$expr": { "$lte": [format!("${LEASE_UNTIL}"), "$$NOW"] } },
    ]
}

/// Matches a UUID: the server orders binaries by length, subtype and bytes.
fn uuids() -> Document {
    let uuid = |byte| bson::Uuid::from_bytes([byte; 16]);
    doc! { "$gte": uuid(0), "$lte": uuid(u8::MAX) }
}

/// Evaluates to the field plus 1; an invalid count (another type, negative, a fraction) is zero. A
/// plain `$inc` would stop the statement at the first such record.
fn incremented(field: &str) -> Document {
    let field = format!("${field}");
    let is_count = doc! { "$and": [
        { "$isNumber": field.clone() },
        { "$gte": [field.clone(), 0] },
        { "$lte": [field.clone(), f64::MAX] },
        { "$eq": [field.clone(), { "$trunc": field.clone() }] },
    ] };
    let capped = doc! { "$toInt": { "$min": [field.clone(), ATTEMPT_LIMIT - 1] } };
    // The common cases first: absent on the first delivery, an int afterwards.
    doc! { "$switch": {
        "branches": [
            { "case": { "$eq": [{ "$type": field }, "missing"] }, "then": 1 },
            { "case": is_count, "then": { "$add": [capped, 1] } },
        ],
        "default": 1,
    } }
}

/// Matches those of these documents that are pending, and none that replaced them.
fn read<'a>(records: impl IntoIterator<Item = &'a RecordVersion>) -> Document {
    let (ids, seqs): (Vec<Bson>, Vec<Bson>) = records
        .into_iter()
        .map(|record| (Bson::from(&record.id), Bson::Timestamp(record.seq)))
        .unzip();
    doc! { ID: { "$in": ids }, SEQ: { "$in": seqs }, STATUS: PENDING }
}

/// Matches those of these records that the lease holds.
pub(crate) fn held<'a>(lease: LeaseId, ids: impl IntoIterator<Item = &'a RecordId>) -> Document {
    doc! { ID: { "$in": bson_ids(ids) }, LEASE_ID: lease, STATUS: PENDING }
}

/// The fields of a lease, to unset them.
pub(crate) fn no_lease() -> Document {
    doc! { LEASE_ID: "", LEASE_UNTIL: "", LEASE_OWNER: "" }
}

fn bson_ids<'a>(ids: impl IntoIterator<Item = &'a RecordId>) -> Vec<Bson> {
    ids.into_iter().map(Bson::from).collect()
}
