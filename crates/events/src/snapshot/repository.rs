//! Aggregates as an application has them: states that come of events.

use std::error::Error;
use std::marker::PhantomData;
use std::pin::pin;

use bson::Document;
use futures_util::{Stream, TryStreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Saved, Snapshot, SnapshotError, SnapshotStore, Strategy};
use crate::names::{AggregateId, AggregateName};
use crate::{Append, AppendError, Appended, Event, EventStore, EventStream, LoadError, Range};

/// How the state of an aggregate comes of its events. It begins with the default, and what is
/// serialized of it is the snapshot's state. (By serde: what others have written as they liked, such
/// as `{"$oid": …}`, is better not kept as `Bson` or `Document`, which read it as extended JSON.)
pub trait Aggregate: Default + Serialize + DeserializeOwned + Send {
    /// Takes what has happened into the state. An error refuses to load the aggregate.
    fn apply(&mut self, event: &Event) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Whether the aggregate is deleted: the snapshot's flag.
    fn is_deleted(&self) -> bool {
        false
    }
}

/// The aggregates of a name: loaded from the snapshot and the events after it, which is the same
/// as from all events; saved as the strategy says.
///
/// `examples/snapshots.rs` shows it at work.
#[derive(Clone)]
pub struct Repository<A> {
    events: EventStore,
    snapshots: SnapshotStore,
    name: AggregateName,
    strategy: Strategy,
    aggregates: PhantomData<fn() -> A>,
}

/// An aggregate as of a version.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded<A> {
    /// What has come of its events.
    pub state: A,
    /// The version of the last of them.
    pub version: i64,
    /// The version of the snapshot that it began with; 0 where all events were replayed.
    pub snapshot_version: i64,
    /// The rest of its snapshot.
    rest: Snapshot,
}

/// An append that was made, and what became of the snapshot after it.
#[derive(Debug)]
pub struct Stored {
    /// What came of the append.
    pub appended: Appended,
    /// The snapshot, where one was due. That it failed takes nothing from the append: the next
    /// one saves it.
    pub snapshot: Result<Option<Saved>, RepositoryError>,
}

/// An aggregate could not be loaded, or its snapshot not be saved.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// Its events could not be read.
    #[error(transparent)]
    Events(#[from] LoadError),
    /// Its snapshot could not be read or saved.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// An event is not there: no state comes of the others.
    #[error("version {missing} of the aggregate is missing: {found} is the next")]
    Missing {
        /// The version that should have come.
        missing: i64,
        /// The one that came.
        found: i64,
    },
    /// The aggregate takes one of its events for impossible.
    #[error("the events of version {version} can't be applied")]
    Apply {
        /// Of which version.
        version: i64,
        /// Why, in the aggregate's words.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl<A: Aggregate> Repository<A> {
    /// The aggregates of this name, in these stores of one context.
    pub fn new(
        events: EventStore,
        snapshots: SnapshotStore,
        name: AggregateName,
        strategy: Strategy,
    ) -> Self {
        Self { events, snapshots, name, strategy, aggregates: PhantomData }
    }

    /// The aggregate as it is now, of this tenant where one is named; `None` where it has no
    /// events.
    ///
    /// # Errors
    ///
    /// Those of [`RepositoryError`].
    pub async fn load(
        &self,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<Loaded<A>>, RepositoryError> {
        let snapshot = self.snapshots.load(&self.name, id, tenant).await?;
        let start = snapshot.and_then(Loaded::of).unwrap_or_else(|| Loaded::nothing(id));
        let tail = Range { from_version: Some(start.next()), ..all_of(tenant) };
        start.replay(self.events.load(&self.name, id, &tail).await?).await
    }

    /// The aggregate as it was at this version, or as it is where it has not come so far: from
    /// events alone.
    ///
    /// # Errors
    ///
    /// Those of [`RepositoryError`].
    pub async fn load_version(
        &self,
        id: &AggregateId,
        version: i64,
        tenant: Option<&str>,
    ) -> Result<Option<Loaded<A>>, RepositoryError> {
        let range = Range { to_version: Some(version), ..all_of(tenant) };
        Loaded::nothing(id).replay(self.events.load(&self.name, id, &range).await?).await
    }

    /// The aggregate as it was at this time of the server's clock, in epoch milliseconds: from
    /// events alone.
    ///
    /// # Errors
    ///
    /// Those of [`RepositoryError`].
    pub async fn load_time(
        &self,
        id: &AggregateId,
        time: i64,
        tenant: Option<&str>,
    ) -> Result<Option<Loaded<A>>, RepositoryError> {
        let events = self.events.load(&self.name, id, &all_of(tenant)).await?;
        // Not by a range of times: where the clock was set back, that would leave gaps.
        let events =
            events.try_take_while(move |stream| std::future::ready(Ok(stream.create_time <= time)));
        Loaded::nothing(id).replay(events).await
    }

    /// Appends, to an aggregate of this name whatever `append` says, and saves a snapshot where
    /// one is then due.
    ///
    /// # Errors
    ///
    /// Those of the append. What becomes of the snapshot is told beside its result.
    pub async fn append(&self, append: Append) -> Result<Stored, AppendError> {
        let id = append.id.clone();
        let append = Append { name: self.name.clone(), ..append };
        let appended = self.events.append(append).await?;
        let snapshot = self.save_if_due(&id, appended.version).await;
        Ok(Stored { appended, snapshot })
    }

    async fn save_if_due(
        &self,
        id: &AggregateId,
        version: i64,
    ) -> Result<Option<Saved>, RepositoryError> {
        if self.strategy == Strategy::None {
            return Ok(None);
        }
        let last = self.snapshots.version(&self.name, id).await?;
        if !self.strategy.is_due(version, last) {
            return Ok(None);
        }
        let Some(loaded) = self.load(id, None).await? else { return Ok(None) };
        Ok(Some(self.snapshots.save(&self.name, loaded.into_snapshot()?).await?))
    }
}

impl<A: Aggregate> Loaded<A> {
    fn nothing(id: &AggregateId) -> Self {
        let rest = Snapshot::new(id.clone(), 0, Document::new());
        Self { state: A::default(), version: 0, snapshot_version: 0, rest }
    }

    /// What a snapshot holds; `None` where it is of another form than today's.
    fn of(mut snapshot: Snapshot) -> Option<Self> {
        let state = std::mem::take(&mut snapshot.state);
        let state = bson::deserialize_from_document(state).ok()?;
        let version = snapshot.version;
        Some(Self { state, version, snapshot_version: version, rest: snapshot })
    }

    fn next(&self) -> i64 {
        self.version.saturating_add(1)
    }

    async fn replay(
        mut self,
        events: impl Stream<Item = Result<EventStream, LoadError>>,
    ) -> Result<Option<Self>, RepositoryError> {
        let mut events = pin!(events);
        while let Some(stream) = events.try_next().await? {
            self.take(stream)?;
        }
        Ok((self.version > 0).then_some(self))
    }

    fn take(&mut self, stream: EventStream) -> Result<(), RepositoryError> {
        let (missing, found) = (self.next(), stream.version);
        if found != missing {
            return Err(RepositoryError::Missing { missing, found });
        }
        for event in &stream.body {
            self.state
                .apply(event)
                .map_err(|source| RepositoryError::Apply { version: found, source })?;
        }
        self.version = found;
        let rest = &mut self.rest;
        if found == 1 {
            rest.first_event_time = Some(stream.create_time);
        }
        rest.tenant_id = stream.tenant_id.or(rest.tenant_id.take());
        rest.owner_id = stream.owner_id.or(rest.owner_id.take());
        rest.event_time = Some(stream.create_time);
        rest.event_id = Some(stream.id);
        Ok(())
    }

    fn into_snapshot(self) -> Result<Snapshot, SnapshotError> {
        Ok(Snapshot {
            version: self.version,
            deleted: self.state.is_deleted(),
            state: bson::serialize_to_document(&self.state).map_err(SnapshotError::Encode)?,
            ..self.rest
        })
    }
}

fn all_of(tenant: Option<&str>) -> Range {
    Range { tenant_id: tenant.map(str::to_owned), ..Range::default() }
}
