//! Writes this instance's document in `outbox_instances`, and reports the outcome.
//!
//! An acknowledged heartbeat proves that a majority accepts the writes of this instance. A failed one
//! stops acquisition: a snapshot could be outdated. [`owned`](crate::partition::owned) decides how long
//! an acknowledged heartbeat is valid.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use postrider_outbox::collections::{Collections, names as collections};
use postrider_outbox::ids::InstanceId;
use postrider_outbox::lease::{LeaseOwner, OwnerId};
use postrider_store::boot_instant::BootInstant;
use postrider_store::connect::primary;
use postrider_store::text::chain;
use postrider_store::{StoreError, within};
use tokio::sync::{Mutex, Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::partition::fields;
use crate::partition::fingerprint::Fingerprint;
use crate::partition::metrics::store_up;
use crate::partition::names;

/// The least and the greatest time limit of removing the document at a stop. Peers also remove a stale
/// document.
const SIGN_OFF_TIMEOUT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));

/// The outcome of the last heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// No heartbeat was sent yet.
    Starting,
    /// A majority acknowledged it.
    Alive,
    /// It failed, for this reason.
    Lost(String),
    /// MongoDB refuses it permanently, for this reason.
    Refused(String),
}

/// The properties that an instance publishes in its document.
#[derive(Clone, Debug)]
pub struct InstanceInfo {
    /// The settings in which instances must agree.
    pub fingerprint: Fingerprint,
    /// How it gets its partitions: [`ASSIGNED`](crate::partition::fleet::ASSIGNED),
    /// [`NONE`](crate::partition::fleet::NONE), or the text of `partitions.static`.
    pub partitions: String,
    /// The name that this instance holds, if any.
    pub name: Option<String>,
}

/// An acknowledged heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AcknowledgedHeartbeat {
    /// When it was sent.
    pub sent: BootInstant,
    /// The owner id that it announced.
    pub owner: InstanceId,
}

/// Reports to peers and operators that this instance is alive.
#[derive(Debug)]
pub struct Heartbeat {
    collections: Collections,
    instance: InstanceId,
    profile: InstanceInfo,
    interval: Duration,
    pulse: watch::Sender<Pulse>,
    /// The last acknowledged heartbeat.
    proof: watch::Sender<Option<AcknowledgedHeartbeat>>,
    /// The id under which this instance leases.
    owner: Arc<OwnerId>,
    /// Whether a heartbeat may create the document: only while this instance holds its name.
    may_create: AtomicBool,
    wants_partitions: AtomicBool,
    /// Signals that the content of the heartbeat has changed.
    changed: Notify,
    /// Whether the document was removed at the stop; locked during each heartbeat.
    gone: Mutex<bool>,
    state: StateReporter,
}

/// The function that reports the relay's state, once there is a relay.
#[derive(Default)]
struct StateReporter(OnceLock<Box<dyn Fn() -> Document + Send + Sync>>);

impl fmt::Debug for StateReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StateReporter").field(&self.0.get().is_some()).finish()
    }
}

impl Heartbeat {
    /// Creates a heartbeat that is sent in every `interval`.
    pub fn new(
        collections: Collections,
        instance: InstanceId,
        owner: Arc<OwnerId>,
        profile: InstanceInfo,
        interval: Duration,
    ) -> Arc<Self> {
        let (pulse, _) = watch::channel(Pulse::Starting);
        let (proof, _) = watch::channel(None);
        Arc::new(Self {
            collections,
            instance,
            profile,
            interval,
            pulse,
            proof,
            owner,
            may_create: AtomicBool::new(true),
            wants_partitions: AtomicBool::default(),
            changed: Notify::default(),
            gone: Mutex::default(),
            state: StateReporter::default(),
        })
    }

    /// Returns the settings in which instances must agree.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.profile.fingerprint
    }

    /// The name of this instance.
    pub fn name(&self) -> Option<&str> {
        self.profile.name.as_deref()
    }

    /// The id under which this instance leases.
    pub fn owner(&self) -> InstanceId {
        self.owner.current()
    }

    /// Replaces the owner id, and announces the new one without delay.
    pub fn replace_owner(&self) {
        self.owner.replace();
        self.changed.notify_one();
    }

    /// Watches the last acknowledged heartbeat.
    pub fn proof(&self) -> watch::Receiver<Option<AcknowledgedHeartbeat>> {
        self.proof.subscribe()
    }

    /// Announces without delay whether this instance waits for partitions of others.
    pub fn announce_wants(&self, wants_partitions: bool) {
        if self.wants_partitions.swap(wants_partitions, Ordering::Relaxed) != wants_partitions {
            self.changed.notify_one();
        }
    }

    /// Adds the relay's state, some KB at most, to each heartbeat. Called once.
    pub fn report_state(&self, state: impl Fn() -> Document + Send + Sync + 'static) {
        let _ = self.state.0.set(Box::new(state));
    }

    /// Watches the outcome of the last heartbeat.
    pub fn pulse(&self) -> watch::Receiver<Pulse> {
        self.pulse.subscribe()
    }

    /// Returns whether a majority acknowledged the last heartbeat.
    pub fn is_alive(&self) -> bool {
        *self.pulse.borrow() == Pulse::Alive
    }

    /// Sends heartbeats; never returns. From `stop` on they report `draining`; after
    /// [`leave`](Self::leave) none is sent.
    ///
    /// Run it as a task: a heartbeat that is dropped may reach MongoDB after the next write.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut status = "active";
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.changed.notified() => {}
                () = stop.cancelled(), if status == "active" => status = "draining",
            }
            let gone = self.gone.lock().await;
            if *gone {
                return std::future::pending().await;
            }
            let (sent, owner) = (BootInstant::now(), self.owner.get());
            let pulse = match self.send(status, owner).await {
                Ok(true) => {
                    self.proof.send_replace(Some(AcknowledgedHeartbeat { sent, owner: owner.id }));
                    Pulse::Alive
                }
                // Peers removed it as stale, or a process of the same name has replaced this one.
                Ok(false) => {
                    self.next_creates_unless_replaced().await;
                    Pulse::Lost("the document of this instance is missing".to_owned())
                }
                Err(error) if error.is_permanent() => Pulse::Refused(error.refusal()),
                Err(error) => Pulse::Lost(chain(&error)),
            };
            drop(gone);
            self.publish(pulse);
        }
    }

    fn publish(&self, now: Pulse) {
        store_up(now == Pulse::Alive);
        self.pulse.send_if_modified(|pulse| {
            // One log line per change of state, not per attempt.
            match (&*pulse, &now) {
                (Pulse::Alive, Pulse::Alive) => return false,
                (Pulse::Lost(_), Pulse::Lost(_)) | (Pulse::Refused(_), Pulse::Refused(_)) => {
                    *pulse = now;
                    return false;
                }
                (Pulse::Lost(_) | Pulse::Refused(_), Pulse::Alive) => {
                    info!("heartbeats are acknowledged again; resumed leasing records");
                }
                (_, Pulse::Lost(why) | Pulse::Refused(why)) => {
                    warn!(cause = why, "a heartbeat failed; stopped leasing records")
                }
                _ => {}
            }
            *pulse = now;
            true
        });
    }

    /// Removes this instance's document at the end of a graceful stop. Waits until about `deadline`.
    ///
    /// # Errors
    ///
    /// [`StoreError`]. Peers then remove the document once it is stale.
    pub async fn leave(&self, deadline: Instant) -> Result<(), StoreError> {
        let instances = self.instances();
        let leaving = async {
            // Not during a heartbeat, which would create the document again.
            *self.gone.lock().await = true;
            instances.delete_one(doc! { "_id": Bson::from(self.instance) }).await
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = match *self.pulse.borrow() {
            Pulse::Starting | Pulse::Alive => left.clamp(SIGN_OFF_TIMEOUT.0, SIGN_OFF_TIMEOUT.1),
            Pulse::Lost(_) | Pulse::Refused(_) => SIGN_OFF_TIMEOUT.0,
        };
        within("remove this instance", limit, leaving).await.map(|_| ())
    }

    /// Allows the next heartbeat to create the document if this instance still holds its name.
    async fn next_creates_unless_replaced(&self) {
        let is_ours = match &self.profile.name {
            None => true,
            Some(name) => {
                let holder = names::holder(&self.collections, name, self.interval).await;
                matches!(holder, Ok(holder) if holder.is_none_or(|holder| holder == self.instance))
            }
        };
        if is_ours {
            self.may_create.store(true, Ordering::Relaxed);
            self.changed.notify_one();
        }
    }

    /// Sends one heartbeat. Returns whether the document existed or was created.
    async fn send(&self, status: &str, owner: LeaseOwner) -> Result<bool, StoreError> {
        let hostname = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let fingerprint = Bson::from(&self.profile.fingerprint);
        let lapses_stored = doc! { "$ifNull": ["$lapses", 0_i64] };
        let lapses = owner.lapses;
        let mut update = doc! {
            fields::HOSTNAME: { "$literal": hostname },
            fields::STATUS: status,
            fields::STARTED_AT: { "$ifNull": ["$startedAt", "$$NOW"] },
            fields::LAST_HEARTBEAT: "$$NOW",
            fields::VERSION: env!("CARGO_PKG_VERSION"),
            fields::FINGERPRINT: { "$literal": fingerprint },
            fields::PARTITIONS: { "$literal": &self.profile.partitions },
            fields::ASKS: self.wants_partitions.load(Ordering::Relaxed),
            // A heartbeat that timed out may arrive after a later one.
            fields::LEASE_OWNER: {
                "$cond": [{ "$gt": [lapses_stored.clone(), lapses] }, "$leaseOwner", owner.id],
            },
            fields::LAPSES: { "$max": [lapses_stored, lapses] },
            fields::NAME: self.profile.name.as_ref().map(|name| doc! { "$literal": name }),
        };

        if let Some(state) = self.state.0.get() {
            update.insert(fields::RELAY, doc! { "$literal": state() });
        }
        let update = vec![doc! { "$set": update }];
        let instances = self.instances();
        let creates = self.may_create.load(Ordering::Relaxed);
        let send =
            instances.update_one(doc! { "_id": Bson::from(self.instance) }, update).upsert(creates);
        // The server gives up after one interval; the rest is for a server that does not answer.
        let limit = self.interval * 2 + Duration::from_secs(1);
        let beaten = within("send a heartbeat", limit, send.into_future()).await?;
        let is_there = beaten.matched_count > 0 || beaten.upserted_id.is_some();
        if is_there {
            self.may_create.store(false, Ordering::Relaxed);
        }
        Ok(is_there)
    }

    fn instances(&self) -> mongodb::Collection<bson::Document> {
        let concern =
            WriteConcern::builder().w(Acknowledgment::Majority).w_timeout(self.interval).build();
        let options = CollectionOptions::builder()
            .selection_criteria(primary())
            .write_concern(concern)
            .build();
        let name = self.collections.name(collections::INSTANCES);
        self.collections.database().collection_with_options(&name, options)
    }
}
