//! Saved and loaded, guarded by version.

use bson::{Document, RawDocumentBuf, doc};
use mongodb::Collection;
use postrider_store::limits::{self, LARGEST_DOCUMENT};
use postrider_store::{DUPLICATE_KEY, within};

use super::SnapshotError;
use super::document::{TENANT_ID, VERSION, saved_unless_newer, snapshot, version};
use super::state::Snapshot;
use crate::context::{Context, Kind};
use crate::names::{AggregateId, AggregateName};

/// How often a snapshot is saved that others insert or remove at the same time.
const TRIES: usize = 20;

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

/// What became of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Whether it was written: not where a newer one was there.
    pub written: bool,
    /// The version that is there now.
    pub version: i64,
}

impl SnapshotStore {
    /// The snapshots of this context; nothing is contacted yet.
    pub fn new(context: Context) -> Self {
        Self { context }
    }

    /// Saves a snapshot, unless there is a newer one; one of the same version is replaced.
    ///
    /// # Errors
    ///
    /// Those of [`SnapshotError`]. After [`SnapshotError::Store`] it may be written or not; it
    /// can be saved again.
    pub async fn save(
        &self,
        name: &AggregateName,
        snapshot: Snapshot,
    ) -> Result<Saved, SnapshotError> {
        let ours = snapshot.version;
        if ours < 1 {
            return Err(SnapshotError::Version(ours));
        }
        // A message beyond what the server reads at all would only cost the connection.
        if snapshot.state.to_vec().map_err(SnapshotError::Encode)?.len() > LARGEST_DOCUMENT {
            return Err(SnapshotError::TooLarge);
        }
        let context = &self.context.settings().name;
        let pipeline = saved_unless_newer(context, name, &snapshot);
        let id = &snapshot.aggregate_id;
        let snapshots = self.context.ready(Kind::Snapshots, name.as_str()).await?;
        for _ in 0..TRIES {
            let saving = snapshots.update_one(with_id(id), pipeline.clone()).upsert(true);
            match within("save a snapshot", limits::BATCH, saving.into_future()).await {
                Ok(done) if done.upserted_id.is_some() || done.modified_count > 0 => {
                    return Ok(Saved { written: true, version: ours });
                }
                Ok(_) => {}
                // Somebody else's insert came between: the next one meets it.
                Err(error) if error.code() == Some(DUPLICATE_KEY) => continue,
                Err(error) => return Err(error.into()),
            }
            // Left alone: newer than ours, or, within a millisecond, equal to the last byte.
            let theirs = self.version(name, id).await?;
            if theirs >= ours {
                return Ok(Saved { written: theirs == ours, version: theirs });
            }
        }
        Err(SnapshotError::Contended)
    }

    /// The snapshot of an aggregate, of this tenant where one is named; also of one that is
    /// deleted.
    ///
    /// # Errors
    ///
    /// Those of [`SnapshotError`].
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
        let loading = snapshots.find_one(filter).into_future();
        let found = within("load a snapshot", limits::BATCH, loading).await?;
        Ok(found.and_then(|found| snapshot(id, Document::try_from(found).ok()?)))
    }

    /// The version of an aggregate's snapshot; 0 where there is none.
    ///
    /// # Errors
    ///
    /// Those of [`SnapshotError`].
    pub async fn version(
        &self,
        name: &AggregateName,
        id: &AggregateId,
    ) -> Result<i64, SnapshotError> {
        let snapshots = self.stored(name);
        let asking = snapshots.find_one(with_id(id)).projection(doc! { VERSION: 1 });
        let found =
            within("read a snapshot's version", limits::BATCH, asking.into_future()).await?;
        Ok(found.and_then(|found| version(&Document::try_from(found).ok()?)).unwrap_or(0))
    }

    /// What is there, to be read without serde: it takes a document such as `{"$oid": …}`, which
    /// an application may well have in a state, for extended JSON.
    fn stored(&self, name: &AggregateName) -> Collection<RawDocumentBuf> {
        self.context.collection(Kind::Snapshots, name.as_str()).clone_with_type()
    }
}

fn with_id(id: &AggregateId) -> Document {
    doc! { "_id": id.as_str() }
}
