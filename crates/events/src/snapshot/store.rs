//! Saves and loads snapshots, guarded by version.

use bson::{Document, RawDocumentBuf, doc};
use mongodb::Collection;
use postrider_outbox::nesting::is_document_too_deep;
use postrider_store::limits::{self, MAX_DOCUMENT_BYTES};
use postrider_store::{DUPLICATE_KEY, within};

use super::SnapshotError;
use super::document::{
    ENDED, TENANT_ID, VERSION, is_ended, mark_ended, saved_unless_newer, snapshot, version,
};
use super::state::Snapshot;
use crate::context::{CollectionKind, Context};
use crate::decode::decode_any;
use crate::lookup::{Certainty, latest_version};
use crate::names::{AggregateId, AggregateName};
use crate::state::StreamState;

/// The tries of a save while other callers insert or remove the snapshot.
const MAX_TRIES: usize = 20;

/// The snapshots of a context.
///
/// ```no_run
/// use mongodb::{Client, bson::doc};
/// use postrider_events::context::{Context, ContextSettings};
/// use postrider_events::names::{AggregateId, AggregateName};
/// use postrider_events::snapshot::{Snapshot, SnapshotStore};
///
/// # async fn run(client: Client) -> Result<(), Box<dyn std::error::Error>> {
/// let snapshots = SnapshotStore::new(Context::new(client, ContextSettings::new("shop")));
/// let (order, id) = (AggregateName::new("order")?, AggregateId::new("order-7")?);
///
/// let paid = Snapshot::new(id.clone(), 3, doc! { "status": "PAID" });
/// let saved = snapshots.save(&order, paid).await?;
/// assert!(saved.version >= 3, "an older one never wins");
/// let loaded = snapshots.load(&order, &id, None).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SnapshotStore {
    context: Context,
}

/// The outcome of a save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Whether it was written: not when a newer one existed.
    pub written: bool,
    /// The version that is stored now.
    pub version: i64,
}

impl SnapshotStore {
    /// The snapshots of this context. Sends nothing.
    pub fn new(context: Context) -> Self {
        Self { context }
    }

    /// Saves a snapshot, unless a newer one exists or the stream has ended; one of the same version is
    /// replaced.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`]. After [`SnapshotError::Store`] the save can be repeated.
    pub async fn save(
        &self,
        name: &AggregateName,
        snapshot: Snapshot,
    ) -> Result<Saved, SnapshotError> {
        let ours = snapshot.version;
        if ours < 1 {
            return Err(SnapshotError::Version(ours));
        }
        if is_document_too_deep(&snapshot.state) {
            return Err(SnapshotError::TooDeep);
        }
        // The server ends the connection of a larger message.
        if snapshot.state.to_vec().map_err(SnapshotError::Encode)?.len() > MAX_DOCUMENT_BYTES {
            return Err(SnapshotError::TooLarge);
        }
        let context = &self.context.settings().name;
        let pipeline = saved_unless_newer(context, name, &snapshot);
        let id = &snapshot.aggregate_id;
        let snapshots = self.context.ready(CollectionKind::Snapshots, name.as_str()).await?;
        for _ in 0..MAX_TRIES {
            match save_once(&snapshots, id, &pipeline, false).await? {
                SaveOutcome::Written => return Ok(Saved { written: true, version: ours }),
                // The first snapshot of the aggregate, which may have ended without one.
                SaveOutcome::Absent => match self.insert(&snapshots, name, id, &pipeline).await? {
                    SaveOutcome::Written => return Ok(Saved { written: true, version: ours }),
                    SaveOutcome::Absent => continue,
                    SaveOutcome::Unchanged => {}
                },
                SaveOutcome::Unchanged => {}
            }
            // Unchanged: the stored one is newer, of an ended stream, or equal within the same
            // millisecond.
            let fields = doc! { VERSION: 1, ENDED: 1 };
            let stored = self.find(name, with_id(id), fields).await?.unwrap_or_default();
            let (stored, _) = decode_any(&stored);
            if is_ended(&stored) {
                return Err(SnapshotError::Ended);
            }
            let theirs = version(&stored).unwrap_or(0);
            if theirs >= ours {
                return Ok(Saved { written: theirs == ours, version: theirs });
            }
        }
        Err(SnapshotError::Contended)
    }

    /// Inserts the first snapshot of an aggregate, unless its stream has ended.
    ///
    /// An end marks the snapshot that its transaction sees. So one that is inserted at the same time is
    /// checked again.
    async fn insert(
        &self,
        snapshots: &Collection<Document>,
        name: &AggregateName,
        id: &AggregateId,
        pipeline: &[Document],
    ) -> Result<SaveOutcome, SnapshotError> {
        let aggregate = (name.clone(), id.clone());
        let latest = latest_version(&self.context, &aggregate, Certainty::Majority).await?;
        if latest.state != StreamState::Open {
            return Err(SnapshotError::Ended);
        }
        let outcome = save_once(snapshots, id, pipeline, true).await?;
        if outcome == SaveOutcome::Written {
            let latest = latest_version(&self.context, &aggregate, Certainty::Majority).await?;
            if latest.state != StreamState::Open {
                let is_erased = latest.state == StreamState::Erased;
                let marking =
                    snapshots.update_one(with_id(id), mark_ended(latest.version, is_erased));
                within("mark a snapshot", limits::BATCH_TIMEOUT, marking).await?;
                return Err(SnapshotError::Ended);
            }
        }
        Ok(outcome)
    }

    /// Loads the snapshot of an aggregate, of this tenant if one is given; also a deleted one, unless the
    /// stream has ended.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`].
    pub async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        let mut filter = with_id(id);
        if let Some(tenant) = tenant {
            filter.insert(TENANT_ID, tenant);
        }
        let Some(found) = self.find(name, filter, doc! {}).await? else { return Ok(None) };
        let (found, invalid) = decode_any(&found);
        if is_ended(&found) {
            return Err(SnapshotError::Ended);
        }
        Ok(snapshot(id, found, invalid))
    }

    /// Reads the version of an aggregate's snapshot; 0 without one.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`].
    pub async fn version(
        &self,
        name: &AggregateName,
        id: &AggregateId,
    ) -> Result<i64, SnapshotError> {
        let found = self.find(name, with_id(id), doc! { VERSION: 1 }).await?.unwrap_or_default();
        Ok(version(&decode_any(&found).0).unwrap_or(0))
    }

    async fn find(
        &self,
        name: &AggregateName,
        filter: Document,
        fields: Document,
    ) -> Result<Option<RawDocumentBuf>, SnapshotError> {
        let snapshots = self.stored(name);
        let finding = snapshots.find_one(filter).projection(fields);
        Ok(within("read a snapshot", limits::BATCH_TIMEOUT, finding).await?)
    }

    /// The collection, read without serde, which would take a document such as `{"$oid": …}` in a state
    /// for extended JSON.
    fn stored(&self, name: &AggregateName) -> Collection<RawDocumentBuf> {
        self.context.collection(CollectionKind::Snapshots, name.as_str()).clone_with_type()
    }
}

/// What one statement of a save has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SaveOutcome {
    Written,
    /// The stored snapshot stays.
    Unchanged,
    /// There is no snapshot, or another caller inserts it.
    Absent,
}

async fn save_once(
    snapshots: &Collection<Document>,
    id: &AggregateId,
    pipeline: &[Document],
    inserts: bool,
) -> Result<SaveOutcome, SnapshotError> {
    let saving = snapshots.update_one(with_id(id), pipeline.to_vec()).upsert(inserts);
    match within("save a snapshot", limits::BATCH_TIMEOUT, saving).await {
        Ok(done) if done.upserted_id.is_some() || done.modified_count > 0 => {
            Ok(SaveOutcome::Written)
        }
        Ok(done) if done.matched_count == 0 => Ok(SaveOutcome::Absent),
        Ok(_) => Ok(SaveOutcome::Unchanged),
        // Another caller inserted it: the next try finds it.
        Err(error) if error.code() == Some(DUPLICATE_KEY) => Ok(SaveOutcome::Absent),
        Err(error) => Err(error.into()),
    }
}

fn with_id(id: &AggregateId) -> Document {
    doc! { "_id": id.as_str() }
}
