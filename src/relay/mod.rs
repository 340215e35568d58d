//! The relay: take → publish → settle, in the order of each key.
//!
//! **Publish a record only when you know that every earlier record of its key is done, dead
//! by skip, or confirmed to you.** With this prefix rule any number of zombies, stale
//! owners and expired leases cause duplicates, never an inversion. The prefix rule gives
//! order, the lease saves duplicates, the partition saves contention.
//!
//! | module | what it does |
//! |---|---|
//! | [`settings`], [`backoff`] | what an operator decides |
//! | `driver` | the loop: what is next |
//! | `schedule`, [`wake`], `rush` | when everything is looked at, and what is a reason to look before |
//! | `live`, `driver::changes` | the change stream carries the records, and nothing is read |
//! | `audit` | whether the change stream has brought everything |
//! | [`look`], `before` | snapshot read → [`plan`] |
//! | [`take`] | the plan's runs → lease → lanes |
//! | [`lane`], [`worker`] | one key's records; they are delivered, one unconfirmed at a time |
//! | `alone`, `turns` | records that go alone, one after the other |
//! | [`delivery`] | one record: address, gate, publish, verdict |
//! | [`dead_letter`], `dying` | a copy of the dead for a broker, and who waits for it |
//! | [`gate`] | a sink's gate: shut and probed while the broker is down |
//! | [`circuits`] | which destinations of a sink do not confirm |
//! | [`quarantine`] | a sink's isolated connection |
//! | `settler` | outcomes on their way back, in batches |
//! | [`renewal`] | leases kept alive under a slow publish |
//! | `recheck` | whether what blocks a key is still there, unchanged |
//! | `housekeeping` | scheduled records, odd partitions, the server's clock |
//! | [`report`] | what operators can ask of it |
//! | [`hands`], [`blocker`], [`held`], `load`, [`losses`], `misplaced`, `refusals`, `reported` | the books |
//! | [`shared`] | what all of these are given: settings, clients, sinks, the books |

mod alone;
mod audit;
pub mod backoff;
mod before;
pub mod blocker;
pub mod circuits;
pub mod dead_letter;
pub mod delivery;
mod driver;
mod dying;
pub(crate) mod failing;
pub mod gate;
pub mod hands;
pub mod held;
mod housekeeping;
pub mod lane;
pub(crate) mod live;
mod load;
pub mod look;
pub mod losses;
pub mod metrics;
mod misplaced;
pub mod plan;
pub mod quarantine;
mod recheck;
mod refusals;
pub mod renewal;
pub mod report;
mod reported;
mod rush;
mod schedule;
pub mod settings;
mod settler;
pub mod shared;
pub mod take;
mod turns;
pub mod wake;
pub mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::ids::{InstanceId, SinkName};
use crate::outbox::collections::Collections;
use crate::outbox::lease::Leaser;
use crate::outbox::repair::Repairs;
use crate::outbox::settle::Settlements;
use crate::partition::share::Share;
use crate::relay::circuits::Circuits;
use crate::relay::driver::Driver;
use crate::relay::dying::{Buried, Dying};
use crate::relay::failing::Failing;
use crate::relay::gate::Gate;
use crate::relay::hands::Hands;
use crate::relay::lane::Lane;
use crate::relay::losses::Losses;
use crate::relay::metrics::{RelayMetrics, SinkMetrics};
use crate::relay::misplaced::Misplaced;
use crate::relay::quarantine::Quarantine;
use crate::relay::refusals::Refusals;
use crate::relay::renewal::Leases;
use crate::relay::settings::Settings;
use crate::relay::settler::Settler;
use crate::relay::shared::{Outlet, Shared};
use crate::relay::turns::{ProbeRoom, Turns};
use crate::relay::wake::Wake;
use crate::routing::Router;
use crate::sink::Sink;
use crate::store::ServerClock;

/// What the sinks' goodbyes may take, and the release of what they interrupt, beyond
/// `relay.shutdown_timeout`.
const FAREWELL: Duration = Duration::from_secs(2);

/// Records that are named at a stop that took too long: enough to find the rest by.
const NAMED: usize = 10;

/// What a relay is made of.
#[derive(Debug)]
pub struct RelayParts<S> {
    /// What the operator decided.
    pub settings: Settings,
    /// Where the outbox lives.
    pub collections: Collections,
    /// This process.
    pub instance: InstanceId,
    /// Which sink and where.
    pub router: Router,
    /// The sinks by name.
    pub sinks: BTreeMap<String, S>,
    /// What this instance may deliver, as it changes.
    pub share: watch::Receiver<Share>,
    /// Reasons to look.
    pub wake: Wake,
    /// Whether a done record is deleted at once (retention `"0s"`).
    pub delete_done: bool,
}

/// Why a relay ended uninvited.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// One of its parts panicked: a bug.
    #[error("a part of the relay ended by a panic")]
    Panicked(#[source] JoinError),
    /// The time for a stop was up before everything in flight was settled or released.
    #[error(
        "the relay was not done within relay.shutdown_timeout: {in_hand} records wait out their \
         lease, such as {some}"
    )]
    NotDone {
        /// Records that were still leased.
        in_hand: usize,
        /// The ids of some.
        some: String,
    },
}

/// The relay of one instance.
pub struct Relay<S> {
    shared: Arc<Shared<S>>,
    share: watch::Receiver<Share>,
    wake: Wake,
    refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    buried: mpsc::Receiver<Buried>,
    settler: tokio::task::JoinHandle<()>,
}

impl<S: Sink> Relay<S> {
    /// Puts the parts together; nothing is read before [`run`](Self::run).
    ///
    /// Must be called within a tokio runtime. `stop` ends taking and publishing.
    pub fn new(parts: RelayParts<S>, stop: CancellationToken) -> Self {
        let RelayParts { settings, collections, instance, router, sinks, share, wake, delete_done } =
            parts;
        let metrics = RelayMetrics::new(sinks.keys().map(String::as_str));
        let outlets = sinks
            .into_iter()
            .map(|(name, sink)| {
                let outlet = Outlet {
                    gate: Gate::new(SinkName::from(name.as_str())),
                    circuits: Circuits::new(SinkName::from(name.as_str()), settings.probe_max),
                    quarantine: Quarantine::new(SinkName::from(name.as_str()), &sink),
                    turns: Turns::default(),
                    metrics: SinkMetrics::new(&name),
                    sink,
                };
                (name, outlet)
            })
            .collect();
        // Room for a few batches: beyond it lanes wait, and nothing more is taken.
        let (items, settled) = mpsc::channel(settings.batch_size * 4);
        let (ask, refills) = mpsc::unbounded_channel();
        let (bury, buried) = mpsc::channel(dying::WAITING);
        let failing = Arc::new(Failing::default());
        let settler = Settler {
            settlements: Settlements::new(collections.clone(), delete_done),
            batch_size: settings.batch_size,
            in_hand: Arc::default(),
            metrics: Arc::new(metrics),
            failing: failing.clone(),
            outcomes: Arc::default(),
            stop: stop.clone(),
        };
        let shared = Arc::new(Shared {
            leaser: Leaser::new(collections.clone(), instance, settings.lease),
            repairs: Repairs::new(collections.clone()),
            clock: Arc::new(ServerClock::default()),
            hands: Hands::default(),
            losses: Losses::default(),
            dying: Dying::default(),
            misplaced: Misplaced::default(),
            refusals: Refusals::default(),
            outcomes: settler.outcomes.clone(),
            leases: Leases::new(failing.clone()),
            failing,
            turns: Turns::default(),
            probe_room: ProbeRoom::new(settings.batch_bytes),
            in_hand: settler.in_hand.clone(),
            settler: items,
            buried: bury,
            refills: ask,
            settings,
            collections,
            router,
            outlets,
            metrics: settler.metrics.clone(),
            stop,
        });
        let settler = tokio::spawn(settler::run(settler, settled));
        shared.hands.own(&share.borrow().partitions);
        Self { shared, share, wake, refills, buried, settler }
    }

    /// What the parts around the relay may look at: gates, hands, figures.
    pub fn shared(&self) -> Arc<Shared<S>> {
        self.shared.clone()
    }

    /// Relays until the stop, then settles or releases what is in flight.
    ///
    /// # Errors
    ///
    /// [`RelayError`]: a panic in a part, or a stop that took longer than `shutdown_timeout`.
    pub async fn run(mut self) -> Result<(), RelayError> {
        let shared = self.shared.clone();
        let mut parts = JoinSet::new();
        for name in shared.outlets.keys() {
            let (shared, name, wake) = (shared.clone(), name.clone(), self.wake.clone());
            parts.spawn(async move { keep_gate(&shared, &name, &wake).await });
        }
        parts.spawn(dead_letter::run(shared.clone(), self.buried));
        parts.spawn(housekeeping::run(shared.clone(), self.wake.clone()));
        parts.spawn(recheck::run(shared.clone(), self.wake.clone()));
        parts.spawn(audit::run(shared.clone(), self.wake.clone()));
        let renewing = shared.clone();
        parts.spawn(async move { renewing.leases.keep(&renewing.leaser).await });

        let mut driver = Driver::new(shared.clone(), self.share, self.wake, self.refills);
        let ended = tokio::select! {
            ended = driver.run() => ended.map_err(RelayError::Panicked),
            Some(Err(panicked)) = parts.join_next() => return Err(RelayError::Panicked(panicked)),
            // It ends with the last sender, of which `shared` holds one.
            Err(panicked) = &mut self.settler => return Err(RelayError::Panicked(panicked)),
        };
        ended?;
        let mut draining = std::pin::pin!(driver.drain());
        let limit = shared.settings.shutdown_timeout;
        let mut drained = tokio::time::timeout(limit, &mut draining).await;
        // Nothing rests on it: a broker that does not answer sees the connection end.
        let goodbyes = shared
            .outlets
            .values()
            .map(|outlet| async { tokio::join!(outlet.sink.close(), outlet.quarantine.close()) });
        let goodbyes = tokio::time::timeout(FAREWELL, join_all(goodbyes));
        if drained.is_err() {
            // A publish that hung ends with its connection; then its records can be released.
            (_, drained) = tokio::join!(goodbyes, tokio::time::timeout(FAREWELL, draining));
        } else {
            let _ = goodbyes.await;
        }
        self.settler.abort();
        if let Ok(drained) = drained {
            return drained.map_err(RelayError::Panicked);
        }
        let in_hand = shared.in_hand.records();
        if in_hand == 0 {
            // What MongoDB has not answered holds nothing.
            return Ok(());
        }
        let some = shared.hands.some_in_hand(NAMED);
        let names: Vec<String> = some.iter().map(ToString::to_string).collect();
        Err(RelayError::NotDone { in_hand, some: names.join(", ") })
    }
}

async fn keep_gate<S: Sink>(shared: &Shared<S>, name: &str, wake: &Wake) {
    let Some(outlet) = shared.outlets.get(name) else { return };
    let opened = || {
        outlet.metrics.up(true);
        shared.hands.free_paused();
        wake.all();
    };
    let shut = || outlet.metrics.up(false);
    let probe_max = shared.settings.probe_max;
    outlet.gate.keep(&outlet.sink, probe_max, &shared.stop, opened, shut).await;
    // Kept as a part until the process ends.
    std::future::pending::<()>().await;
}
