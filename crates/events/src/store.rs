//! The event store: what applications, and the HTTP API, append to and read from.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use postrider_outbox::collections::Collections;
use postrider_outbox::wakeup::Wakeup;
use postrider_store::text::chain;
use postrider_store::{ServerClock, StoreError};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, debug};

use crate::append::{Append, Appended};
use crate::context::{Context, Kind};
use crate::error::AppendError;
use crate::lane::{Lane, Shared, Waiting};
use crate::metrics::{AppendMetrics, outcome};
use crate::prepared::Prepared;

/// Transactions under way at once. While one waits for its commit, the other is filled.
const LANES: usize = 2;

/// Appends that wait in a lane; what comes beyond is turned away at once.
const QUEUE: usize = 2048;

/// What all that wait may take, in units of [`UNIT`] bytes: 128 MiB.
const ROOM: usize = 128 << 10;

/// See [`ROOM`].
const UNIT: usize = 1 << 10;

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
/// Clones are the same store. Under load, appends that come at the same time share a transaction;
/// each is answered by itself, and once it is answered a majority has it.
#[derive(Clone)]
pub struct EventStore {
    inner: Arc<Inner>,
}

struct Inner {
    lanes: Vec<mpsc::Sender<Waiting>>,
    hasher: RandomState,
    room: Arc<Semaphore>,
    shared: Shared,
    closing: CancellationToken,
    /// A lane has ended before it was to.
    broken: CancellationToken,
    tasks: TaskTracker,
}

impl EventStore {
    /// A store of this context, whose records go into this outbox, on the same client. Its schema
    /// is to be there ([`schema::apply`](postrider_outbox::schema::apply())); that of an aggregate is made
    /// before its first append. Must be called within a Tokio runtime.
    pub fn new(context: Context, outbox: Collections) -> Self {
        Self::open(context, outbox, None)
    }

    /// The same, and what is appended wakes a relay in this process.
    pub fn waking(context: Context, outbox: Collections, wake: Wakeup) -> Self {
        Self::open(context, outbox, Some(wake))
    }

    fn open(context: Context, outbox: Collections, wake: Option<Wakeup>) -> Self {
        let shared = Shared {
            context,
            outbox,
            clock: Arc::new(ServerClock::default()),
            wake,
            metrics: AppendMetrics::new(),
        };
        let (closing, tasks) = (CancellationToken::new(), TaskTracker::new());
        let broken = CancellationToken::new();
        let lane = |_| {
            let (sender, queue) = mpsc::channel(QUEUE);
            let (lane, closing) = (Lane::new(shared.clone()), closing.clone());
            // A panic cancels it on its way out.
            let guard = broken.clone().drop_guard();
            tasks.spawn(async move {
                lane.run(queue, closing).await;
                guard.disarm();
            });
            sender
        };
        let lanes = (0..LANES).map(lane).collect();
        tasks.close();
        let room = Arc::new(Semaphore::new(ROOM));
        let hasher = RandomState::new();
        let inner = Arc::new(Inner { lanes, hasher, room, shared, closing, broken, tasks });
        Self { inner }
    }

    /// Appends, in one transaction with one outbox record for each event.
    ///
    /// A request that was appended before is answered with what came of it then. Whoever drops the
    /// call does not take the append back.
    ///
    /// # Errors
    ///
    /// [`AppendError`]: nothing was written, but where it is [`AppendError::Unknown`].
    pub async fn append(&self, append: Append) -> Result<Appended, AppendError> {
        let since = Instant::now();
        let span = append.span();
        let appending = async {
            let answer = match self.enqueue(append, since).await {
                // The lane counts what it answers. One that has panicked may have been in the middle of it.
                Ok(answer) => answer.await.unwrap_or_else(|_| Err(unanswered())),
                Err(error) => {
                    self.inner.shared.metrics.answered(since, Err(&error));
                    Err(error)
                }
            };
            log_answer(answer.as_ref());
            answer
        };
        appending.instrument(span).await
    }

    async fn enqueue(
        &self,
        append: Append,
        since: Instant,
    ) -> Result<oneshot::Receiver<Result<Appended, AppendError>>, AppendError> {
        let append = Prepared::new(append).map_err(AppendError::Invalid)?;
        let units = u32::try_from(append.bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let room = self.inner.room.clone().try_acquire_many_owned(units);
        let room = room.map_err(|_| AppendError::Overloaded)?;
        let making = self.context().ready(Kind::Events, append.append.name.as_str());
        making.await.map_err(|error| AppendError::Schema(Arc::new(error)))?;

        let hash = self.inner.hasher.hash_one(append.aggregate());
        let lane = &self.inner.lanes[usize::try_from(hash).unwrap_or(0) % LANES];
        let (answer, answered) = oneshot::channel();
        lane.try_send(Waiting { append, since, answer, _room: room }).map_err(
            |error| match error {
                mpsc::error::TrySendError::Full(_) => AppendError::Overloaded,
                mpsc::error::TrySendError::Closed(_) => AppendError::Closed,
            },
        )?;
        Ok(answered)
    }

    /// Resolves when a part of the store has ended by a panic: what would go there is refused from
    /// then on, and the process should end.
    pub async fn broken(&self) {
        self.inner.broken.cancelled().await;
    }

    /// Takes no more appends, and resolves when all that wait are answered, and units of work that
    /// have begun are over.
    pub async fn close(&self) {
        self.inner.closing.cancel();
        self.inner.tasks.wait().await;
    }

    /// Leave to begin a unit of work, which a close waits for; none once it is closed.
    pub(super) fn enter(&self) -> Option<TaskTrackerToken> {
        // Taken before looking: a close that comes between waits.
        let token = self.inner.tasks.token();
        (!self.inner.closing.is_cancelled()).then_some(token)
    }

    pub(super) fn shared(&self) -> &Shared {
        &self.inner.shared
    }

    /// The context that it is of.
    pub fn context(&self) -> &Context {
        &self.inner.shared.context
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
    let detail = "its lane has ended by a panic".to_owned();
    AppendError::Unknown(Arc::new(StoreError::Answer { action: "append events", detail }))
}
