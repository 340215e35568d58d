//! Saves and loads snapshots, guarded by version.

use bson::{Document, RawDocumentBuf, doc};
use mongodb::Collection;
use postrider_store::limits::{self, MAX_DOCUMENT_BYTES};
use postrider_store::{DUPLICATE_KEY, within};

use super::SnapshotError;
use super::document::{TENANT_ID, VERSION, saved_unless_newer, snapshot, version};
use super::state::Snapshot;
use crate::context::{CollectionKind, Context};
use crate::names::{AggregateId, AggregateName};

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

    /// Saves a snapshot, unless a newer one exists; one of the same version is replaced.
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
        // The server ends the connection of a larger message.
        if snapshot.state.to_vec().map_err(SnapshotError::Encode)?.len() > MAX_DOCUMENT_BYTES {
            return Err(SnapshotError::TooLarge);
        }
        let context = &self.context.settings().name;
        let pipeline = saved_unless_newer(context, name, &snapshot);
        let id = &snapshot.aggregate_id;
        let snapshots = self.context.ready(CollectionKind::Snapshots, name.as_str()).await?;
        for _ in 0..MAX_TRIES {
            let saving = snapshots.update_one(with_id(id), pipeline.clone()).upsert(true);
            match within("save a snapshot", limits::BATCH_TIMEOUT, saving).await {
                Ok(done) if done.upserted_id.is_some() || done.modified_count > 0 => {
                    return Ok(Saved { written: true, version: ours });
                }
                Ok(_) => {}
                // Another caller inserted it: the next try finds it.
                Err(error) if error.code() == Some(DUPLICATE_KEY) => continue,
                Err(error) => return Err(error.into()),
            }
            // Unchanged: the stored one is newer, or equal within the same millisecond.
            let theirs = self.version(name, id).await?;
            if theirs >= ours {
                return Ok(Saved { written: theirs == ours, version: theirs });
            }
        }
        Err(SnapshotError::Contended)
    }

    /// Loads the snapshot of an aggregate, of this tenant if one is given; also a deleted one.
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
        let snapshots = self.stored(name);
        let loading = snapshots.find_one(filter);
        let found = within("load a snapshot", limits::BATCH_TIMEOUT, loading).await?;
        Ok(found.and_then(|found| snapshot(id, Document::try_from(found).ok()?)))
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
        let snapshots = self.stored(name);
        let asking = snapshots.find_one(with_id(id)).projection(doc! { VERSION: 1 });
        let found = within("read a snapshot's version", limits::BATCH_TIMEOUT, asking).await?;
        Ok(found.and_then(|found| version(&Document::try_from(found).ok()?)).unwrap_or(0))
    }

    /// The collection, read without serde, which would take a document such as `{"$oid": …}` in a state
    /// for extended JSON.
    fn stored(&self, name: &AggregateName) -> Collection<RawDocumentBuf> {
        self.context.collection(CollectionKind::Snapshots, name.as_str()).clone_with_type()
    }
}

fn with_id(id: &AggregateId) -> Document {
    doc! { "_id": id.as_str() }
}
