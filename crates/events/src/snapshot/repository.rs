//! Loads aggregates as states that result from events.

use std::error::Error;
use std::marker::PhantomData;
use std::pin::pin;

use bson::Document;
use futures_util::{Stream, TryStreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Saved, Snapshot, SnapshotError, SnapshotStore, Strategy};
use crate::names::{AggregateId, AggregateName};
use crate::stream::fields::{BODY, VERSION};
use crate::{Append, AppendError, Appended, Event, EventStore, EventStream, LoadError, Range};

/// The state of an aggregate. It begins with the default, and its serialized form is the snapshot's
/// state. (serde reads `Bson` and `Document` fields such as `{"$oid": …}` as extended JSON.)
pub trait Aggregate: Default + Serialize + DeserializeOwned + Send {
    /// Applies an event to the state. With an error the aggregate cannot be loaded.
    fn apply(&mut self, event: &Event) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Whether the aggregate is deleted: the snapshot's flag.
    fn is_deleted(&self) -> bool {
        false
    }
}

/// The aggregates of a name: loaded from the snapshot and the events after it, with the same result as
/// from all events; saved by the strategy. See `examples/snapshots.rs`.
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
    /// The state.
    pub state: A,
    /// The version of the last event.
    pub version: i64,
    /// The version of the snapshot that it began with; 0 if all events were replayed.
    pub snapshot_version: i64,
    /// The other fields of its snapshot.
    rest: Snapshot,
}

/// An append, and the save of the snapshot after it.
#[derive(Debug)]
pub struct Stored {
    /// The answer of the append.
    pub appended: Appended,
    /// The snapshot, if one was due. A failure does not affect the append; the next one saves it.
    pub snapshot: Result<Option<Saved>, RepositoryError>,
}

/// Why an aggregate could not be loaded, or its snapshot not be saved.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// Its events could not be read.
    #[error(transparent)]
    Events(#[from] LoadError),
    /// Its snapshot could not be read or saved.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A version is missing.
    #[error("version {missing} of the aggregate is missing; the next one is {found}")]
    Missing {
        /// The missing version.
        missing: i64,
        /// The version that was found.
        found: i64,
    },
    /// An event cannot be decoded.
    #[error("version {version} of the aggregate is invalid: {field}; correct the stored document")]
    Invalid {
        /// Its version.
        version: i64,
        /// The field, and what is wrong with it.
        field: String,
    },
    /// [`Aggregate::apply`] refused an event.
    #[error("cannot apply the events of version {version}")]
    Apply {
        /// Its version.
        version: i64,
        /// The error of the aggregate.
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

    /// Loads the aggregate, of this tenant if one is given; `None` without events.
    ///
    /// # Errors
    ///
    /// [`RepositoryError`].
    pub async fn load(
        &self,
        id: &AggregateId,
        tenant: Option<&str>,
    ) -> Result<Option<Loaded<A>>, RepositoryError> {
        let snapshot = self.snapshots.load(&self.name, id, tenant).await?;
        let start = snapshot.and_then(Loaded::of).unwrap_or_else(|| Loaded::nothing(id));
        let tail = Range { from_version: Some(start.next()), ..Range::of_tenant(tenant) };
        start.replay(self.events.load(&self.name, id, &tail).await?).await
    }

    /// Loads the aggregate up to this version, from events alone.
    ///
    /// # Errors
    ///
    /// [`RepositoryError`].
    pub async fn load_version(
        &self,
        id: &AggregateId,
        version: i64,
        tenant: Option<&str>,
    ) -> Result<Option<Loaded<A>>, RepositoryError> {
        let range = Range { to_version: Some(version), ..Range::of_tenant(tenant) };
        Loaded::nothing(id).replay(self.events.load(&self.name, id, &range).await?).await
    }

    /// Loads the aggregate up to this time of the server's clock, in milliseconds since 1970, from
    /// events alone.
    ///
    /// # Errors
    ///
    /// [`RepositoryError`].
    pub async fn load_time(
        &self,
        id: &AggregateId,
        time: i64,
        tenant: Option<&str>,
    ) -> Result<Option<Loaded<A>>, RepositoryError> {
        let events = self.events.load(&self.name, id, &Range::of_tenant(tenant)).await?;
        // Not by a range of times, which has gaps if the clock was set back.
        let events =
            events.try_take_while(move |stream| std::future::ready(Ok(stream.create_time <= time)));
        Loaded::nothing(id).replay(events).await
    }

    /// Appends to an aggregate of this repository's name, and saves a snapshot if one is due.
    ///
    /// # Errors
    ///
    /// [`AppendError`]. An error of the snapshot is in [`Stored::snapshot`].
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

    /// The state of a snapshot; `None` if it cannot be decoded.
    fn of(mut snapshot: Snapshot) -> Option<Self> {
        if !snapshot.invalid.is_empty() {
            return None;
        }
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
        // (A state of replaced or absent content would be another one.)
        let mut invalid = stream.invalid.into_iter();
        if let Some(field) = invalid.find(|it| it.starts_with(BODY) || it.starts_with(VERSION)) {
            return Err(RepositoryError::Invalid { version: found, field });
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
