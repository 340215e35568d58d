//! The statements around a transaction: its start, its end, and the end of one that was left open.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use mongodb::error::{TRANSIENT_TRANSACTION_ERROR, UNKNOWN_TRANSACTION_COMMIT_RESULT};
use mongodb::options::{ReadConcern, TransactionOptions};
use mongodb::{Client, ClientSession};
use tracing::debug;

use crate::connect::{ask, majority, primary};
use crate::text::chain;
use crate::{StoreError, limits, within};

/// How long an `abortTransaction` may take. Without success the next transaction of the session, or
/// [`kill_session`], ends the transaction.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// The pause between two tries to commit.
const COMMIT_PAUSE: Duration = Duration::from_millis(100);

/// How a commit ended.
#[derive(Debug)]
pub enum CommitOutcome {
    /// A majority has the transaction.
    Committed,
    /// Nothing was written, and another transaction may succeed.
    Again(StoreError),
    /// Whether it was committed is unknown.
    Unknown(StoreError),
}

/// The options of a transaction: read and write concerns of its own, whatever the URI says.
pub fn options() -> TransactionOptions {
    TransactionOptions::builder()
        .read_concern(ReadConcern::snapshot())
        .write_concern(majority())
        .selection_criteria(primary())
        .max_commit_time(limits::BATCH_TIMEOUT)
        .build()
}

/// Starts a transaction with these [`options`].
///
/// MongoDB keeps one transaction per session: the first statement of this one ends an earlier one that is
/// still open.
///
/// # Errors
///
/// The driver's.
pub async fn start(session: &mut ClientSession) -> mongodb::error::Result<()> {
    session.start_transaction().with_options(options()).await
}

/// Commits, and retries while the outcome is unknown.
///
/// A commit that failed may leave the transaction open on the server: the driver sends no
/// `abortTransaction` after a `commitTransaction`.
pub async fn commit(session: &mut ClientSession, action: &'static str) -> CommitOutcome {
    let began = Instant::now();
    loop {
        let committing = async { session.commit_transaction().await };
        // Longer than the server's limit, so that its error arrives first.
        let error = match within(action, limits::BATCH_TIMEOUT * 2, committing).await {
            Ok(()) => return CommitOutcome::Committed,
            Err(error) => error,
        };
        if has_label(&error, UNKNOWN_TRANSACTION_COMMIT_RESULT)
            && began.elapsed() < limits::BATCH_TIMEOUT
        {
            tokio::time::sleep(COMMIT_PAUSE).await;
            continue;
        }
        return if has_label(&error, TRANSIENT_TRANSACTION_ERROR) {
            CommitOutcome::Again(error)
        } else {
            CommitOutcome::Unknown(error)
        };
    }
}

/// Aborts an open transaction. A dropped session does so too, but the caller would continue before.
/// `action` says what ends, for errors and metrics.
pub async fn abort(session: &mut ClientSession, action: &'static str) {
    let aborting = session.abort_transaction();
    if let Err(error) = within(action, ABORT_TIMEOUT, aborting).await {
        debug!(error = chain(&error), "failed to abort a transaction");
    }
}

/// Kills a session, and with it a transaction that is still open there: otherwise it would hold its
/// documents until `transactionLifetimeLimitSeconds`. A user needs no privilege to kill a session of
/// their own.
///
/// # Errors
///
/// MongoDB's.
pub async fn kill_session(client: &Client, session: &Document) -> Result<(), StoreError> {
    let kill = doc! { "killSessions": [session.clone()] };
    ask(&client.database("admin"), "end a transaction", kill).await.map(drop)
}

/// Whether another transaction may succeed after this error.
pub fn is_retryable(error: &StoreError) -> bool {
    has_label(error, TRANSIENT_TRANSACTION_ERROR) || !error.is_permanent()
}

fn has_label(error: &StoreError, label: &str) -> bool {
    matches!(error, StoreError::Driver { source, .. } if source.contains_label(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_transient_errors_are_retryable() {
        let timed_out = StoreError::TimedOut { action: "commit", limit: ABORT_TIMEOUT };
        let refused = StoreError::Refused { action: "commit", code: 121 };

        assert!(is_retryable(&timed_out));
        assert!(!is_retryable(&refused));
    }
}
