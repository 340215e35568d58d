//! This instance's own document in `outbox_instances`, and what its heartbeats tell.
//!
//! A heartbeat that a majority acknowledges proves that what is leased and settled here will
//! stand. One that fails (MongoDB unreachable, or its majority frozen) stops the taking: a
//! snapshot would still be read, of a past that may be another's by now. How long the last one
//! that was acknowledged holds, [`share`](crate::partition::share) knows.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use postrider_outbox::collections::{Collections, names as collections};
use postrider_outbox::ids::InstanceId;
use postrider_outbox::lease::{Owner, OwnerId};
use postrider_store::connect::primary;
use postrider_store::moment::Moment;
use postrider_store::text::chain;
use postrider_store::{Meaning, StoreError, within};
use tokio::sync::{Mutex, Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::partition::fields;
use crate::partition::fingerprint::Fingerprint;
use crate::partition::metrics::store_up;
use crate::partition::names;

/// What signing off may take at least, and at most where MongoDB answers, as far as known: peers notice
/// a missing instance all the same.
const FAREWELL: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(5));

/// What the last heartbeat came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pulse {
    /// None was sent yet.
    Starting,
    /// A majority has it.
    Alive,
    /// It failed, in these words.
    Lost(String),
    /// MongoDB refuses it, and will go on so: in these words.
    Refused(String),
}

/// What this instance tells of itself beside that it lives.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What the order rests on in its configuration.
    pub fingerprint: Fingerprint,
    /// How it comes by its partitions: [`ASSIGNED`](crate::partition::fleet::ASSIGNED),
    /// [`NONE`](crate::partition::fleet::NONE), or the text of `partitions.static`.
    pub partitions: String,
    /// The name of this instance, which it holds; `None` where it has none.
    pub name: Option<String>,
}

/// An acknowledged heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proof {
    /// When it was sent.
    pub sent: Moment,
    /// The id under which the instance leases, which it announced.
    pub owner: InstanceId,
}

/// Tells peers and operators that this instance lives.
#[derive(Debug)]
pub struct Heartbeat {
    collections: Collections,
    instance: InstanceId,
    profile: Profile,
    interval: Duration,
    pulse: watch::Sender<Pulse>,
    /// The last one that was acknowledged.
    proof: watch::Sender<Option<Proof>>,
    /// The id under which this instance leases.
    owner: Arc<OwnerId>,
    /// Whether a beat may make the document. Not before it is known that the name is still ours.
    may_create: AtomicBool,
    asks: AtomicBool,
    /// Something else is to be told than the last one did.
    news: Notify,
    /// Whether it has signed off; held during each beat.
    gone: Mutex<bool>,
    state: StateOf,
}

/// What the relay tells of its state, once there is a relay.
#[derive(Default)]
struct StateOf(OnceLock<Box<dyn Fn() -> Document + Send + Sync>>);

impl fmt::Debug for StateOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StateOf").field(&self.0.get().is_some()).finish()
    }
}

impl Heartbeat {
    /// A heartbeat in every `interval`.
    pub fn new(
        collections: Collections,
        instance: InstanceId,
        owner: Arc<OwnerId>,
        profile: Profile,
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
            asks: AtomicBool::default(),
            news: Notify::default(),
            gone: Mutex::default(),
            state: StateOf::default(),
        })
    }

    /// What the order rests on in this instance's configuration.
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

    /// Leases under another id from now on, and announces it without delay.
    pub fn replace_owner(&self) {
        self.owner.replace();
        self.news.notify_one();
    }

    /// The last heartbeat that was acknowledged, as it changes.
    pub fn proof(&self) -> watch::Receiver<Option<Proof>> {
        self.proof.subscribe()
    }

    /// Tells, without delay, whether this instance waits for partitions that others have.
    pub fn ask(&self, asks: bool) {
        if self.asks.swap(asks, Ordering::Relaxed) != asks {
            self.news.notify_one();
        }
    }

    /// From now on each heartbeat writes what this answers, too: some KB at most. Called once.
    pub fn tell(&self, state: impl Fn() -> Document + Send + Sync + 'static) {
        let _ = self.state.0.set(Box::new(state));
    }

    /// What the last heartbeat came to, as it changes.
    pub fn pulse(&self) -> watch::Receiver<Pulse> {
        self.pulse.subscribe()
    }

    /// Whether a majority has the last heartbeat.
    pub fn is_alive(&self) -> bool {
        *self.pulse.borrow() == Pulse::Alive
    }

    /// Beats for ever; from `stop` on it says that this instance takes nothing more, and after
    /// [`leave`](Self::leave) nothing at all.
    ///
    /// To be run as a task: a beat that is dropped under way may reach MongoDB later than whatever
    /// follows it.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut ticks = tokio::time::interval(self.interval);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut status = "active";
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = self.news.notified() => {}
                () = stop.cancelled(), if status == "active" => status = "draining",
            }
            let gone = self.gone.lock().await;
            if *gone {
                return std::future::pending().await;
            }
            let (sent, owner) = (Moment::now(), self.owner.get());
            let pulse = match self.beat(status, owner).await {
                Ok(true) => {
                    self.proof.send_replace(Some(Proof { sent, owner: owner.id }));
                    Pulse::Alive
                }
                // Peers removed it as stale, or a process of the same name has replaced this one.
                Ok(false) => {
                    self.next_creates_unless_replaced().await;
                    Pulse::Lost("this instance's document is missing".to_owned())
                }
                Err(error) if error.meaning() == Meaning::Permanent => {
                    Pulse::Refused(error.refusal())
                }
                Err(error) => Pulse::Lost(chain(&error)),
            };
            drop(gone);
            self.note(pulse);
        }
    }

    fn note(&self, now: Pulse) {
        store_up(now == Pulse::Alive);
        self.pulse.send_if_modified(|pulse| {
            // One line per change of state, not per try.
            match (&*pulse, &now) {
                (Pulse::Alive, Pulse::Alive) => return false,
                (Pulse::Lost(_), Pulse::Lost(_)) | (Pulse::Refused(_), Pulse::Refused(_)) => {
                    *pulse = now;
                    return false;
                }
                (Pulse::Lost(_) | Pulse::Refused(_), Pulse::Alive) => {
                    info!("heartbeat is back: taking goes on");
                }
                (_, Pulse::Lost(why) | Pulse::Refused(why)) => {
                    warn!(cause = why, "heartbeat failed: taking stops")
                }
                _ => {}
            }
            *pulse = now;
            true
        });
    }

    /// Removes this instance's document, at the end of a stop in good order. Where MongoDB answers
    /// slowly it waits until about `deadline`.
    ///
    /// # Errors
    ///
    /// Those of the store; peers remove it then, once it is stale.
    pub async fn leave(&self, deadline: Instant) -> Result<(), StoreError> {
        let instances = self.instances();
        let leaving = async {
            // Not beside a beat that is under way: it would make the document anew.
            *self.gone.lock().await = true;
            instances.delete_one(doc! { "_id": Bson::from(self.instance) }).await
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let limit = match *self.pulse.borrow() {
            Pulse::Starting | Pulse::Alive => left.clamp(FAREWELL.0, FAREWELL.1),
            Pulse::Lost(_) | Pulse::Refused(_) => FAREWELL.0,
        };
        within("sign off this instance", limit, leaving).await.map(|_| ())
    }

    /// Lets the next beat make the document again, where this instance still holds its name.
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
            self.news.notify_one();
        }
    }

    /// Returns whether the document was there or was made.
    async fn beat(&self, status: &str, owner: Owner) -> Result<bool, StoreError> {
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
            fields::ASKS: self.asks.load(Ordering::Relaxed),
            // A beat that was given up may arrive behind a later one.
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
        let beat =
            instances.update_one(doc! { "_id": Bson::from(self.instance) }, update).upsert(creates);
        // The server gives up after an interval; the rest is for a server that answers nothing.
        let limit = self.interval * 2 + Duration::from_secs(1);
        let beaten = within("send a heartbeat", limit, beat.into_future()).await?;
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
