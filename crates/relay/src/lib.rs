//! The relay: acquire → publish → settle, in the order of each key.
//!
//! **Publish a record only when you know that every earlier record of its key is done, dead by skip,
//! or confirmed to you.** With this prefix rule any number of zombies, stale owners and expired leases
//! cause duplicates, never an inversion. The prefix rule gives order, the lease saves duplicates, the
//! partition saves contention.
//!
//! The path of a record in steady state, one file after the other:
//!
//! | | file | what it does with the record |
//! |---|---|---|
//! | 1 | [`wakeup`](postrider_outbox::wakeup) | queues the event of the [change stream](crate::change_stream) |
//! | 2 | `driver::events` | looks up its key, and plans |
//! | 3 | [`key_table`] | knows the key: idle, in flight, or blocked |
//! | 4 | [`plan`] | decides whether it may be delivered (pure) |
//! | 5 | `live_mode` | holds it until the next lease |
//! | 6 | [`acquirer`] | leases it |
//! | 7 | [`lane`] | holds it behind the others of its key |
//! | 8 | [`lane_worker`] | delivers it when its predecessor is confirmed, and settles it by the result |
//! | 9 | [`publisher`] | publishes it, and classifies failures |
//! | 10 | [`settlement_writer`] | writes the outcome, with others |
//!
//! At the start, after a loss and for blocked keys the [`scanner`] replaces 1 and 2: it reads a
//! snapshot, plans, and registers what it found.
//!
//! | actors next to that path | |
//! |---|---|
//! | `driver` | the loop that starts scans, leases and lanes; `schedule` says when |
//! | [`repairer`] | corrects records that cannot be leased, or makes them dead |
//! | [`quarantine`] | delivers records alone that may crash the process or break their connection |
//! | [`dead_letter`] | sends a copy of dead records |
//! | `recheck`, `dead_blockers` | check that blockers are still there |
//! | `audit` | checks that the change stream has brought everything |
//! | `housekeeping` | makes scheduled records pending; reads the server's clock |
//! | [`lease_renewal`] | renews leases under a slow publish |
//! | [`report`] | reports its state to operators |
//!
//! | state | |
//! |---|---|
//! | [`context`], [`settings`], [`metrics`] | what the actors share |
//! | [`instance_state`] | what an instance reports to the others about itself |
//! | [`sink_circuit`], [`destination_circuits`], [`isolation`], `addressing` | which sinks and destinations take records |
//! | [`blocker`], [`lease`], [`lease_owners`], `in_flight`, `saturation`, `turns` | blockers; leases; limits; turns in quarantine |
//! | [`connection_losses`], `pending_deaths`, `misplaced`, `refused_changes`, `store_health`, `reported` | state of single records, and of MongoDB |

pub mod acquirer;
mod addressing;
mod audit;
pub mod backoff;
pub mod blocker;
pub mod change_stream;
pub mod connection_losses;
pub mod context;
mod dead_blockers;
pub mod dead_letter;
pub mod destination_circuits;
mod driver;
pub mod explain;
mod housekeeping;
pub(crate) mod in_flight;
pub mod instance_state;
pub mod isolation;
pub mod key_table;
pub mod lane;
pub mod lane_worker;
pub mod lease;
pub mod lease_owners;
pub mod lease_renewal;
pub(crate) mod live_mode;
pub mod metrics;
mod misplaced;
pub mod partition;
mod pending_deaths;
pub mod plan;
pub mod publisher;
pub mod quarantine;
mod recheck;
mod refused_changes;
pub mod repairer;
pub mod report;
mod reported;
pub mod routing;
mod saturation;
pub mod scanner;
mod schedule;
pub mod settings;
mod settlement_queue;
pub mod settlement_writer;
pub mod sink;
pub mod sink_circuit;
pub(crate) mod store_health;
mod turns;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures_util::future::join_all;
use postrider_outbox::collections::Collections;
use postrider_outbox::ids::{InstanceId, SinkName};
use postrider_outbox::lease::{Leaser, OwnerId};
use postrider_outbox::repair::Repairs;
use postrider_outbox::settle::Settlements;
use postrider_outbox::wakeup::Wakeup;
use postrider_store::ServerClock;
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::connection_losses::ConnectionLosses;
use crate::context::{Queues, RelayContext, RelayState, SinkHandle};
use crate::destination_circuits::DestinationCircuits;
use crate::driver::Driver;
use crate::isolation::IsolatedConnections;
use crate::key_table::KeyTable;
use crate::lane::Lane;
use crate::lease_owners::LeaseOwners;
use crate::lease_renewal::ActiveLeases;
use crate::metrics::{RelayMetrics, SinkMetrics};
use crate::misplaced::Misplaced;
use crate::partition::owned::OwnedPartitions;
use crate::partition::suspension::SuspensionDetector;
use crate::pending_deaths::{DeadRecord, PendingDeaths};
use crate::refused_changes::RefusedChanges;
use crate::routing::Router;
use crate::settings::Settings;
use crate::settlement_queue::SettlementQueue;
use crate::settlement_writer::SettlementWriter;
use crate::sink::Sink;
use crate::sink_circuit::SinkCircuit;
use crate::store_health::StoreHealth;
use crate::turns::{ProbeBudget, Turns};

/// Time at the end of `relay.shutdown_timeout`, half of it at most, in which sinks may close, and
/// interrupted records be released.
const CLOSE_GRACE: Duration = Duration::from_secs(2);

/// Maximum number of records that the error of a slow stop names.
const MAX_NAMED: usize = 10;

/// The components of a relay.
#[derive(Debug)]
pub struct RelayParts<S> {
    /// What the operator configured.
    pub settings: Settings,
    /// The collections of the outbox.
    pub collections: Collections,
    /// The id under which this instance leases.
    pub owner: Arc<OwnerId>,
    /// Chooses the sink and the destination of a record.
    pub router: Router,
    /// The sinks by name.
    pub sinks: BTreeMap<String, S>,
    /// The partitions that this instance may deliver, and their changes.
    pub owned: watch::Receiver<OwnedPartitions>,
    /// Reasons to scan, and the events of the change stream.
    pub wakeup: Wakeup,
    /// Whether a done record is deleted at once (retention `"0s"`).
    pub delete_done: bool,
    /// Whether this process was suspended.
    pub suspension: Arc<SuspensionDetector>,
    /// The owner id of the instance that this one replaces.
    pub predecessor: Option<InstanceId>,
}

/// Why a relay ended without a request.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// One of its tasks panicked: a bug.
    #[error("a task of the relay panicked")]
    Panicked(#[source] JoinError),
    /// The shutdown timeout passed before all records in flight were settled or released.
    #[error(
        "the relay did not finish within relay.shutdown_timeout: {in_flight} records stay \
         leased until their lease expires, for example {some}"
    )]
    NotDone {
        /// Records that were still leased.
        in_flight: usize,
        /// Ids of some of them.
        some: String,
    },
}

/// The relay of one instance.
pub struct Relay<S> {
    context: Arc<RelayContext<S>>,
    owned: watch::Receiver<OwnedPartitions>,
    wakeup: Wakeup,
    refills: mpsc::UnboundedReceiver<Arc<Lane>>,
    dead_letters: mpsc::Receiver<DeadRecord>,
    settlement_writer: tokio::task::JoinHandle<()>,
}

impl<S: Sink> Relay<S> {
    /// Assembles the relay; nothing is read before [`run`](Self::run).
    ///
    /// Must be called within a tokio runtime. `stop` ends scans and publishes.
    pub fn new(parts: RelayParts<S>, stop: CancellationToken) -> Self {
        let RelayParts {
            settings,
            collections,
            owner,
            router,
            sinks,
            owned,
            wakeup,
            delete_done,
            suspension,
            predecessor,
        } = parts;
        let metrics = Arc::new(RelayMetrics::new(sinks.keys().map(String::as_str)));
        let sink_probe_interval_max = settings.sink_probe_interval_max;
        let sinks = sinks.into_iter().map(|(name, sink)| {
            let handle = sink_handle(&name, sink, sink_probe_interval_max);
            (name, handle)
        });
        // Room for a few batches: beyond it lanes wait, and nothing more is leased.
        let (settlements, settled) = SettlementQueue::new(settings.batch_size * 4);
        let (refills, asked_refills) = mpsc::unbounded_channel();
        let (dead_letters, dead) = mpsc::channel(pending_deaths::MAX_WAITING);
        let store_health = Arc::new(StoreHealth::default());
        let state = RelayState {
            key_table: KeyTable::default(),
            leases: ActiveLeases::new(store_health.clone()),
            lease_owners: LeaseOwners::new(owner.clone(), predecessor),
            connection_losses: ConnectionLosses::default(),
            pending_deaths: PendingDeaths::default(),
            misplaced: Misplaced::default(),
            refused_changes: RefusedChanges::default(),
            refused_outcomes: Arc::default(),
            store_health,
            in_flight: Arc::default(),
            turns: Turns::default(),
            probe_budget: ProbeBudget::new(settings.batch_bytes),
            suspension,
        };
        state.key_table.set_owned(&owned.borrow().partitions);
        let writer = SettlementWriter {
            settlements: Settlements::new(collections.clone(), delete_done),
            batch_size: settings.batch_size,
            in_flight: state.in_flight.clone(),
            metrics: metrics.clone(),
            store_health: state.store_health.clone(),
            refused_outcomes: state.refused_outcomes.clone(),
            stop: stop.clone(),
        };
        let context = Arc::new(RelayContext {
            leaser: Leaser::new(collections.clone(), owner, settings.lease),
            repairs: Repairs::new(collections.clone()),
            clock: Arc::new(ServerClock::default()),
            sinks: sinks.collect(),
            settings,
            collections,
            router,
            metrics,
            state,
            queues: Queues { settlements, dead_letters, refills },
            stop,
        });
        let settlement_writer = tokio::spawn(settlement_writer::run(writer, settled));
        let (refills, dead_letters) = (asked_refills, dead);
        Self { context, owned, wakeup, refills, dead_letters, settlement_writer }
    }

    /// Returns the state that other components may read: circuits, keys, metrics.
    pub fn context(&self) -> Arc<RelayContext<S>> {
        self.context.clone()
    }

    /// Relays until the stop, then settles or releases what is in flight.
    ///
    /// # Errors
    ///
    /// [`RelayError`]: a panic in a task, or a stop that took longer than `shutdown_timeout`.
    pub async fn run(mut self) -> Result<(), RelayError> {
        let context = self.context.clone();
        let mut parts = JoinSet::new();
        for name in context.sinks.keys() {
            let (context, name, wakeup) = (context.clone(), name.clone(), self.wakeup.clone());
            parts.spawn(async move { run_circuit(&context, &name, &wakeup).await });
        }
        parts.spawn(dead_letter::run(context.clone(), self.dead_letters));
        parts.spawn(housekeeping::run(context.clone(), self.wakeup.clone()));
        parts.spawn(recheck::run(context.clone(), self.wakeup.clone()));
        parts.spawn(dead_blockers::run(context.clone(), self.wakeup.clone()));
        parts.spawn(audit::run(context.clone(), self.wakeup.clone()));
        let renewing = context.clone();
        parts.spawn(async move { renewing.state.leases.renew_forever(&renewing.leaser).await });

        let mut driver = Driver::new(context.clone(), self.owned, self.wakeup, self.refills);
        let ended = tokio::select! {
            ended = driver.run() => ended.map_err(RelayError::Panicked),
            Some(Err(panicked)) = parts.join_next() => return Err(RelayError::Panicked(panicked)),
            // It ends with the last sender, which the context holds.
            Err(panicked) = &mut self.settlement_writer => {
                return Err(RelayError::Panicked(panicked));
            }
        };
        ended?;
        let mut draining = std::pin::pin!(driver.drain());
        let limit = context.settings.shutdown_timeout;
        let until = tokio::time::Instant::now() + limit;
        let close_grace = CLOSE_GRACE.min(limit / 2);
        let mut drained = tokio::time::timeout(limit - close_grace, &mut draining).await;
        // Nothing depends on it: a broker that does not answer sees the connection end.
        let closing = context
            .sinks
            .values()
            .map(|handle| async { tokio::join!(handle.sink.close(), handle.isolated.close()) });
        let closing = tokio::time::timeout(close_grace, join_all(closing));
        if drained.is_err() {
            // A hung publish ends with its connection; then its records can be released.
            (_, drained) = tokio::join!(closing, tokio::time::timeout_at(until, draining));
        } else {
            let _ = closing.await;
        }
        self.settlement_writer.abort();
        if let Ok(drained) = drained {
            return drained.map_err(RelayError::Panicked);
        }
        let in_flight = context.state.in_flight.records();
        if in_flight == 0 {
            // A command that MongoDB has not answered holds no record.
            return Ok(());
        }
        let some = context.state.key_table.sample_in_flight(MAX_NAMED);
        let names: Vec<String> = some.iter().map(ToString::to_string).collect();
        Err(RelayError::NotDone { in_flight, some: names.join(", ") })
    }
}

fn sink_handle<S: Sink>(name: &str, sink: S, sink_probe_interval_max: Duration) -> SinkHandle<S> {
    SinkHandle {
        circuit: SinkCircuit::new(SinkName::from(name)),
        destinations: DestinationCircuits::new(SinkName::from(name), sink_probe_interval_max),
        isolated: IsolatedConnections::new(SinkName::from(name), &sink),
        turns: Turns::default(),
        metrics: SinkMetrics::new(name),
        lanes: AtomicUsize::new(0),
        sink,
    }
}

async fn run_circuit<S: Sink>(context: &RelayContext<S>, name: &str, wakeup: &Wakeup) {
    let Some(handle) = context.sinks.get(name) else { return };
    let on_up = || {
        handle.metrics.up(true);
        context.state.key_table.unblock_sinks();
        wakeup.all();
    };
    let on_down = || handle.metrics.up(false);
    let sink_probe_interval_max = context.settings.sink_probe_interval_max;
    handle.circuit.run(&handle.sink, sink_probe_interval_max, &context.stop, on_up, on_down).await;
    // This task must not end before the process does.
    std::future::pending::<()>().await;
}
