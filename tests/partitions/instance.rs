//! An instance in this process: heartbeat, coordinator and relay, with a sink of the test's choice.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, doc};
use futures_util::TryStreamExt;
use postrider::ids::InstanceId;
use postrider::outbox::collections::Collections;
use postrider::outbox::lease::OwnerId;
use postrider::partition::config::PartitionsConfig;
use postrider::partition::coordinator::{Coordinator, CoordinatorStatus};
use postrider::partition::fingerprint::Fingerprint;
use postrider::partition::fleet::{ASSIGNED, Fleet};
use postrider::partition::heartbeat::{Heartbeat, InstanceInfo};
use postrider::partition::owned::{self, AssignedPartitions, OwnedPartitions};
use postrider::partition::suspension::SuspensionDetector;
use postrider::relay::settings::{OnDead, Settings};
use postrider::relay::{Relay, RelayError, RelayParts};
use postrider::wakeup::Wakeup;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::support::outbox::{TestOutbox, eventually};
use crate::support::relay::{parts, settings};
use crate::support::sink::TestSink;

/// The options of an instance, with short waits.
#[derive(Clone, Debug)]
pub struct Options {
    pub heartbeat: Duration,
    pub stale_after: Duration,
    pub rebalance: Duration,
    pub block_on_dead: bool,
    pub lease: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(300),
            stale_after: Duration::from_secs(3),
            rebalance: Duration::from_millis(300),
            block_on_dead: false,
            lease: Duration::from_secs(30),
        }
    }
}

impl Options {
    /// Long times, so that only messages between instances can be the reason for an event.
    pub fn patient() -> Self {
        let minute = Duration::from_secs(60);
        Self { stale_after: minute, rebalance: minute, ..Self::default() }
    }
}

/// A running instance; dropped, it is dead like a killed process.
pub struct Instance {
    pub id: InstanceId,
    pub share: watch::Receiver<OwnedPartitions>,
    pub status: watch::Receiver<CoordinatorStatus>,
    stop: CancellationToken,
    drained: CancellationToken,
    heartbeat: Arc<Heartbeat>,
    relay: Option<JoinHandle<Result<(), RelayError>>>,
    coordinator: Option<JoinHandle<()>>,
    rest: Vec<JoinHandle<()>>,
}

impl Instance {
    pub fn start(collections: &Collections, sink: &TestSink, choice: &Options) -> Self {
        let id = InstanceId::fresh();
        let Options { heartbeat, stale_after, rebalance, block_on_dead, lease } = choice.clone();
        let fingerprint = Fingerprint { ordered: true, block_on_dead, prefix: String::new() };
        let profile = InstanceInfo { fingerprint, partitions: ASSIGNED.to_owned(), name: None };
        let (owner_id, suspension) = (OwnerId::new(id), SuspensionDetector::new());
        let partitions = PartitionsConfig { heartbeat, stale_after, rebalance, fixed: None };
        let heartbeat =
            Heartbeat::new(collections.clone(), id, owner_id.clone(), profile, heartbeat);
        let (stop, drained) = <(CancellationToken, CancellationToken)>::default();
        let (owner, share) = watch::channel(OwnedPartitions::default());
        let on_dead = if block_on_dead { OnDead::Block } else { OnDead::Skip };
        let relay_settings = Settings { on_dead, lease, ..settings() };
        let made =
            parts(collections, sink.clone(), relay_settings, share.clone(), Wakeup::default());
        let relay = Relay::new(
            RelayParts { owner: owner_id, suspension: suspension.clone(), ..made },
            stop.clone(),
        );
        let shared = relay.context();
        let (assigned, allotment) = watch::channel(AssignedPartitions::default());
        let coordinator = Coordinator::new(
            Fleet::new(collections.clone(), stale_after),
            id,
            partitions,
            heartbeat.clone(),
            assigned,
            move || shared.state.key_table.partitions_in_flight(),
        );
        let status = coordinator.status();
        let beating = tokio::spawn(heartbeat.clone().run(stop.clone()));
        let keeper = heartbeat.clone();
        let keeping = tokio::spawn(async move {
            owned::keep_updated(allotment, &keeper, &suspension, stale_after, owner).await;
        });
        Self {
            id,
            share,
            status,
            coordinator: Some(tokio::spawn(coordinator.run(stop.clone(), drained.clone()))),
            stop,
            drained,
            heartbeat,
            relay: Some(tokio::spawn(relay.run())),
            rest: vec![beating, keeping],
        }
    }

    /// Requests a stop, as SIGTERM does.
    pub fn ask_to_stop(&self) {
        self.stop.cancel();
    }

    /// Stops it cleanly.
    pub async fn stop(mut self) {
        self.stop.cancel();
        self.relay.take().unwrap().await.unwrap().unwrap();
        self.drained.cancel();
        self.coordinator.take().unwrap().await.unwrap();
        self.heartbeat.leave(Instant::now() + Duration::from_secs(5)).await.unwrap();
    }

    /// How many partitions it may deliver at the moment.
    pub fn owned(&self) -> usize {
        self.share.borrow().partitions.len()
    }

    pub async fn until_owned(&self, count: usize) {
        eventually(&format!("{count} partitions"), || async { self.owned() == count }).await;
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        self.relay.iter().for_each(JoinHandle::abort);
        self.coordinator.iter().chain(&self.rest).for_each(JoinHandle::abort);
    }
}

/// The owner of each partition by the documents: `None` where there is none.
pub async fn assignments(outbox: &TestOutbox) -> Vec<Option<Bson>> {
    let database = outbox.collections.database();
    let found = database.collection::<bson::Document>("outbox_partition_assignments");
    let found: Vec<bson::Document> =
        found.find(doc! {}).sort(doc! { "_id": 1 }).await.unwrap().try_collect().await.unwrap();
    let owner = |document: &bson::Document| document.get("instanceId").cloned();
    found.iter().map(|document| owner(document).filter(|id| *id != Bson::Null)).collect()
}

/// How many partitions each of these instances owns by the documents.
pub async fn counts(outbox: &TestOutbox, instances: &[InstanceId]) -> Vec<usize> {
    let owners = assignments(outbox).await;
    let count = |id: &InstanceId| {
        let id = Some(Bson::from(*id));
        owners.iter().filter(|owner| **owner == id).count()
    };
    instances.iter().map(count).collect()
}
