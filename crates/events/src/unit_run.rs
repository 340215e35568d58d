//! Runs the work of a unit until it is committed or cannot be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::ClientSession;
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
use postrider_store::StoreError;
use postrider_store::transaction::is_retryable;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tracing::debug_span;

use crate::append::Appended;
use crate::context::CollectionKind;
use crate::error::{AppendError, UnitError};
use crate::lookup::Certainty;
use crate::names::AggregateName;
use crate::store::{EventStore, log_answer};
use crate::transaction::{backoff, begin, end};
use crate::unit_of_work::{Interruption, PriorUnit, UnitFailure, UnitOfWork};

/// How long a unit is retried while MongoDB fails, or other appends win.
const RETRY_TIMEOUT: Duration = Duration::from_secs(30);

/// How long the work may take: MongoDB ends a transaction then (`transactionLifetimeLimitSeconds`).
const WORK_TIMEOUT: Duration = Duration::from_secs(60);

/// The outcome of a unit of work.
#[derive(Clone, Debug, PartialEq)]
pub enum UnitOutcome<T> {
    /// A majority has all of it.
    Committed {
        /// The result of the work.
        value: T,
        /// The answer of each append, in their order.
        appended: Vec<Appended>,
    },
    /// An earlier call has committed it: nothing was written now.
    Replayed {
        /// The answers of that call, up to the append where the work ended.
        appended: Vec<Appended>,
    },
}

/// The outcome of one run of the work.
enum RunResult<T> {
    Over(UnitOutcome<T>),
    /// The collection must be created first.
    Unready(AggregateName),
    /// A retry may succeed; without time for one, this is the error.
    Again(UnitError),
}

impl EventStore {
    /// Runs work whose reads and writes (by [`UnitOfWork::session`]), appends and outbox records are one
    /// transaction: all of it, or nothing.
    ///
    /// ```no_run
    /// # use bson::doc;
    /// # use mongodb::Collection;
    /// # use postrider_events::{Append, EventStore, UnitOutcome, UnitError};
    /// use postrider_outbox::NewRecord;
    ///
    /// # async fn run(
    /// #     store: EventStore, stock: Collection<bson::Document>, order: Append,
    /// # ) -> Result<(), UnitError> {
    /// let outcome = store
    ///     .unit_of_work(async |mut unit| {
    ///         let placed = unit.append(order.clone()).await?;
    ///         let less = doc! { "$inc": { "left": -1 } };
    ///         stock.update_one(doc! { "_id": "tea" }, less).session(unit.session()).await?;
    ///         unit.enqueue(NewRecord::new("StockFell", doc! { "_id": "tea" }))?;
    ///         Ok(placed.version)
    ///     })
    ///     .await?;
    /// match outcome {
    ///     UnitOutcome::Committed { value: version, .. } => println!("version {version}"),
    ///     UnitOutcome::Replayed { appended } => println!("was there before: {appended:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The work may run several times: when the collection of an aggregate was missing (it is created
    /// outside of the transaction), and after a conflict or an election, for half a minute. So its other
    /// effects must be repeatable. It must return errors of the driver unchanged: their labels say
    /// which ones are transient.
    ///
    /// Work that fails, panics, takes longer than a minute or is dropped leaves nothing behind. If it is
    /// dropped during the commit, the outcome is unknown.
    ///
    /// A unit whose requests an earlier call has appended is a [replay](UnitOutcome::Replayed): its writes
    /// are rolled back, and its result is dropped. Work that fails is a replay too, if all its appends
    /// before were: it must fail where it inserts the same document again. A request id belongs to one
    /// unit: if only some were appended, the error is [`AppendError::DuplicateRequest`].
    ///
    /// # Errors
    ///
    /// [`UnitError`]: nothing was written, except with [`AppendError::Unknown`].
    pub async fn unit_of_work<T, F>(
        &self,
        mut work: impl FnMut(OwnedMutexGuard<UnitOfWork>) -> F,
    ) -> Result<UnitOutcome<T>, UnitError>
    where
        // Not `AsyncFnMut(&mut UnitOfWork)`: rustc cannot prove that its futures are `Send`
        // (rust-lang/rust#96865).
        F: Future<Output = Result<T, UnitError>>,
    {
        let began = Instant::now();
        let Some(_under_way) = self.begin_work() else { return Err(AppendError::Closed.into()) };
        let mut open_session = None;
        let ended = self.repeat(began, &mut work, &mut open_session).await;
        end(&mut open_session).await;
        let metrics = &self.parts().metrics;
        match &ended {
            Ok(UnitOutcome::Committed { appended, .. } | UnitOutcome::Replayed { appended }) => {
                for appended in appended {
                    metrics.answered(began, Ok(appended));
                    let span = debug_span!("append", aggregate = appended.aggregate_id);
                    span.in_scope(|| log_answer(Ok(appended)));
                }
            }
            Err(UnitError::Append(error)) => {
                metrics.answered(began, Err(error));
                log_answer(Err(error));
            }
            Err(_) => {}
        }
        ended
    }

    async fn repeat<T, F>(
        &self,
        began: Instant,
        work: &mut impl FnMut(OwnedMutexGuard<UnitOfWork>) -> F,
        open_session: &mut Option<ClientSession>,
    ) -> Result<UnitOutcome<T>, UnitError>
    where
        F: Future<Output = Result<T, UnitError>>,
    {
        let mut failures = 0;
        loop {
            match self.run(work, open_session).await? {
                RunResult::Over(outcome) => return Ok(outcome),
                RunResult::Unready(name) => self.make_ready(&name).await?,
                RunResult::Again(error) if began.elapsed() > RETRY_TIMEOUT => return Err(error),
                RunResult::Again(_) => {
                    failures += 1;
                    tokio::time::sleep(backoff(failures)).await;
                }
            }
        }
    }

    /// Runs the work once. `open_session` is the session of a transaction that may be open on the server,
    /// before and after.
    async fn run<T, F>(
        &self,
        work: &mut impl FnMut(OwnedMutexGuard<UnitOfWork>) -> F,
        open_session: &mut Option<ClientSession>,
    ) -> Result<RunResult<T>, UnitError>
    where
        F: Future<Output = Result<T, UnitError>>,
    {
        let parts = self.parts();
        if let Err(error) = parts.clock.keep_fresh(parts.outbox.database()).await {
            return retry_or_fail(error);
        }
        let unit = match begin(&parts.context, open_session).await {
            Ok(session) => Arc::new(Mutex::new(UnitOfWork::new(parts.clone(), session))),
            Err(error) => return retry_or_fail(error),
        };
        let lent = unit.clone().lock_owned().await;
        let worked = tokio::time::timeout(WORK_TIMEOUT, work(lent)).await;
        let worked = worked.unwrap_or_else(|_| {
            let action = "run a unit of work";
            Err(unavailable(StoreError::TimedOut { action, limit: WORK_TIMEOUT }))
        });
        let Some(mut unit) = Arc::into_inner(unit).map(Mutex::into_inner) else {
            return Err(UnitError::abandon("the work ended while its unit is still in use"));
        };
        let ran = self.conclude(&mut unit, worked).await;
        if may_be_open(&ran) {
            *open_session = Some(unit.into_session());
        }
        ran
    }

    /// Commits the unit if the work succeeded, else aborts it.
    async fn conclude<T>(
        &self,
        unit: &mut UnitOfWork,
        worked: Result<T, UnitError>,
    ) -> Result<RunResult<T>, UnitError> {
        match unit.interruption() {
            Some(Interruption::Unready(name)) => {
                unit.abort().await;
                return Ok(RunResult::Unready(name));
            }
            Some(Interruption::Store(error)) => {
                unit.abort().await;
                return retry_or_fail(error);
            }
            None => {}
        }
        let failure = match worked {
            Ok(_) if unit.is_replay() => UnitFailure::Guarded,
            Ok(value) => match unit.write().await {
                Ok(()) => {
                    unit.wake();
                    let appended = unit.answers();
                    return Ok(RunResult::Over(UnitOutcome::Committed { value, appended }));
                }
                Err(failure) => failure,
            },
            Err(error) => UnitFailure::Work(error),
        };
        unit.abort().await;
        let error = match failure {
            UnitFailure::Store(error) => return retry_or_fail(error),
            UnitFailure::Refused(error) => return Err(error),
            UnitFailure::Work(error) if is_transient(&error) => return Ok(RunResult::Again(error)),
            UnitFailure::Work(error) => Some(error),
            UnitFailure::Guarded => None,
        };
        // An index has refused an append: the prior one exists, whatever the primary shows.
        let certainty = if error.is_none() { Certainty::Confirmed } else { Certainty::Majority };
        let prior = match unit.find_prior(certainty).await {
            Ok(prior) => prior,
            Err(again) => return error.map_or_else(|| retry_or_fail(again), Err),
        };
        match (prior, error) {
            (PriorUnit::All(appended), _) => {
                Ok(RunResult::Over(UnitOutcome::Replayed { appended }))
            }
            (_, Some(error)) => Err(error),
            (PriorUnit::Some(aggregate_id), None) => {
                Err(AppendError::DuplicateRequest { aggregate_id }.into())
            }
            // Another transaction came first, and was aborted or has another version now.
            (PriorUnit::Nothing, None) => Ok(RunResult::Again(contended())),
        }
    }

    async fn make_ready(&self, name: &AggregateName) -> Result<(), UnitError> {
        let made = self.context().ready(CollectionKind::Events, name.as_str()).await;
        made.map_err(|error| AppendError::Schema(Arc::new(error)))?;
        Ok(())
    }
}

fn retry_or_fail<T>(error: StoreError) -> Result<RunResult<T>, UnitError> {
    if is_retryable(&error) {
        Ok(RunResult::Again(unavailable(error)))
    } else {
        Err(unavailable(error))
    }
}

fn unavailable(error: StoreError) -> UnitError {
    AppendError::Unavailable(Arc::new(error)).into()
}

fn contended() -> UnitError {
    let detail = format!("concurrent appends conflicted repeatedly for {RETRY_TIMEOUT:?}");
    unavailable(StoreError::Answer { action: "append events", detail })
}

/// Whether the transaction may still be open after the driver's abort.
fn may_be_open<T>(ran: &Result<RunResult<T>, UnitError>) -> bool {
    use AppendError::{Unavailable, Unknown};
    matches!(ran, Ok(RunResult::Again(_)) | Err(UnitError::Append(Unavailable(_) | Unknown(_))))
}

fn is_transient(error: &UnitError) -> bool {
    matches!(error, UnitError::Own(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR))
}
