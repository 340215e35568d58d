//! The event store, for applications and the HTTP API.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use postrider_outbox::collections::Collections;
use postrider_outbox::wakeup::Wakeup;
use postrider_store::text::chain;
use postrider_store::{ServerClock, StoreError};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, debug};

use crate::append::{Append, Appended};
use crate::context::{CollectionKind, Context};
use crate::error::AppendError;
use crate::lane::{Lane, QueuedAppend, StoreParts};
use crate::metrics::{AppendMetrics, outcome};
use crate::prepared::PreparedAppend;

/// The number of lanes: while one waits for a commit, another one fills its transaction.
const LANE_COUNT: usize = 2;

/// The most appends that wait in a lane: further ones are refused at once.
const MAX_LANE_APPENDS: usize = 2048;

/// The most that all waiting appends take, in units of [`UNIT_BYTES`]: 128 MiB.
const MAX_QUEUED_UNITS: usize = 128 << 10;

/// The unit of [`MAX_QUEUED_UNITS`].
const UNIT_BYTES: usize = 1 << 10;

/// Appends events, and their outbox records in the same transaction; reads events.
///
/// ```no_run
/// use bson::doc;
/// use futures_util::TryStreamExt;
/// use postrider_events::context::{Context, ContextSettings};
/// use postrider_events::{Append, EventStore, Expected, NewEvent, Range};
/// use postrider_events::names::{AggregateId, AggregateName};
/// use postrider_outbox::collections::Collections;
///
/// # async fn run(client: mongodb::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Collections::new(client.clone(), "shop", "");
/// let store = EventStore::new(Context::new(client, ContextSettings::new("shop")), outbox);
/// let (order, id) = (AggregateName::new("order")?, AggregateId::new("order-7")?);
///
/// let created = NewEvent::new("OrderCreated", doc! { "total": 120 });
/// let append = Append::new(order.clone(), id.clone(), "request-1", vec![created]);
/// let appended = store.append(append.expecting(Expected::None)).await?;
/// assert_eq!(appended.version, 1);
///
/// let mut streams = Box::pin(store.load(&order, &id, &Range::default()).await?);
/// while let Some(stream) = streams.try_next().await? {
///     println!("version {}: {:?}", stream.version, stream.body);
/// }
/// # Ok(())
/// # }
/// ```
///
/// Clones share one store. Under load, appends at the same time share a transaction. Each has its own
/// answer; when it is answered, a majority has it.
#[derive(Clone)]
pub struct EventStore {
    inner: Arc<Inner>,
}

struct Inner {
    lanes: Vec<mpsc::Sender<QueuedAppend>>,
    hasher: RandomState,
    queue_memory: Arc<Semaphore>,
    parts: StoreParts,
    closing: CancellationToken,
    /// Cancelled when a lane has panicked.
    broken: CancellationToken,
    /// Notified when an erasure has begun that is not complete.
    erasure_begun: Notify,
    tasks: TaskTracker,
}

impl EventStore {
    /// A store of this context with an outbox of the same client. The outbox's schema must exist
    /// ([`schema::apply`](postrider_outbox::schema::apply())); that of an aggregate is created before its
    /// first append. Must be called within a Tokio runtime.
    pub fn new(context: Context, outbox: Collections) -> Self {
        Self::open(context, outbox, None)
    }

    /// The same, and appends wake a relay in this process.
    pub fn with_wakeup(context: Context, outbox: Collections, wake: Wakeup) -> Self {
        Self::open(context, outbox, Some(wake))
    }

    fn open(context: Context, outbox: Collections, wake: Option<Wakeup>) -> Self {
        let parts = StoreParts {
            context,
            outbox,
            clock: Arc::new(ServerClock::default()),
            wake,
            metrics: AppendMetrics::new(),
        };
        let (closing, tasks) = (CancellationToken::new(), TaskTracker::new());
        let broken = CancellationToken::new();
        let lane = |_| {
            let (sender, queue) = mpsc::channel(MAX_LANE_APPENDS);
            let (lane, closing) = (Lane::new(parts.clone()), closing.clone());
            // A panic cancels `broken`.
            let guard = broken.clone().drop_guard();
            tasks.spawn(async move {
                lane.run(queue, closing).await;
                guard.disarm();
            });
            sender
        };
        let lanes = (0..LANE_COUNT).map(lane).collect();
        tasks.close();
        let queue_memory = Arc::new(Semaphore::new(MAX_QUEUED_UNITS));
        let hasher = RandomState::new();
        let erasure_begun = Notify::new();
        let inner = Arc::new(Inner {
            lanes,
            hasher,
            queue_memory,
            parts,
            closing,
            broken,
            erasure_begun,
            tasks,
        });
        Self { inner }
    }

    /// Appends, in one transaction with one outbox record for each event.
    ///
    /// A request that was appended before gets the first answer. Dropping the call does not cancel the
    /// append.
    ///
    /// # Errors
    ///
    /// [`AppendError`]: nothing was written, except with [`AppendError::Unknown`].
    pub async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let since = Instant::now();
        let span = append.span();
        let appending = async {
            let enqueued = match PreparedAppend::new(append).map_err(AppendError::Invalid) {
                Ok(append) => self.enqueue(append, since).await,
                Err(error) => Err(error),
            };
            let answer = self.answered(enqueued, since).await;
            log_answer(answer.as_ref());
            answer
        };
        appending.instrument(span).await
    }

    /// The same for an append that was checked.
    pub(super) async fn append_prepared(
        &self,
        append: PreparedAppend,
        since: Instant,
    ) -> Result<Appended, AppendError> {
        let span = append.append.span();
        let appending = async {
            let answer = self.answered(self.enqueue(append, since).await, since).await;
            log_answer(answer.as_ref());
            answer
        };
        appending.instrument(span).await
    }

    /// Waits for the answer of a lane.
    async fn answered(
        &self,
        enqueued: Result<oneshot::Receiver<Result<Appended, AppendError>>, AppendError>,
        since: Instant,
    ) -> Result<Appended, AppendError> {
        match enqueued {
            // The lane counts its answers. It may have panicked before this one.
            Ok(answer) => answer.await.unwrap_or_else(|_| Err(unanswered())),
            Err(error) => {
                self.inner.parts.metrics.answered(since, Err(&error));
                Err(error)
            }
        }
    }

    async fn enqueue(
        &self,
        append: PreparedAppend,
        since: Instant,
    ) -> Result<oneshot::Receiver<Result<Appended, AppendError>>, AppendError> {
        let units = u32::try_from(append.bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let permit = self.inner.queue_memory.clone().try_acquire_many_owned(units);
        let permit = permit.map_err(|_| AppendError::Overloaded)?;
        let making = self.context().ready(CollectionKind::Events, append.append.name.as_str());
        making.await.map_err(|error| AppendError::Schema(Arc::new(error)))?;

        let hash = self.inner.hasher.hash_one(append.aggregate());
        let lane = &self.inner.lanes[usize::try_from(hash).unwrap_or(0) % LANE_COUNT];
        let (answer, answered) = oneshot::channel();
        lane.try_send(QueuedAppend { append, since, answer, _permit: permit }).map_err(
            |error| match error {
                mpsc::error::TrySendError::Full(_) => AppendError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => AppendError::Closed,
            },
        )?;
        Ok(answered)
    }

    /// Resolves when a lane has panicked: its appends are refused from then on, and the process should
    /// end.
    pub async fn broken(&self) {
        self.inner.broken.cancelled().await;
    }

    /// Refuses further appends, and resolves when all waiting ones are answered and all begun units of
    /// work have ended.
    pub async fn close(&self) {
        self.inner.closing.cancel();
        self.inner.tasks.wait().await;
    }

    /// A token that `close` waits for; `None` once the store is closed.
    pub(super) fn begin_work(&self) -> Option<TaskTrackerToken> {
        // Taken before the check: a close in between waits for it.
        let token = self.inner.tasks.token();
        (!self.inner.closing.is_cancelled()).then_some(token)
    }

    pub(super) fn erasure_begun(&self) -> &Notify {
        &self.inner.erasure_begun
    }

    pub(super) fn parts(&self) -> &StoreParts {
        &self.inner.parts
    }

    /// The context of this store.
    pub fn context(&self) -> &Context {
        &self.inner.parts.context
    }
}

/// Logs the answer of an append in its span.
pub(super) fn log_answer(answer: Result<&Appended, &AppendError>) {
    debug!(
        outcome = outcome(answer),
        version = answer.ok().map(|appended| appended.version),
        error = answer.err().map(|error| chain(error)),
        "answered an append"
    );
}

fn unanswered() -> AppendError {
    let detail = "its lane panicked".to_owned();
    AppendError::Unknown(Arc::new(StoreError::Answer { action: "append events", detail }))
}
