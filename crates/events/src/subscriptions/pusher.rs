//! The push subscriptions of a process: it owns those that no other daemon owns, and runs a worker for each.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use mongodb::ClientSession;
use postrider_outbox::collections::Collections;
use postrider_outbox::wakeup::Wakeup;
use postrider_store::StoreError;
use postrider_store::text::chain;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};
use uuid::Uuid;

use crate::context::Context;
use crate::feed::Feed;
use crate::subscriptions::lag::lag;
use crate::subscriptions::metrics::SubscriptionMetrics;
use crate::subscriptions::push::{PushWorker, WorkerEnd, WorkerParts};
use crate::subscriptions::store::SubscriptionStore;
use crate::subscriptions::subscription::{
    InvalidSubscription, Subscription, SubscriptionKind, SubscriptionState,
};

/// The interval of reads of all subscriptions.
const INTERVAL: Duration = Duration::from_secs(1);

/// The interval of reads for the metrics.
const MEASURE_INTERVAL: Duration = Duration::from_secs(5);

/// The pause after the first failure of a worker, and the longest one.
const FAILURE_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// The failures in a row after which the error is stored with the subscription.
const REPORTED_FAILURES: u32 = 2;

/// Runs the push subscriptions of a context in this process, and measures all subscriptions.
pub struct Pusher {
    parts: WorkerParts,
    /// Identifies this process to the others.
    owner: String,
    workers: HashMap<String, RunningWorker>,
    /// The sessions of workers that have ended. While a document may name one, the driver must not give it to
    /// other operations, which the next owner would end.
    sessions: HashMap<String, ClientSession>,
    failures: HashMap<String, Failures>,
    /// Those that cannot be read.
    invalid: Vec<InvalidSubscription>,
    metrics: SubscriptionMetrics,
}

/// A worker that runs.
struct RunningWorker {
    latest: watch::Sender<Option<Subscription>>,
    owned: Subscription,
    task: JoinHandle<(WorkerEnd, Option<ClientSession>)>,
}

/// The failures of a subscription in a row.
#[derive(Clone, Copy)]
struct Failures {
    count: u32,
    /// The position at the last one.
    position: i64,
    retry_at: Instant,
}

impl Pusher {
    /// The pusher of this context, whose records go to an outbox of the same client. They wake a relay in
    /// this process.
    pub fn new(context: &Context, feed: Feed, outbox: Collections, wake: Option<Wakeup>) -> Self {
        let store = SubscriptionStore::new(context);
        Self {
            parts: WorkerParts { store, outbox, feed, wake },
            owner: Uuid::new_v4().to_string(),
            workers: HashMap::new(),
            sessions: HashMap::new(),
            failures: HashMap::new(),
            invalid: Vec::new(),
            metrics: SubscriptionMetrics::default(),
        }
    }

    /// Runs until `stop`, then ends all workers.
    ///
    /// # Panics
    ///
    /// If a worker has panicked.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut measured_at: Option<Instant> = None;
        let mut outage = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = stop.cancelled() => break,
            }
            let is_measured = measured_at.is_none_or(|at| at.elapsed() >= MEASURE_INTERVAL);
            match self.tick(&stop, is_measured).await {
                Ok(()) => {
                    if outage.take().is_some() {
                        info!("reading subscriptions again");
                    }
                    if is_measured {
                        measured_at = Some(Instant::now());
                    }
                }
                Err(error) if outage.is_none() => {
                    outage = Some(());
                    warn!(error = chain(&error), "failed to read the subscriptions");
                }
                Err(_) => {}
            }
        }
        for (_, worker) in self.workers.drain() {
            drop(ended(worker.task).await);
        }
    }

    async fn tick(
        &mut self,
        stop: &CancellationToken,
        is_measured: bool,
    ) -> Result<(), StoreError> {
        let (mut found, mut invalid) = (Vec::new(), Vec::new());
        for subscription in self.parts.store.all().await? {
            match subscription {
                Ok(subscription) => found.push(subscription),
                Err(found) => invalid.push(found),
            }
        }
        self.note_invalid(invalid);
        self.collect_ended().await;
        for (name, worker) in &self.workers {
            let latest = found.iter().find(|found| found.name == *name).cloned();
            worker.latest.send_replace(latest);
        }
        for subscription in &found {
            self.own(subscription, stop).await?;
        }
        let names: HashSet<&str> = found.iter().map(|found| found.name.as_str()).collect();
        self.failures.retain(|name, _| names.contains(name.as_str()));
        self.sessions.retain(|name, _| names.contains(name.as_str()));
        self.metrics.retain(&names);
        if is_measured {
            self.measure(&found).await?;
        }
        Ok(())
    }

    /// Logs the subscriptions that cannot be read, each once while it stays invalid.
    fn note_invalid(&mut self, invalid: Vec<InvalidSubscription>) {
        for found in invalid.iter().filter(|found| !self.invalid.contains(found)) {
            let InvalidSubscription { name, detail, .. } = found;
            warn!(
                subscription = name,
                detail,
                remedy = "correct the document in postrider_subscriptions, or postrider subscriptions delete",
                "found an invalid subscription; it does not proceed, and erasures may wait for it"
            );
        }
        self.invalid = invalid;
    }

    /// Takes a push subscription that no daemon owns, and starts its worker.
    async fn own(
        &mut self,
        found: &Subscription,
        stop: &CancellationToken,
    ) -> Result<(), StoreError> {
        let is_waiting = |failures: &Failures| failures.retry_at > Instant::now();
        if found.kind != SubscriptionKind::Push
            || found.state != SubscriptionState::Running
            || found.is_owned()
            || self.workers.contains_key(&found.name)
            || self.failures.get(&found.name).is_some_and(is_waiting)
        {
            return Ok(());
        }
        let store = &self.parts.store;
        // A transaction of an owner that was killed would keep others from the document for a minute.
        store.end_session_of(found).await;
        let session = match self.sessions.remove(&found.name) {
            Some(session) => session,
            None => store.session().await?,
        };
        let owned = match store.own(&found.name, &self.owner, &session).await {
            Ok(Some(owned)) => owned,
            // (After an error it may be named nevertheless.)
            other => {
                self.sessions.insert(found.name.clone(), session);
                return other.map(drop);
            }
        };
        info!(
            subscription = owned.name,
            position = owned.position,
            epoch = owned.epoch,
            "this process now pushes the subscription"
        );
        let (latest, watched) = watch::channel(Some(owned.clone()));
        let worker = PushWorker::new(self.parts.clone(), owned.clone(), session);
        let task = tokio::spawn(worker.run(stop.clone(), watched));
        self.workers.insert(owned.name.clone(), RunningWorker { latest, owned, task });
        Ok(())
    }

    /// Collects the workers that have ended.
    async fn collect_ended(&mut self) {
        let names: Vec<String> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.task.is_finished())
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let Some(worker) = self.workers.remove(&name) else { continue };
            let position = worker.latest.borrow().as_ref().map_or(0, |latest| latest.position);
            let (end, session) = ended(worker.task).await;
            if let Some(session) = session {
                self.sessions.insert(name.clone(), session);
            }
            match end {
                WorkerEnd::Asked => {}
                WorkerEnd::Replaced => drop(self.failures.remove(&name)),
                WorkerEnd::WrongFeed(reason) => self.stop(&worker.owned, &reason).await,
                WorkerEnd::Failed(failure) => {
                    self.failed(&worker.owned, position, &chain(&failure)).await;
                }
            }
        }
    }

    /// Stops a subscription whose position is of another feed.
    async fn stop(&self, owned: &Subscription, reason: &str) {
        match self.parts.store.stop(owned, reason).await {
            Ok(true) => error!(
                subscription = owned.name,
                reason,
                remedy = "postrider subscriptions replay",
                "the subscription has stopped, since its position belongs to another feed"
            ),
            Ok(false) => {}
            // The next worker finds the same.
            Err(error) => warn!(error = chain(&error), "failed to stop a subscription"),
        }
    }

    async fn failed(&mut self, owned: &Subscription, position: i64, reason: &str) {
        let before = self.failures.get(&owned.name).filter(|before| before.position == position);
        let count = before.map_or(0, |before| before.count) + 1;
        let pause = FAILURE_PAUSE.0 * 2_u32.saturating_pow(count - 1);
        let pause = pause.min(FAILURE_PAUSE.1);
        warn!(
            subscription = owned.name,
            error = reason,
            retry_in = ?pause,
            "failed to push the subscription; retrying"
        );
        let failures = Failures { count, position, retry_at: Instant::now() + pause };
        self.failures.insert(owned.name.clone(), failures);
        if count >= REPORTED_FAILURES
            && let Err(error) = self.parts.store.report(owned, reason).await
        {
            warn!(error = chain(&error), "failed to store the error of a subscription");
        }
    }

    async fn measure(&mut self, found: &[Subscription]) -> Result<(), StoreError> {
        let state = self.parts.feed.state().await?;
        for subscription in found {
            // (What could not be measured is unknown.)
            let lag = lag(&self.parts.feed, subscription, state.as_ref()).await.unwrap_or(None);
            let is_up = match subscription.state {
                SubscriptionState::Running => Some(subscription.error.is_none()),
                SubscriptionState::WrongFeed => Some(false),
                SubscriptionState::Paused => None,
            };
            let is_pull = subscription.kind == SubscriptionKind::Pull;
            let parked = is_pull.then_some(subscription.parked);
            self.metrics.set(&subscription.name, lag, is_up, parked);
        }
        Ok(())
    }
}

/// Waits for the end of a worker, and passes its panic on.
async fn ended(
    task: JoinHandle<(WorkerEnd, Option<ClientSession>)>,
) -> (WorkerEnd, Option<ClientSession>) {
    match task.await {
        Ok(end) => end,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // It is never cancelled.
            Err(_) => (WorkerEnd::Asked, None),
        },
    }
}
