//! The state that the actors of one relay share: settings, clients, sinks, and knowledge of keys.
//!
//! [`RelayContext`] holds no logic of any actor. Each actor (scanner, acquirer, lane worker,
//! publisher, settlement writer, quarantine, audit, …) has a file of its own.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use postrider_outbox::collections::Collections;
use postrider_outbox::ids::RecordId;
use postrider_outbox::lease::Leaser;
use postrider_outbox::record::Record;
use postrider_outbox::repair::Repairs;
use postrider_outbox::snapshot::OutboxSnapshot;
use postrider_store::{ServerClock, StoreError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::connection_losses::ConnectionLosses;
use crate::destination_circuits::{DestinationCircuits, OpenDestination};
use crate::in_flight::InFlight;
use crate::isolation::IsolatedConnections;
use crate::key_table::KeyTable;
use crate::lane::Lane;
use crate::lease_owners::LeaseOwners;
use crate::lease_renewal::ActiveLeases;
use crate::metrics::{RelayMetrics, SinkMetrics};
use crate::misplaced::Misplaced;
use crate::partition::suspension::SuspensionDetector;
use crate::pending_deaths::{DeadRecord, PendingDeaths};
use crate::refused_changes::RefusedChanges;
use crate::routing::Router;
use crate::settings::Settings;
use crate::settlement_queue::SettlementQueue;
use crate::sink::Sink;
use crate::sink_circuit::SinkCircuit;
use crate::store_health::{RefusedOutcomes, StoreHealth};
use crate::turns::{ProbeBudget, Turns};

/// A lost connection usually returns sooner. Nothing is released before.
const INTERRUPTION_GRACE: Duration = Duration::from_millis(500);

/// The settings, clients, sinks and state of one relay.
#[derive(Debug)]
pub struct RelayContext<S> {
    /// What the operator configured.
    pub settings: Settings,
    /// The collections of the outbox.
    pub collections: Collections,
    /// Acquires, renews and releases leases.
    pub leaser: Leaser,
    /// Repairs and promotes records.
    pub repairs: Repairs,
    /// The server's time.
    pub clock: Arc<ServerClock>,
    /// Chooses the sink and the destination of a record.
    pub router: Router,
    /// The sinks by name.
    pub sinks: BTreeMap<String, SinkHandle<S>>,
    /// Metrics of the relay itself.
    pub metrics: Arc<RelayMetrics>,
    /// State of keys, records, leases and MongoDB.
    pub state: RelayState,
    pub(crate) queues: Queues,
    pub(crate) stop: CancellationToken,
}

/// The state of one relay. The order never depends on it: the prefix rule alone guarantees it.
#[derive(Debug)]
pub struct RelayState {
    /// Keys in flight, and blocked keys.
    pub key_table: KeyTable,
    /// Leases in use.
    pub leases: ActiveLeases,
    /// Which lease owners are alive.
    pub lease_owners: LeaseOwners,
    /// Records whose connection was lost before a confirm.
    pub connection_losses: ConnectionLosses,
    pub(crate) pending_deaths: PendingDeaths,
    pub(crate) misplaced: Misplaced,
    pub(crate) refused_changes: RefusedChanges,
    pub(crate) refused_outcomes: Arc<RefusedOutcomes>,
    pub(crate) store_health: Arc<StoreHealth>,
    pub(crate) in_flight: Arc<InFlight>,
    /// Turns of records that may crash the process, one after the other.
    pub(crate) turns: Turns,
    pub(crate) probe_budget: ProbeBudget,
    /// Whether this process was suspended and must read its partitions again.
    pub(crate) suspension: Arc<SuspensionDetector>,
}

/// Queues between the actors.
#[derive(Debug)]
pub(crate) struct Queues {
    /// Outcomes for the settlement writer.
    pub(crate) settlements: SettlementQueue,
    /// Records that died without a lane, for the sender of dead letters.
    pub(crate) dead_letters: mpsc::Sender<DeadRecord>,
    /// Lanes that request more records of their key, for the driver.
    pub(crate) refills: mpsc::UnboundedSender<Arc<Lane>>,
}

/// A sink, its circuits and its metrics.
#[derive(Debug)]
pub struct SinkHandle<S> {
    /// The sink.
    pub sink: S,
    /// Closed while the sink is up.
    pub circuit: SinkCircuit,
    /// The circuits of its destinations.
    pub destinations: DestinationCircuits,
    /// Its isolated connections.
    pub isolated: IsolatedConnections<S>,
    /// Turns of records that lost the sink's connection, one after the other.
    pub(crate) turns: Turns,
    /// Its metrics.
    pub metrics: SinkMetrics,
    /// Lanes that have records for it.
    pub(crate) lanes: AtomicUsize,
}

/// Counts a lane that has records for a sink, until dropped.
#[derive(Debug)]
pub(crate) struct ExpectedLane<'a, S: Sink>(&'a SinkHandle<S>);

impl<S: Sink> SinkHandle<S> {
    /// Counts a lane that has records for this sink.
    pub(crate) fn expect_lane(&self) -> ExpectedLane<'_, S> {
        self.sink.expect(self.lanes.fetch_add(1, Ordering::Relaxed) + 1);
        ExpectedLane(self)
    }
}

impl<S: Sink> ExpectedLane<'_, S> {
    /// Returns whether the lane is counted for this sink.
    pub(crate) fn is_for(&self, handle: Option<&SinkHandle<S>>) -> bool {
        handle.is_some_and(|handle| std::ptr::eq(self.0, handle))
    }
}

impl<S: Sink> Drop for ExpectedLane<'_, S> {
    fn drop(&mut self) {
        self.0.sink.expect(self.0.lanes.fetch_sub(1, Ordering::Relaxed) - 1);
    }
}

impl<S> RelayContext<S> {
    /// Returns whether another batch may be acquired. Records that wait for a destination which
    /// does not answer count by their bytes only.
    pub fn has_room(&self) -> bool {
        let in_flight = &self.state.in_flight;
        in_flight.moving() + self.settings.batch_size <= self.settings.max_in_flight()
            && in_flight.bytes() < self.settings.batch_bytes
    }

    /// Returns how many records a lane that runs short requests: its share of the records in
    /// flight.
    pub fn refill_size(&self) -> usize {
        let lanes = self.state.in_flight.publishing_lanes().max(1);
        let share = self.settings.max_in_flight() / 2 / lanes;
        share.min(self.settings.batch_size).max(Settings::LANE)
    }

    /// Reads the complete record with this id, if it has this status.
    pub(crate) async fn read(
        &self,
        id: &RecordId,
        status: &str,
    ) -> Result<Option<Record>, StoreError> {
        OutboxSnapshot::begin(&self.collections).await?.by_id(id, status).await
    }

    /// Returns whether a stop was requested: nothing new is published.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Resolves when a stop is requested.
    pub async fn stopping(&self) {
        self.stop.cancelled().await;
    }

    /// Describes what MongoDB currently refuses or fails to do.
    pub fn store_trouble(&self) -> Option<String> {
        self.state.store_health.describe(&self.state.refused_outcomes)
    }

    /// Returns whether any sink is up.
    pub fn any_up(&self) -> bool {
        self.sinks.values().any(|handle| handle.circuit.is_closed())
    }

    /// Prepares a record that was read: the lane that `relay.ordering` requires, and whether its lease is this
    /// instance's.
    pub(crate) fn in_lane(&self, mut record: Record) -> Record {
        record.is_lease_own = self.state.lease_owners.is_own(&record);
        self.settings.in_lane(record)
    }

    /// Returns whether every sink is up.
    pub fn all_up(&self) -> bool {
        self.sinks.values().all(|handle| handle.circuit.is_closed())
    }

    /// Returns whether every destination of every sink confirms, as far as known.
    pub(crate) fn all_confirm(&self) -> bool {
        self.sinks.values().all(|handle| handle.destinations.all_closed())
    }

    /// Returns the destinations that do not confirm.
    pub fn open_destinations(&self) -> Vec<OpenDestination> {
        self.sinks.values().flat_map(|handle| handle.destinations.open()).collect()
    }

    /// Without room, ends the lanes that wait for a sink that is down, unless it may return at
    /// once.
    pub(crate) fn free_room(&self) {
        let lanes = self.state.in_flight.publishing_lanes();
        let is_full = !self.has_room() || lanes >= self.settings.lanes();
        if is_full && self.any_up() && !self.all_up() {
            self.sinks.values().for_each(|handle| handle.circuit.stop_waiting(INTERRUPTION_GRACE));
        }
    }

    /// Requests more records of a lane's key.
    pub(crate) fn ask_refill(&self, lane: Arc<Lane>) {
        // Without a driver the relay and the lane are ending.
        let _ = self.queues.refills.send(lane);
    }
}
