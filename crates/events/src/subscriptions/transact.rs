//! Transactions of a few statements, repeated while a retry may succeed.

use mongodb::ClientSession;
use postrider_store::transaction::{CommitOutcome, abort, commit, is_retryable};

use crate::context::Context;
use crate::subscriptions::error::SubscriptionError;
use crate::transaction::{backoff, begin, end_transaction};

/// The most tries.
const MAX_TRIES: u32 = 10;

/// The statements of a transaction. They are conditional, so that a repetition after a success is
/// recognised.
pub(super) trait Statements: Sync {
    /// What they return.
    type Done: Send;

    /// Sends them. An error aborts the transaction.
    fn run(
        &self,
        session: &mut ClientSession,
    ) -> impl Future<Output = Result<Self::Done, SubscriptionError>> + Send;
}

/// Runs statements in a transaction: all of them take effect, or none.
///
/// They run in `open_session` if there is one, and leave the session there, whatever happens: a document
/// may name it, so that the driver must not give it to other operations. After
/// [`SubscriptionError::Store`] the outcome may be unknown.
pub(super) async fn transact<S: Statements>(
    context: &Context,
    action: &'static str,
    open_session: &mut Option<ClientSession>,
    statements: &S,
) -> Result<S::Done, SubscriptionError> {
    let mut failures = 0;
    loop {
        let mut session = begin(context, open_session).await?;
        let (error, is_final) = match statements.run(&mut session).await {
            Ok(done) => match commit(&mut session, action).await {
                CommitOutcome::Committed => {
                    *open_session = Some(session);
                    return Ok(done);
                }
                CommitOutcome::Again(error) => (error, false),
                CommitOutcome::Unknown(error) => (error, true),
            },
            Err(SubscriptionError::Store(error)) => {
                abort(&mut session, action).await;
                let is_final = !is_retryable(&error);
                (error, is_final)
            }
            Err(error) => {
                abort(&mut session, action).await;
                *open_session = Some(session);
                return Err(error);
            }
        };
        failures += 1;
        let is_last = is_final || failures >= MAX_TRIES;
        if is_last {
            end_transaction(&session).await;
        }
        *open_session = Some(session);
        if is_last {
            return Err(error.into());
        }
        tokio::time::sleep(backoff(failures)).await;
    }
}
