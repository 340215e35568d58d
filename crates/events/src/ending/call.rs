//! Ends and erases a stream.

use std::sync::Arc;
use std::time::Instant;

use bson::doc;
use bson::raw::RawDocumentBuf;
use postrider_outbox::erase::PendingRecords;
use postrider_store::text::chain;
use postrider_store::{StoreError, limits, within};
use tracing::{info, warn};

use super::answer::{Erasure, ErasureCounts, ErasureState, Progress};
use super::eraser::Eraser;
use super::request::StreamEnding;
use crate::append::Appended;
use crate::context::CollectionKind;
use crate::error::AppendError;
use crate::names::{AggregateId, AggregateName};
use crate::prepared::PreparedAppend;
use crate::state::EndKind;
use crate::store::EventStore;
use crate::stream::fields::{AGGREGATE_ID, TENANT_ID, VERSION};

/// Why a stream was not ended or erased.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The aggregate has no events.
    #[error("unknown aggregate: {name} {id:?} has no events")]
    UnknownAggregate {
        /// The kind of aggregate.
        name: AggregateName,
        /// The aggregate.
        id: String,
    },
    /// The append of the reserved event failed. Nothing was written, except with
    /// [`AppendError::Unknown`].
    #[error(transparent)]
    Append(#[from] AppendError),
}

impl EventStore {
    /// Ends a stream: it takes no further appends, its events are not read any more, and its snapshot is
    /// deleted. Consumers receive the event `postrider.StreamEnded`.
    ///
    /// A request that has ended it before gets the first answer.
    ///
    /// # Errors
    ///
    /// [`EndError`]; [`AppendError::StreamEnded`] for another request than the one that has ended it.
    pub async fn end(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        request: StreamEnding,
    ) -> Result<Appended, EndError> {
        let log = (request.actor.clone(), request.reason.clone());
        let appended = self.append_ending(name, id, request, EndKind::End).await?;
        if !appended.replayed {
            let (actor, reason) = log;
            info!(stream = %name, aggregate = %id, version = appended.version, actor, reason, "ended a stream");
        }
        Ok(appended)
    }

    /// Ends a stream, if it has not ended before, and erases its content: bodies and headers of all its
    /// events, the state of its snapshot, and the payloads of its outbox records. Consumers receive the
    /// event `postrider.StreamErased`.
    ///
    /// Records that are pending are delivered first, unless `pending` says otherwise; so the answer may be
    /// [`ErasureState::Waiting`]. [`complete_erasures`](Self::complete_erasures) continues it in any
    /// process. A request that has erased it before continues too, and gets the present state.
    ///
    /// # Errors
    ///
    /// [`EndError`]; [`AppendError::StreamEnded`] for another request than the one that has erased it.
    pub async fn erase(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        request: StreamEnding,
        pending: PendingRecords,
    ) -> Result<Erasure, EndError> {
        let log = (request.actor.clone(), request.reason.clone());
        let eraser = self.eraser();
        let appended = self.append_ending(name, id, request, EndKind::Erase(pending)).await?;
        if !appended.replayed {
            let (actor, reason) = log;
            let discard_pending = pending == PendingRecords::Discard;
            let version = appended.version;
            info!(
                stream = %name, aggregate = %id, version, actor, reason, discard_pending,
                "started the erasure of a stream"
            );
        }
        let aggregate = (name.clone(), id.clone());
        let progress = match eraser.advance(&aggregate, &appended.id).await {
            Ok(progress) => progress,
            Err(error) => {
                let error = chain(&error);
                warn!(stream = %name, aggregate = %id, error, "failed to continue an erasure");
                Progress::new(ErasureState::Running, ErasureCounts::default())
            }
        };
        if progress.state != ErasureState::Complete {
            self.erasure_begun().notify_one();
        }
        Ok(Erasure::new(appended, progress))
    }

    async fn append_ending(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        request: StreamEnding,
        kind: EndKind,
    ) -> Result<Appended, EndError> {
        let since = Instant::now();
        let flaws = request.flaws();
        if !flaws.is_empty() {
            return Err(AppendError::Invalid(flaws).into());
        }
        let unknown =
            || EndError::UnknownAggregate { name: name.clone(), id: id.as_str().to_owned() };
        let newest = self.newest(name, id).await;
        let newest = newest.map_err(|error| AppendError::Unavailable(Arc::new(error)))?;
        // Nothing is created for an unknown one.
        let newest = newest.ok_or_else(unknown)?;
        let append = request.into_append(name.clone(), id.clone(), kind, &newest);
        let prepared = PreparedAppend::ending(append, kind).map_err(AppendError::Invalid)?;
        if matches!(kind, EndKind::Erase(_)) {
            self.eraser().prepare().await;
        }
        match self.append_prepared(prepared, since).await {
            // Emptied by hand since.
            Err(AppendError::VersionConflict { actual: 0, .. }) => Err(unknown()),
            answer => Ok(answer?),
        }
    }

    /// The newest stream document: its version, tenant and owner.
    async fn newest(
        &self,
        name: &AggregateName,
        id: &AggregateId,
    ) -> Result<Option<RawDocumentBuf>, StoreError> {
        let streams = self.context().collection(CollectionKind::Events, name.as_str());
        let streams = streams.clone_with_type::<RawDocumentBuf>();
        let finding = streams
            .find_one(doc! { AGGREGATE_ID: id.as_str() })
            .sort(doc! { VERSION: -1 })
            .projection(doc! { VERSION: 1, TENANT_ID: 1, "ownerId": 1 });
        within("read an aggregate's version", limits::BATCH_TIMEOUT, finding).await
    }

    pub(super) fn eraser(&self) -> Eraser {
        let parts = self.parts();
        Eraser::new(parts.context.clone(), parts.outbox.clone())
    }
}
