//! What an instance consists of: the parts of every instance, and those of one that relays.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, warn};

use crate::change_stream::Follower;
use crate::config::Resolved;
use crate::context::Context;
use crate::events::EventStore;
use crate::events::feed::{Feed, FeedConfig, Sequencer, SequencerStatus};
use crate::events::query::QueryService;
use crate::http::{Reading, Services};
use crate::ids::InstanceId;
use crate::ops::Health;
use crate::outbox::collections::Collections;
use crate::outbox::lease::OwnerId;
use crate::partition::coordinator::Coordinator;
use crate::partition::fleet::Fleet;
use crate::partition::heartbeat::{Heartbeat, InstanceInfo, Pulse};
use crate::partition::names::{self, HeldName, Replaced};
use crate::partition::owned::{AssignedPartitions, OwnedPartitions};
use crate::partition::suspension::SuspensionDetector;
use crate::relay::{Relay, RelayParts};
use crate::run::guarding::guard;
use crate::run::pushing::Pushing;
use crate::run::startup::Prepared;
use crate::sink::registry::AnySink;
use crate::telemetry::chain;
use crate::wakeup::Wakeup;

/// Time for a shutdown beyond `relay.shutdown_timeout`; the chart gives a pod as much.
pub(super) const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Time limit to release the name of the instance.
const GIVE_UP_TIMEOUT: Duration = Duration::from_secs(1);

/// An instance that sends heartbeats and answers for its name.
pub(super) struct Instance {
    id: InstanceId,
    /// The outbox, for the API and the survey.
    pub(super) collections: Collections,
    /// The outbox, for heartbeats, leases and names.
    protocol: Collections,
    pub(super) events: Option<EventStore>,
    feed: Option<Feed>,
    /// The databases of the append path, for reads of the API that no append must wait for.
    reading: Context,
    /// Assigns the positions of the feed.
    pub(super) sequencing: Sequencing,
    /// Completes the erasures of event streams; never ends.
    pub(super) erasing: AbortOnDropHandle<()>,
    /// Searches for settings of others by which documents are lost; never ends.
    pub(super) guarding: AbortOnDropHandle<()>,
    /// Pushes subscriptions.
    pub(super) pushing: Pushing,
    wakeup: Wakeup,
    name: Option<HeldName>,
    /// Answers whether the holder of the name is alive.
    pub(super) name_keeper: Option<AbortOnDropHandle<Replaced>>,
    owner: Arc<OwnerId>,
    pub(super) heartbeat: Arc<Heartbeat>,
    pub(super) beating: JoinHandle<()>,
    /// Resolves at a stop with the deadline of the shutdown.
    deadline: JoinHandle<Instant>,
}

impl Instance {
    /// Starts the parts of every instance.
    pub(super) fn start(
        plan: &Resolved,
        id: InstanceId,
        prepared: Prepared,
        health: &Health,
        stop: &CancellationToken,
    ) -> Self {
        let Prepared { collections, protocol, context, reading, name } = prepared;
        let guarding = guard(plan.clone(), collections.clone(), context.clone(), health.clone());
        let guarding = AbortOnDropHandle::new(tokio::spawn(guarding));
        let feed = plan.feed.is_some().then(|| Feed::new(context.clone()));
        let sequencing = Sequencing::start(feed.as_ref().zip(plan.feed.as_ref()));
        let wakeup = Wakeup::default();
        let pushing = Pushing::start(&context, feed.as_ref(), &collections, &wakeup, stop);
        let events = plan
            .events_enabled
            .then(|| EventStore::with_wakeup(context, collections.clone(), wakeup.clone()));
        let erasing = events.clone();
        let erasing = AbortOnDropHandle::new(tokio::spawn(async move {
            match erasing {
                Some(events) => events.complete_erasures().await,
                None => std::future::pending().await,
            }
        }));
        let name_keeper = name.as_ref().map(|held| {
            let keeping = names::answer_questions(protocol.clone(), held.name.clone(), id);
            // A task: new instances must not wait for other work of this process.
            AbortOnDropHandle::new(tokio::spawn(keeping))
        });
        let owner = OwnerId::new(id);
        let info = InstanceInfo {
            name: name.as_ref().map(|held| held.name.clone()),
            ..plan.profile.clone()
        };
        let interval = plan.partitions.heartbeat;
        let heartbeat = Heartbeat::new(protocol.clone(), id, owner.clone(), info, interval);
        let beating = tokio::spawn(heartbeat.clone().run(stop.clone()));
        let deadline = tokio::spawn(deadline(stop.clone(), plan.relay.shutdown_timeout));
        Self {
            id,
            collections,
            protocol,
            events,
            feed,
            reading,
            sequencing,
            erasing,
            guarding,
            pushing,
            wakeup,
            name,
            name_keeper,
            owner,
            heartbeat,
            beating,
            deadline,
        }
    }

    /// Returns what the calls of the API use.
    pub(super) fn services(&self, plan: &Resolved) -> Services {
        Services {
            collections: self.collections.clone(),
            fleet: Fleet::new(self.collections.clone(), plan.partitions.stale_after),
            events: self.events.clone(),
            reading: Reading {
                collections: self.collections.through(self.reading.client().clone()),
                context: self.reading.clone(),
                queries: QueryService::new(self.reading.clone(), plan.queries.clone()),
                feed: self.feed.as_ref().map(|feed| feed.through(self.reading.clone())),
            },
            wake: plan.relay.enabled.then(|| self.wakeup.clone()),
        }
    }

    /// Takes part in the assignment of partitions until `stop`, then releases them: the last ones
    /// once `drained` signals that the relay has ended.
    pub(super) fn coordinate<F: Fn() -> [bool; 256]>(
        &self,
        coordinator: Coordinator<F>,
        stop: CancellationToken,
        drained: CancellationToken,
    ) -> impl Future<Output = ()> + use<F> {
        let (collections, id, heartbeat) = (self.protocol.clone(), self.id, self.heartbeat.clone());
        let name = self.name.as_ref().map(|held| held.name.clone());
        async move {
            // Other instances see this one before its predecessor is gone, so that none claims the
            // partitions between the two.
            if let Some(name) = name {
                tokio::select! {
                    () = remove_predecessors(&collections, &name, id, &heartbeat) => {}
                    () = stop.cancelled() => {}
                }
            }
            coordinator.run(stop, drained).await
        }
    }

    /// Removes this instance's document and releases its name, at the end of a stop. A failure does
    /// not fail the shutdown.
    pub(super) async fn sign_off(mut self) {
        let Ok(deadline) = (&mut self.deadline).await else { return };
        // It would take the name again.
        self.name_keeper = None;
        // (The next holder takes it over if MongoDB does not respond.)
        if let Some(held) = self.name.as_ref().filter(|_| self.heartbeat.is_alive())
            && let Err(error) =
                names::release_name(&self.protocol, &held.name, self.id, GIVE_UP_TIMEOUT).await
        {
            debug!(error = chain(&error), "failed to release the name of this instance");
        }
        self.leave(deadline).await;
    }

    /// Removes this instance's document. A failure does not fail the shutdown.
    pub(super) async fn leave(&mut self, deadline: Instant) {
        self.pushing.ended_by(deadline).await;
        self.sequencing.stop(deadline).await;
        if let Err(error) = self.heartbeat.leave(deadline).await {
            warn!(
                error = chain(&error),
                "failed to remove this instance; it stays listed until it is stale"
            );
        }
    }
}

/// The sequencer of the feed, if this instance has one.
pub(super) struct Sequencing {
    stop: CancellationToken,
    task: Option<AbortOnDropHandle<()>>,
    /// What it does.
    pub(super) status: Option<watch::Receiver<SequencerStatus>>,
}

impl Sequencing {
    fn start(feed: Option<(&Feed, &FeedConfig)>) -> Self {
        let stop = CancellationToken::new();
        let sequencer = feed.map(|(feed, settings)| feed.sequencer(settings.clone()));
        let status = sequencer.as_ref().map(Sequencer::status);
        let task = sequencer
            .map(|sequencer| AbortOnDropHandle::new(tokio::spawn(sequencer.run(stop.clone()))));
        Self { stop, task, status }
    }

    /// Resolves when it has ended by a panic; never without one.
    pub(super) async fn ended(&mut self) {
        match &mut self.task {
            // Its only other end is the stop.
            Some(task) => drop(task.await),
            None => std::future::pending().await,
        }
    }

    /// Ends it, so that another process can take its place at once.
    async fn stop(&mut self, deadline: Instant) {
        self.stop.cancel();
        if let Some(task) = &mut self.task
            && !task.is_finished()
        {
            // (Without an answer of MongoDB its lease ends later.)
            let _ = tokio::time::timeout_at(deadline.into(), task).await;
        }
    }
}

/// The parts of an instance that relays, before they run.
pub(super) struct RelayComponents<F> {
    pub(super) relay: Relay<AnySink>,
    /// The follower of the change stream, if one is wanted.
    pub(super) follower: Option<Follower>,
    pub(super) coordinator: Coordinator<F>,
    /// The partitions that the coordinator reads as its own.
    pub(super) assigned: watch::Receiver<AssignedPartitions>,
    pub(super) suspension: Arc<SuspensionDetector>,
    /// The partitions that the relay may deliver.
    pub(super) owned: watch::Sender<OwnedPartitions>,
}

impl RelayComponents<()> {
    /// Assembles them. Nothing is read before they run.
    pub(super) fn new(
        plan: &Resolved,
        instance: &Instance,
        sinks: BTreeMap<String, AnySink>,
        stop: &CancellationToken,
    ) -> RelayComponents<impl Fn() -> [bool; 256] + Send + Sync + 'static> {
        let protocol = &instance.protocol;
        let follower = || Follower::new(protocol.clone(), instance.wakeup.clone());
        let follower = plan.relay.change_stream.then(follower);
        let suspension = SuspensionDetector::new();
        let (owned_sender, owned) = watch::channel(OwnedPartitions::default());
        let parts = RelayParts {
            settings: plan.relay.clone(),
            collections: protocol.clone(),
            owner: instance.owner.clone(),
            router: plan.router.clone(),
            sinks,
            owned,
            wakeup: instance.wakeup.clone(),
            delete_done: plan.schema.retention.is_zero(),
            suspension: suspension.clone(),
            predecessor: instance.name.as_ref().and_then(|held| held.predecessor),
        };
        let relay = Relay::new(parts, stop.clone());
        let context = relay.context();
        let (assigned_sender, assigned) = watch::channel(AssignedPartitions::default());
        let coordinator = Coordinator::new(
            Fleet::new(protocol.clone(), plan.partitions.stale_after),
            instance.id,
            plan.partitions.clone(),
            instance.heartbeat.clone(),
            assigned_sender,
            move || context.state.key_table.partitions_in_flight(),
        );
        RelayComponents { relay, follower, coordinator, assigned, suspension, owned: owned_sender }
    }
}

/// Resolves when another instance holds the name of this one; never where it has none.
pub(super) async fn until_replaced(
    name_keeper: &mut Option<AbortOnDropHandle<Replaced>>,
) -> Replaced {
    if let Some(keeper) = name_keeper
        && let Ok(replaced) = keeper.await
    {
        return replaced;
    }
    std::future::pending().await
}

/// Resolves when a lane of the event store has panicked; never without a store.
pub(super) async fn until_broken(events: Option<&EventStore>) {
    match events {
        Some(events) => events.broken().await,
        None => std::future::pending().await,
    }
}

/// Resolves at a stop with the deadline of the shutdown.
async fn deadline(stop: CancellationToken, shutdown_timeout: Duration) -> Instant {
    stop.cancelled().await;
    Instant::now() + shutdown_timeout + SHUTDOWN_GRACE
}

/// Removes the documents of earlier holders of this name once this instance has its own.
async fn remove_predecessors(
    collections: &Collections,
    name: &str,
    instance: InstanceId,
    heartbeat: &Heartbeat,
) {
    let mut pulse = heartbeat.pulse();
    // The heartbeat runs until the process ends.
    let _ = pulse.wait_for(|pulse| *pulse == Pulse::Alive).await;
    if let Err(error) = names::remove_predecessors(collections, name, instance).await {
        // They become stale.
        warn!(error = chain(&error), "failed to remove the predecessor of this instance");
    }
}
