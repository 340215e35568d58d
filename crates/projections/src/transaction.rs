//! The transaction of a batch: the checkpoint, and what the projector writes.

use std::time::{Duration, Instant};

use bson::doc;
use mongodb::error::{
    Error as DriverError, TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT,
};
use mongodb::options::ReadConcern;
use mongodb::{ClientSession, Collection};
use postrider_store::connect::{majority, primary};
use postrider_store::{StoreError, failpoint, limits, within};
use tracing::debug;

use crate::appends::Batch;
use crate::checkpoint::fields::{FAILURE, FEED, POSITION, UPDATED_AT};
use crate::checkpoint::{Checkpoint, checkpoints};
use crate::error::ApplyError;
use crate::name::GenerationCollections;
use crate::projector::{GenerationWriter, Projector};

/// How long the projector may take for a batch: MongoDB ends a transaction then
/// (`transactionLifetimeLimitSeconds`).
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// How long an `abortTransaction` may take. The next transaction of the session ends an open one too.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two tries to commit.
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

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
            let aborting = session.abort_transaction();
            if let Err(error) = within("abort a transaction", ABORT_TIMEOUT, aborting).await {
                debug!(%error, "failed to abort a transaction");
            }
            outcome
        }
    }
}

async fn begin(session: &mut ClientSession) -> Result<(), StoreError> {
    let beginning = session
        .start_transaction()
        .read_concern(ReadConcern::snapshot())
        .write_concern(majority())
        .selection_criteria(primary())
        .max_commit_time(limits::BATCH_TIMEOUT);
    within(ACTION, limits::BATCH_TIMEOUT, beginning.into_future()).await
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

/// Commits, and retries while the outcome is unknown.
async fn commit(session: &mut ClientSession) -> BatchOutcome {
    failpoint::hit("projections::before_commit");
    let began = Instant::now();
    loop {
        let committing = async { session.commit_transaction().await };
        // Longer than the server's limit, so that its error arrives first.
        let error = match within("commit events", limits::BATCH_TIMEOUT * 2, committing).await {
            Ok(()) => {
                failpoint::hit("projections::after_commit");
                return BatchOutcome::Committed;
            }
            Err(error) => error,
        };
        let has_label = |label| driver(&error).is_some_and(|error| error.contains_label(label));
        if has_label(UNKNOWN_TRANSACTION_COMMIT_RESULT) && began.elapsed() < limits::BATCH_TIMEOUT {
            tokio::time::sleep(COMMIT_PAUSE).await;
            continue;
        }
        return if has_label(TRANSIENT_TRANSACTION_ERROR) {
            BatchOutcome::Again(error)
        } else {
            BatchOutcome::Unknown(error)
        };
    }
}

fn driver(error: &StoreError) -> Option<&DriverError> {
    match error {
        StoreError::Driver { source, .. } => Some(source),
        _ => None,
    }
}
