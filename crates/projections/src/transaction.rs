//! The transaction of a batch: the checkpoint, and what the projector writes.

use std::time::Duration;

use bson::doc;
use mongodb::{ClientSession, Collection};
use postrider_store::transaction::{self, CommitOutcome};
use postrider_store::{StoreError, failpoint, limits, within};

use crate::appends::Batch;
use crate::checkpoint::fields::{FAILURE, FEED, POSITION, UPDATED_AT};
use crate::checkpoint::{Checkpoint, checkpoints};
use crate::error::ApplyError;
use crate::name::GenerationCollections;
use crate::projector::{GenerationWriter, Projector};

/// How long the projector may take for a batch: MongoDB ends a transaction then
/// (`transactionLifetimeLimitSeconds`).
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

const ACTION: &str = "apply events";

/// How the transaction of a batch ended.
#[derive(Debug)]
pub(crate) enum BatchOutcome {
    /// A majority has all of it.
    Committed,
    /// Nothing was written: another process has moved the checkpoint.
    Displaced,
    /// Nothing was written, and another try may succeed.
    Again(StoreError),
    /// Whether it was committed is unknown: the checkpoint says it.
    Unknown(StoreError),
    /// Nothing was written: the projector failed with the append at this index.
    Failed { at: usize, error: ApplyError },
}

/// Applies a batch behind this checkpoint. The session is kept: a transaction of it that is still open
/// on the server ends when the next one begins.
pub(crate) async fn apply<P: Projector>(
    projector: &P,
    collections: &GenerationCollections,
    checkpoint: &Checkpoint,
    batch: &Batch,
    session: &mut ClientSession,
) -> BatchOutcome {
    if let Err(error) = begin(session).await {
        return BatchOutcome::Again(error);
    }
    let stored = checkpoints(&collections.database);
    // First: of two processes, one fails here before it has done the work.
    let ended = match advance(&stored, collections, checkpoint, batch, session).await {
        Ok(true) => fill(projector, collections, batch, session).await,
        Ok(false) => Some(BatchOutcome::Displaced),
        Err(error) => Some(BatchOutcome::Again(error)),
    };
    match ended {
        None => commit(session).await,
        Some(outcome) => {
            transaction::abort(session, "abort events").await;
            outcome
        }
    }
}

async fn begin(session: &mut ClientSession) -> Result<(), StoreError> {
    within(ACTION, limits::BATCH_TIMEOUT, transaction::start(session)).await
}

/// Moves the checkpoint from the value that was read; whether it still had that value.
async fn advance(
    stored: &Collection<bson::Document>,
    collections: &GenerationCollections,
    checkpoint: &Checkpoint,
    batch: &Batch,
    session: &mut ClientSession,
) -> Result<bool, StoreError> {
    let to = doc! {
        "$set": { FEED: &batch.feed, POSITION: batch.next },
        "$currentDate": { UPDATED_AT: true },
        "$unset": { FAILURE: "" },
    };
    let moving = stored.update_one(checkpoint.unmoved(&collections.name), to).session(session);
    let moved = within(ACTION, limits::BATCH_TIMEOUT, moving.into_future()).await?;
    Ok(moved.matched_count == 1)
}

/// Calls the projector; `None` where it has applied all.
async fn fill<P: Projector>(
    projector: &P,
    collections: &GenerationCollections,
    batch: &Batch,
    session: &mut ClientSession,
) -> Option<BatchOutcome> {
    let mut into = GenerationWriter { session, collections };
    let deadline = tokio::time::Instant::now() + WORK_TIMEOUT;
    for (at, append) in batch.appends.iter().enumerate() {
        let applying = projector.apply(&mut into, append);
        let error = match tokio::time::timeout_at(deadline, applying).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error,
            Err(_) => {
                ApplyError::from(StoreError::TimedOut { action: ACTION, limit: WORK_TIMEOUT })
            }
        };
        return Some(match error.into_transient() {
            Ok(source) => BatchOutcome::Again(StoreError::Driver { action: ACTION, source }),
            Err(error) => BatchOutcome::Failed { at, error },
        });
    }
    None
}

async fn commit(session: &mut ClientSession) -> BatchOutcome {
    failpoint::hit("projections::before_commit");
    match transaction::commit(session, "commit events").await {
        CommitOutcome::Committed => {
            failpoint::hit("projections::after_commit");
            BatchOutcome::Committed
        }
        CommitOutcome::Again(error) => BatchOutcome::Again(error),
        CommitOutcome::Unknown(error) => BatchOutcome::Unknown(error),
    }
}
