//! Follows the feed with one generation: reads pages, applies batches, retries.
//!
//! Several processes may run it. Each batch moves the checkpoint from the value that was read, so an
//! event is applied once. A process whose checkpoint another one has moved stands by, until it no
//! longer moves.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use mongodb::ClientSession;
use postrider_events::feed::{FeedError, FeedPage};
use postrider_store::text::chain;
use postrider_store::{StoreError, limits, within};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::appends::{AppendCutter, Batch};
use crate::checkpoint::fields::FAILURE;
use crate::checkpoint::{Checkpoint, Failure, checkpoints};
use crate::error::{ApplyError, ProjectionError, aggregate_of};
use crate::name::{Generation, GenerationCollections};
use crate::projector::Projector;
use crate::read_model::ReadModel;
use crate::retry::RetryPolicy;
use crate::transaction::{BatchOutcome, apply};

/// How long the checkpoint must not move before a process that stands by applies events itself.
const STANDBY_PAUSE: Duration = Duration::from_secs(1);

/// The pause while the feed does not exist yet.
const MISSING_PAUSE: Duration = Duration::from_secs(1);

/// Why the runner reads the checkpoint again.
enum Interruption {
    /// It was asked to stop.
    Stopped,
    /// Another process has moved the checkpoint.
    Displaced,
    /// MongoDB failed; the outcome of the last batch may be unknown.
    Failed(StoreError),
    /// No process has created the feed yet.
    NoFeed,
}

impl ReadModel {
    /// Follows the feed with the live generation, until `stop` or an error. Creates generation 1 at the
    /// first start.
    ///
    /// Any number of processes may run it: one applies events, the others stand by. A process that runs
    /// when another generation becomes live continues with its own, until that is dropped.
    ///
    /// # Errors
    ///
    /// [`ProjectionError`]. While MongoDB is unreachable it waits, and returns no error.
    pub async fn run(
        &self,
        projector: &impl Projector,
        stop: CancellationToken,
    ) -> Result<(), ProjectionError> {
        let live = tokio::select! {
            live = self.retry(|| self.create()) => live?.live,
            () = stop.cancelled() => return Ok(()),
        };
        self.run_generation(live, projector, stop).await
    }

    /// The same with one generation: with one that is being built, it applies all events from the
    /// first one, and then follows the feed.
    ///
    /// # Errors
    ///
    /// As [`run`](Self::run).
    pub async fn run_generation(
        &self,
        generation: Generation,
        projector: &impl Projector,
        stop: CancellationToken,
    ) -> Result<(), ProjectionError> {
        let collections = self.collections(generation);
        Runner { model: self, projector, collections, stop }.run().await
    }
}

/// Applies the feed to one generation.
struct Runner<'a, P> {
    model: &'a ReadModel,
    projector: &'a P,
    collections: GenerationCollections,
    stop: CancellationToken,
}

impl<P: Projector> Runner<'_, P> {
    /// Runs until it is stopped, or an error stops it.
    async fn run(self) -> Result<(), ProjectionError> {
        let generation = self.collections.generation;
        let name = self.collections.name.as_str();
        let prepared = self.projector.prepare(&self.collections).await;
        prepared.map_err(|error| ProjectionError::prepare(generation, error))?;
        info!(read_model = name, generation = generation.0, "reading the feed");
        let mut failures = 0_u32;
        loop {
            let before = self.model.checkpoint(generation).await;
            let (interruption, has_advanced) = match before {
                Err(ProjectionError::Store(error)) if !error.is_permanent() => {
                    (Interruption::Failed(error), false)
                }
                Err(error) => return Err(error),
                Ok(checkpoint) => {
                    checkpoint.check(&self.model.made_with())?;
                    let mut at = checkpoint.clone();
                    let interruption = self.follow(&mut at).await?;
                    (interruption, at.position > checkpoint.position)
                }
            };
            failures = if has_advanced { 0 } else { failures + 1 };
            let pause = match interruption {
                Interruption::Stopped => return Ok(()),
                Interruption::Displaced => {
                    debug!(read_model = name, "another process applies events; standing by");
                    self.stand_by().await;
                    failures = 0;
                    continue;
                }
                Interruption::Failed(error) => {
                    let error = chain(&error);
                    warn!(read_model = name, error, "failed to advance; retrying");
                    RetryPolicy::ENDLESS.pause_before(failures.saturating_sub(1))
                }
                Interruption::NoFeed => Some(MISSING_PAUSE),
            };
            if self.is_stopped_within(pause.unwrap_or(STANDBY_PAUSE)).await {
                return Ok(());
            }
        }
    }

    /// Applies pages behind the checkpoint, and moves it.
    async fn follow(&self, checkpoint: &mut Checkpoint) -> Result<Interruption, ProjectionError> {
        let mut session = match self.session().await {
            Ok(session) => session,
            Err(error) => return Ok(Interruption::Failed(error)),
        };
        let feed = &self.model.feed;
        let filter = checkpoint.made_with.filter.clone();
        let pages = feed.pages(checkpoint.feed.clone(), checkpoint.position, filter);
        let mut pages = Box::pin(pages);
        let mut cutter = AppendCutter::default();
        loop {
            let page = match self.next_page(&mut pages).await {
                Some(Ok(page)) => page,
                Some(Err(FeedError::Store(error))) if !error.is_permanent() => {
                    return Ok(Interruption::Failed(error));
                }
                Some(Err(FeedError::Missing)) => return Ok(Interruption::NoFeed),
                Some(Err(error)) => return Err(checkpoint.unreadable(error)),
                None if self.stop.is_cancelled() => return Ok(Interruption::Stopped),
                None => {
                    let detail = "its reader ended unexpectedly".to_owned();
                    let error = StoreError::Answer { action: "read the feed", detail };
                    return Ok(Interruption::Failed(error));
                }
            };
            let mut batches: VecDeque<Batch> =
                cutter.add(page, self.model.settings.batch_events).into();
            while let Some(batch) = batches.pop_front() {
                if self.stop.is_cancelled() {
                    return Ok(Interruption::Stopped);
                }
                match self.apply(checkpoint, batch, &mut session, &mut batches).await? {
                    None => {}
                    Some(interruption) => return Ok(interruption),
                }
            }
        }
    }

    /// The next page; `None` when it was asked to stop, or the reader of the feed has panicked.
    async fn next_page(
        &self,
        pages: &mut (impl Stream<Item = Result<FeedPage, FeedError>> + Unpin),
    ) -> Option<Result<FeedPage, FeedError>> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            page = pages.next() => page,
        }
    }

    /// Applies a batch until it is committed. Where the projector fails with one of several appends, the
    /// parts of the batch come next.
    async fn apply(
        &self,
        checkpoint: &mut Checkpoint,
        batch: Batch,
        session: &mut ClientSession,
        next: &mut VecDeque<Batch>,
    ) -> Result<Option<Interruption>, ProjectionError> {
        if batch.appends.is_empty() && batch.next <= checkpoint.position {
            return Ok(None);
        }
        let (mut conflicts, mut attempts) = (0_u32, 0_u32);
        loop {
            let applying = apply(self.projector, &self.collections, checkpoint, &batch, session);
            let pause = match applying.await {
                BatchOutcome::Committed => {
                    checkpoint.feed = Some(batch.feed);
                    checkpoint.position = batch.next;
                    return Ok(None);
                }
                BatchOutcome::Displaced => return Ok(Some(Interruption::Displaced)),
                BatchOutcome::Unknown(error) => return Ok(Some(Interruption::Failed(error))),
                BatchOutcome::Again(error) if error.is_permanent() => return Err(error.into()),
                BatchOutcome::Again(error) => {
                    let error = chain(&error);
                    debug!(error, "a transaction of the read model restarts");
                    conflicts += 1;
                    RetryPolicy::ENDLESS.pause_before(conflicts - 1).unwrap_or_default()
                }
                BatchOutcome::Failed { at, .. } if batch.appends.len() > 1 => {
                    for part in batch.split_at(at).into_iter().rev() {
                        next.push_front(part);
                    }
                    return Ok(None);
                }
                BatchOutcome::Failed { error, .. } => {
                    attempts += 1;
                    let append = &batch.appends[0];
                    let pause = self.model.settings.retry.pause_before(attempts - 1);
                    self.note(checkpoint, append, &error, attempts, pause.is_none()).await;
                    match pause {
                        Some(pause) => pause,
                        None => return Err(error.into_poison(append, attempts)),
                    }
                }
            };
            if self.is_stopped_within(pause).await {
                return Ok(Some(Interruption::Stopped));
            }
        }
    }

    /// Stores with the checkpoint that the projector failed, for operators.
    async fn note(
        &self,
        checkpoint: &Checkpoint,
        append: &[postrider_events::feed::FeedEvent],
        error: &ApplyError,
        attempts: u32,
        is_final: bool,
    ) {
        let (position, event) = error.place(append);
        let failure = Failure {
            position,
            event,
            aggregate: aggregate_of(append),
            detail: error.detail(),
            attempts: attempts.into(),
            is_final,
        };
        let Failure { position, event, aggregate, detail, .. } = &failure;
        warn!(position, event, aggregate, detail, attempts, is_final, "a projector failed");
        let stored = checkpoints(&self.collections.database);
        let unmoved = checkpoint.unmoved(&self.collections.name);
        let set = bson::doc! { "$set": { FAILURE: failure.document() } };
        let noting = stored.update_one(unmoved, set).into_future();
        let noted = within("store a failure", limits::BATCH_TIMEOUT, noting).await;
        if let Err(error) = noted {
            debug!(error = chain(&error), "failed to store a failure");
        }
    }

    /// Waits until the checkpoint has not moved for a while, or it was asked to stop.
    async fn stand_by(&self) {
        let mut last = None;
        loop {
            let pause = STANDBY_PAUSE.mul_f64(rand::random_range(1.0..1.5));
            if self.is_stopped_within(pause).await {
                return;
            }
            match self.model.checkpoint(self.collections.generation).await {
                Ok(checkpoint) if last != Some(checkpoint.position) => {
                    last = Some(checkpoint.position);
                }
                // The caller reads it again, and judges errors.
                _ => return,
            }
        }
    }

    async fn is_stopped_within(&self, pause: Duration) -> bool {
        tokio::time::timeout(pause, self.stop.cancelled()).await.is_ok()
    }

    async fn session(&self) -> Result<ClientSession, StoreError> {
        let starting = self.collections.database.client().start_session();
        let starting = starting.causal_consistency(false).into_future();
        within("start a session", limits::BATCH_TIMEOUT, starting).await
    }
}
