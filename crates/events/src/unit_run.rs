//! Runs the work of a unit, until it is committed or can't be.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mongodb::ClientSession;
use mongodb::error::TRANSIENT_TRANSACTION_ERROR;
use postrider_store::StoreError;
use tokio::sync::{Mutex, OwnedMutexGuard};
use tracing::debug_span;

use crate::append::Appended;
use crate::context::Kind;
use crate::error::{AppendError, UnitError};
use crate::names::AggregateName;
use crate::store::{EventStore, log_answer};
use crate::transaction::{begin, end, passes, pause};
use crate::unit_of_work::{Interruption, Known, Trouble, UnitOfWork};

/// How long a unit is begun again where MongoDB, or others, stand in its way.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long the work may take: MongoDB ends a transaction by then (`transactionLifetimeLimitSeconds`).
const LONGEST: Duration = Duration::from_secs(60);

/// What came of a unit of work.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome<T> {
    /// A majority has all of it.
    Committed {
        /// What the work has answered.
        value: T,
        /// Of each append, in their order.
        appended: Vec<Appended>,
    },
    /// An earlier call has committed it: nothing was written now.
    Replayed {
        /// What that call was answered, as far as the work has come.
        appended: Vec<Appended>,
    },
}

/// What came of one run of the work.
enum Run<T> {
    Over(Outcome<T>),
    /// The collection is to be made first.
    Unready(AggregateName),
    /// The same again may succeed; else this is why not.
    Again(UnitError),
}

impl EventStore {
    /// The work's own reads and writes (by [`UnitOfWork::session`]), appends and plain outbox
    /// records in one transaction: all of it, or nothing.
    ///
    /// ```no_run
    /// # use bson::doc;
    /// # use mongodb::Collection;
    /// # use postrider_events::{Append, EventStore, Outcome, UnitError};
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
    ///     Outcome::Committed { value: version, .. } => println!("version {version}"),
    ///     Outcome::Replayed { appended } => println!("was there before: {appended:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// The work has the unit until it ends. It may run several times: before an aggregate's first append of all (its collection
    /// is made outside of the transaction), and whenever others or an election stand in the way,
    /// for half a minute. Whatever it does besides, it must be able to do again. It is to hand on
    /// the errors of the driver as they are, since what is transient is known by their labels.
    ///
    /// Work that fails, panics, takes longer than a minute or is dropped leaves nothing behind;
    /// dropped while it is being committed, it may be there.
    ///
    /// A unit whose requests an earlier call has appended is a [replay](Outcome::Replayed): what
    /// the work writes is rolled back, and what it answers is dropped. So is work that fails, as
    /// it must where it inserts the same document again, if all that it had appended before was
    /// there. A request id belongs to one unit: where only some of them were appended, it is an
    /// [`AppendError::DuplicateRequest`].
    ///
    /// # Errors
    ///
    /// [`UnitError`]: nothing was written, but where it is [`AppendError::Unknown`].
    pub async fn unit_of_work<T, F>(
        &self,
        mut work: impl FnMut(OwnedMutexGuard<UnitOfWork>) -> F,
    ) -> Result<Outcome<T>, UnitError>
    where
        // No `AsyncFnMut(&mut UnitOfWork)`: no compiler of today knows of its futures that they
        // can be sent to another thread (rust-lang/rust#96865).
        F: Future<Output = Result<T, UnitError>>,
    {
        let began = Instant::now();
        let Some(_under_way) = self.enter() else { return Err(AppendError::Closed.into()) };
        let mut left = None;
        let ended = self.repeat(began, &mut work, &mut left).await;
        end(&mut left).await;
        let metrics = &self.shared().metrics;
        match &ended {
            Ok(Outcome::Committed { appended, .. } | Outcome::Replayed { appended }) => {
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
        left: &mut Option<ClientSession>,
    ) -> Result<Outcome<T>, UnitError>
    where
        F: Future<Output = Result<T, UnitError>>,
    {
        let mut failures = 0;
        loop {
            match self.run(work, left).await? {
                Run::Over(outcome) => return Ok(outcome),
                Run::Unready(name) => self.make_ready(&name).await?,
                Run::Again(error) if began.elapsed() > PATIENCE => return Err(error),
                Run::Again(_) => {
                    failures += 1;
                    tokio::time::sleep(pause(failures)).await;
                }
            }
        }
    }

    /// Runs the work once, in the session that is `left`, if there is one. Afterwards `left` is the
    /// session of a transaction that may still be open on the server.
    async fn run<T, F>(
        &self,
        work: &mut impl FnMut(OwnedMutexGuard<UnitOfWork>) -> F,
        left: &mut Option<ClientSession>,
    ) -> Result<Run<T>, UnitError>
    where
        F: Future<Output = Result<T, UnitError>>,
    {
        let shared = self.shared();
        if let Err(error) = shared.clock.keep_fresh(shared.outbox.database()).await {
            return judged(error);
        }
        let unit = match begin(&shared.context, left).await {
            Ok(session) => Arc::new(Mutex::new(UnitOfWork::new(shared.clone(), session))),
            Err(error) => return judged(error),
        };
        let lent = unit.clone().lock_owned().await;
        let worked = tokio::time::timeout(LONGEST, work(lent)).await;
        let worked = worked.unwrap_or_else(|_| {
            let action = "do a unit of work";
            Err(unavailable(StoreError::TimedOut { action, limit: LONGEST }))
        });
        let Some(mut unit) = Arc::into_inner(unit).map(Mutex::into_inner) else {
            return Err(UnitError::abandon("the work has ended, and its unit is still in use"));
        };
        let ran = self.conclude(&mut unit, worked).await;
        if may_be_open(&ran) {
            *left = Some(unit.into_session());
        }
        ran
    }

    /// Writes and commits the unit of work that has succeeded; takes back any other.
    async fn conclude<T>(
        &self,
        unit: &mut UnitOfWork,
        worked: Result<T, UnitError>,
    ) -> Result<Run<T>, UnitError> {
        match unit.interruption() {
            Some(Interruption::Unready(name)) => {
                unit.abort().await;
                return Ok(Run::Unready(name));
            }
            Some(Interruption::Store(error)) => {
                unit.abort().await;
                return judged(error);
            }
            None => {}
        }
        let trouble = match worked {
            Ok(_) if unit.is_replay() => Trouble::Guarded,
            Ok(value) => match unit.write().await {
                Ok(()) => {
                    unit.wake();
                    let appended = unit.answers();
                    return Ok(Run::Over(Outcome::Committed { value, appended }));
                }
                Err(trouble) => trouble,
            },
            Err(error) => Trouble::Work(error),
        };
        unit.abort().await;
        let error = match trouble {
            Trouble::Store(error) => return judged(error),
            Trouble::Refused(error) => return Err(error),
            Trouble::Work(error) if is_transient(&error) => return Ok(Run::Again(error)),
            Trouble::Work(error) => Some(error),
            Trouble::Guarded => None,
        };
        let known = match unit.known().await {
            Ok(known) => known,
            Err(again) => return error.map_or_else(|| judged(again), Err),
        };
        match (known, error) {
            (Known::All(appended), _) => Ok(Run::Over(Outcome::Replayed { appended })),
            (_, Some(error)) => Err(error),
            (Known::Some(aggregate_id), None) => {
                Err(AppendError::DuplicateRequest { aggregate_id }.into())
            }
            // Another transaction came first, and was aborted, or has another version now.
            (Known::Nothing, None) => Ok(Run::Again(contended())),
        }
    }

    async fn make_ready(&self, name: &AggregateName) -> Result<(), UnitError> {
        let made = self.context().ready(Kind::Events, name.as_str()).await;
        made.map_err(|error| AppendError::Schema(Arc::new(error)))?;
        Ok(())
    }
}

fn judged<T>(error: StoreError) -> Result<Run<T>, UnitError> {
    match passes(&error) {
        true => Ok(Run::Again(unavailable(error))),
        false => Err(unavailable(error)),
    }
}

fn unavailable(error: StoreError) -> UnitError {
    AppendError::Unavailable(Arc::new(error)).into()
}

fn contended() -> UnitError {
    let detail = format!("others came first, again and again, for {PATIENCE:?}");
    unavailable(StoreError::Answer { action: "append events", detail })
}

/// Whether the driver's abort may not have ended the transaction.
fn may_be_open<T>(ran: &Result<Run<T>, UnitError>) -> bool {
    use AppendError::{Unavailable, Unknown};
    matches!(ran, Ok(Run::Again(_)) | Err(UnitError::Append(Unavailable(_) | Unknown(_))))
}

fn is_transient(error: &UnitError) -> bool {
    matches!(error, UnitError::Own(error) if error.contains_label(TRANSIENT_TRANSACTION_ERROR))
}
