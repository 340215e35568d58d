//! The worker of one push subscription: copies its events to the outbox, as long as it owns it.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use mongodb::ClientSession;
use postrider_outbox::collections::Collections;
use postrider_outbox::wakeup::{ScanHint, Wakeup};
use postrider_store::StoreError;
use postrider_store::text::chain;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use crate::feed::{Feed, FeedError, FeedState};
use crate::subscriptions::copy::{copy, skip};
use crate::subscriptions::error::SubscriptionError;
use crate::subscriptions::records::{copy_id, document, key};
use crate::subscriptions::store::{PUSH_LEASE, SubscriptionStore};
use crate::subscriptions::subscription::{Subscription, SubscriptionState};
use crate::subscriptions::waiting::WaitingRecords;

/// The most events of one transaction.
const MAX_BATCH: usize = 500;

/// The records of one transaction take about this much at most; one more is always copied.
const MAX_BATCH_BYTES: usize = 8 << 20;

/// The pause before waiting records are read again: the first, and the longest one.
const FULL_PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// How often the position is stored while the filter lets nothing pass.
const SKIP_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a page without events of this subscription, so that it does not read after each append.
const EMPTY_PAUSE: Duration = Duration::from_millis(10);

/// Why a worker ends.
#[derive(Debug)]
pub(super) enum WorkerEnd {
    /// The process is ending.
    Asked,
    /// The subscription was changed, or another daemon owns it.
    Replaced,
    /// Its position is of another feed.
    WrongFeed(String),
    /// The error, which a retry may resolve.
    Failed(SubscriptionError),
}

impl From<SubscriptionError> for WorkerEnd {
    fn from(error: SubscriptionError) -> Self {
        match error {
            SubscriptionError::LeaseLost(_) => Self::Replaced,
            SubscriptionError::Feed(
                error @ (FeedError::WrongFeed { .. } | FeedError::PositionAhead { .. }),
            ) => Self::WrongFeed(error.to_string()),
            error => Self::Failed(error),
        }
    }
}

impl From<StoreError> for WorkerEnd {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

/// What a worker uses.
#[derive(Clone)]
pub(super) struct WorkerParts {
    pub(super) store: SubscriptionStore,
    pub(super) outbox: Collections,
    pub(super) feed: Feed,
    pub(super) wake: Option<Wakeup>,
}

/// The worker of an owned subscription.
pub(super) struct PushWorker {
    parts: WorkerParts,
    owned: Subscription,
    /// The session of its transactions, which the next owner ends.
    session: Option<ClientSession>,
    /// The position up to which was read; behind the stored one where the filter let nothing pass.
    read_to: i64,
    stored_at: Instant,
    renewed_at: Instant,
}

impl PushWorker {
    pub(super) fn new(parts: WorkerParts, owned: Subscription, session: ClientSession) -> Self {
        let now = Instant::now();
        let read_to = owned.position;
        Self { parts, owned, session: Some(session), read_to, stored_at: now, renewed_at: now }
    }

    /// Copies events until `stop`, or until the subscription is not this worker's any more. `latest` is the
    /// subscription as the process has last read it; `None` once it is gone. Returns the session too.
    pub(super) async fn run(
        mut self,
        stop: CancellationToken,
        latest: watch::Receiver<Option<Subscription>>,
    ) -> (WorkerEnd, Option<ClientSession>) {
        let interruption = Interruption { stop, latest, owned: self.owned.clone() };
        let Err(end) = self.work(interruption).await;
        // (Without an answer the lease ends by itself.)
        let _ = self.parts.store.disown(&self.owned).await;
        (end, self.session)
    }

    async fn work(&mut self, mut interruption: Interruption) -> Result<Infallible, WorkerEnd> {
        let mut waiting = WaitingRecords::read(&self.parts.outbox, &self.owned.name).await?;
        loop {
            let room = tokio::select! {
                end = interruption.comes() => return Err(end),
                room = self.room(&mut waiting) => room?,
            };
            // Never cut off: the outcome of a transaction would be unknown.
            if self.step(&mut waiting, room).await? {
                continue;
            }
            tokio::select! {
                end = interruption.comes() => return Err(end),
                waited = self.wait() => waited?,
            }
        }
    }

    /// Waits until records can be copied, and returns how many.
    async fn room(&mut self, waiting: &mut WaitingRecords) -> Result<usize, WorkerEnd> {
        let limit = usize::try_from(self.owned.max_pending.unwrap_or(1)).unwrap_or(1).max(1);
        // Not one record at a time while the relay is the slower one.
        let wanted = MAX_BATCH.min(limit.div_ceil(2));
        let mut pause = FULL_PAUSE.0;
        loop {
            if limit.saturating_sub(waiting.len()) >= wanted {
                return Ok((limit - waiting.len()).min(MAX_BATCH));
            }
            let before = waiting.len();
            waiting.refresh().await?;
            if waiting.len() == before {
                self.keep().await?;
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(FULL_PAUSE.1);
            } else {
                pause = FULL_PAUSE.0;
            }
        }
    }

    /// Renews the lease when a third of it has passed.
    async fn keep(&mut self) -> Result<(), WorkerEnd> {
        if self.renewed_at.elapsed() < PUSH_LEASE / 3 {
            return Ok(());
        }
        if !self.parts.store.renew(&self.owned).await? {
            return Err(WorkerEnd::Replaced);
        }
        self.renewed_at = Instant::now();
        Ok(())
    }

    /// Reads a page and copies it. Returns whether there may be more.
    async fn step(&mut self, waiting: &mut WaitingRecords, room: usize) -> Result<bool, WorkerEnd> {
        let (feed, filter) = (&self.parts.feed, &self.owned.filter);
        let page = feed.page(Some(&self.owned.feed), self.read_to, filter, room).await;
        let page = page.map_err(|error| WorkerEnd::from(SubscriptionError::Feed(error)))?;
        if page.items.is_empty() {
            self.read_to = page.next;
            let is_due = self.stored_at.elapsed() >= SKIP_INTERVAL;
            // An error is gone once a page was read, though there was nothing to copy.
            if self.owned.error.is_some() || (is_due && self.read_to > self.owned.position) {
                self.moved(skip(&self.parts.store, &self.owned, self.read_to).await?);
            }
            return Ok(page.next < page.head);
        }
        let records: Result<Vec<_>, _> =
            page.items.iter().map(|event| document(&self.owned, event)).collect();
        let mut records = records?;
        let copied = fitting(&records);
        let (items, next) = if copied == records.len() {
            (page.items.as_slice(), page.next)
        } else {
            records.truncate(copied);
            (&page.items[..copied], page.items[copied - 1].position)
        };
        let WorkerParts { store, outbox, wake, .. } = &self.parts;
        let copying = (items, records.as_slice());
        let copied = copy(store, outbox, &self.owned, &mut self.session, copying, next).await;
        let moved = match copied {
            Err(error @ SubscriptionError::PageErased(_)) => {
                debug!(error = chain(&error), "reading a page again");
                // (After an election a page may show for a moment what was erased.)
                tokio::time::sleep(EMPTY_PAUSE).await;
                return Ok(true);
            }
            copied => copied?,
        };
        waiting.add(items.iter().map(|event| copy_id(&self.owned, event)));
        if let Some(wake) = wake {
            let keys = items.iter().map(|event| key(&self.owned.name, &event.aggregate_id));
            keys.for_each(|key| wake.at(ScanHint::of_key(&key)));
        }
        self.read_to = next;
        self.moved(moved);
        Ok(true)
    }

    fn moved(&mut self, owned: Subscription) {
        self.owned = owned;
        self.stored_at = Instant::now();
        self.renewed_at = self.stored_at;
    }

    /// Waits for events behind what was read.
    async fn wait(&mut self) -> Result<(), WorkerEnd> {
        tokio::time::sleep(EMPTY_PAUSE).await;
        loop {
            self.keep().await?;
            tokio::select! {
                () = self.parts.feed.wait_beyond(self.read_to) => return Ok(()),
                () = tokio::time::sleep(SKIP_INTERVAL) => {
                    if self.read_to > self.owned.position {
                        let skipped = skip(&self.parts.store, &self.owned, self.read_to).await?;
                        self.moved(skipped);
                    }
                    // A feed of another id may have no later position for long.
                    let state = self.parts.feed.state().await?;
                    let is_other = |state: &FeedState| {
                        state.feed != self.owned.feed || state.head < self.read_to
                    };
                    if state.as_ref().is_some_and(is_other) {
                        return Ok(());
                    }
                }
            }
        }
    }
}

/// How many of these records one transaction can take: at least one.
fn fitting(records: &[RawDocumentBuf]) -> usize {
    let mut bytes = 0;
    let fitting = records.iter().take_while(|record| {
        bytes += record.as_bytes().len();
        bytes <= MAX_BATCH_BYTES
    });
    fitting.count().max(1).min(records.len())
}

/// What ends a worker from outside.
struct Interruption {
    stop: CancellationToken,
    latest: watch::Receiver<Option<Subscription>>,
    /// The subscription as the worker has taken it.
    owned: Subscription,
}

impl Interruption {
    /// Resolves when the process ends, or when the subscription is not what the worker has taken.
    async fn comes(&mut self) -> WorkerEnd {
        let Self { stop, latest, owned } = self;
        let is_other = |latest: &Option<Subscription>| {
            latest.as_ref().is_none_or(|latest| {
                latest.uid != owned.uid
                    || latest.epoch != owned.epoch
                    || latest.state != SubscriptionState::Running
            })
        };
        tokio::select! {
            () = stop.cancelled() => WorkerEnd::Asked,
            // (Without a sender the process is ending.)
            _ = latest.wait_for(is_other) => WorkerEnd::Replaced,
        }
    }
}
