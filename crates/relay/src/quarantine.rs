//! Quarantine: delivers records in isolation that may crash the process, that lost their connection
//! twice, or that probe a destination which does not confirm.
//!
//! Each is leased by itself and published on its sink's isolated connection, so that a record which
//! crashes the process or breaks its connection is identified and disturbs no other. Records that
//! may crash the process take turns within the process: the next one may end it. Records that lost
//! their connection take turns within their sink, possibly innocent ones first. A turn ends when
//! the outcome is settled.

use std::sync::Arc;
use std::time::Instant;

use postrider_outbox::fields::PENDING;
use postrider_outbox::record::{LaneKey, Record};
use postrider_store::StoreError;
use tokio::sync::SemaphorePermit;
use tracing::debug;

use crate::acquirer::Acquirer;
use crate::addressing::{self, availability};
use crate::blocker::Blocker;
use crate::context::{RelayContext, SinkHandle};
use crate::destination_circuits::Probe;
use crate::lane::{Lane, LaneEnd};
use crate::lane_worker;
use crate::plan::Availability;
use crate::sink::{Address, Sink};
use crate::turns::Turn;

/// A record that waits for its turn. It does not keep its payload: any number of candidates may
/// wait.
#[derive(Debug)]
pub struct Candidate {
    lane: LaneKey,
    /// The record as it was read.
    head: Blocker,
    sink: Option<String>,
    /// The destination that it probes.
    destination: Option<Address>,
    size: usize,
    read_at: Instant,
    waits_for: Queue,
}

/// What a candidate waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// The turn of a record that may crash the process, one at a time in this process.
    Poison,
    /// The turn of a record that lost the sink's connection, one at a time for each sink.
    ConnectionLosses,
    /// Nothing: the circuit admits one probe at a time.
    Probes,
}

/// The turn of a record. Kept until the lane has ended, and with it all effects of the record.
struct Permit<'a> {
    _turn: Option<Turn>,
    probe: Option<Probe<'a>>,
    _room: Option<SemaphorePermit<'a>>,
}

/// Delivers quarantined records.
#[derive(Debug)]
pub struct Quarantine<'a, S> {
    context: &'a RelayContext<S>,
}

impl<'a, S: Sink> Quarantine<'a, S> {
    /// Creates the quarantine of this relay.
    pub fn new(context: &'a RelayContext<S>) -> Self {
        Self { context }
    }

    /// Creates the candidate of a record that was just read.
    pub(super) fn candidate(&self, record: &Record) -> Candidate {
        let sink = addressing::sink_name(self.context, record).map(str::to_owned);
        let waits_for = if record.is_poison() {
            Queue::Poison
        } else if self.context.state.connection_losses.must_be_isolated(&record.id) {
            Queue::ConnectionLosses
        } else {
            Queue::Probes
        };
        let handle = addressing::sink_of(self.context, record);
        let handle = handle.filter(|_| waits_for == Queue::Probes);
        let destination =
            handle.and_then(|handle| addressing::destination_of(self.context, handle, record));
        let (lane, head) = (record.lane.clone(), Blocker::of(record));
        let (size, read_at) = (record.size(), Instant::now());
        debug!(record.id = %record.id, key = lane.as_str(), sink, cause = ?waits_for, "quarantined a record");
        Candidate { lane, head, sink, destination, size, read_at, waits_for }
    }

    /// Waits for the candidate's turn, leases its record and delivers it. Returns `None` if it was
    /// not delivered: a peer has leased it, it has changed, its sink or destination is down, or a
    /// stop came.
    ///
    /// The record was the head of its key when it was read, and later records of the key are behind
    /// it. So only the record itself is read again.
    pub async fn deliver(
        &self,
        candidate: Candidate,
    ) -> Result<Option<(Arc<Lane>, LaneEnd)>, StoreError> {
        let Candidate { lane: key, head, .. } = &candidate;
        let key_table = &self.context.state.key_table;
        let handle = candidate.sink.as_ref().and_then(|sink| self.context.sinks.get(sink));
        let Some(mut permit) = self.permit(&candidate, handle).await else {
            // A scan finds it again and plans it again.
            key_table.unblock(key);
            return Ok(None);
        };
        let record = match self.context.read(&head.id, PENDING).await {
            Ok(Some(record)) if head.is(&record) && record.unfit.is_none() => {
                self.context.in_lane(record)
            }
            changed => {
                key_table.unblock(key);
                return changed.map(|_| None);
            }
        };
        if !self.may_go(&record, candidate.waits_for, handle, &mut permit) {
            return Ok(None);
        }
        let lane = Lane::quarantined(key.clone(), head.partition);
        if !key_table.start_quarantined(&lane, head) {
            return Ok(None);
        }
        debug!(record.id = %record.id, key = key.as_str(), "delivering a quarantined record");
        let acquirer = Acquirer::new(self.context);
        let Some(lane) = acquirer.acquire_one(lane, record).await? else { return Ok(None) };
        let mut running = std::pin::pin!(lane_worker::run(lane.clone(), self.context));
        let end = tokio::select! {
            end = &mut running => end,
            // Its outcome is known, and refused until an operator changes a validator.
            () = lane.refused() => {
                drop(permit);
                running.await
            }
        };
        Ok(Some((lane, end)))
    }

    /// Returns whether a record that was read again may go. Unblocks its key if it may not.
    fn may_go(
        &self,
        record: &Record,
        waits_for: Queue,
        handle: Option<&'a SinkHandle<S>>,
        permit: &mut Permit<'a>,
    ) -> bool {
        let key_table = &self.context.state.key_table;
        match availability(self.context, record) {
            // Its destination confirms again: it goes with the others.
            Availability::Available if waits_for == Queue::Probes => {
                key_table.unblock(&record.lane);
                false
            }
            Availability::Available => true,
            availability => {
                if availability == Availability::Probe && permit.probe.is_none() {
                    permit.probe = handle.and_then(|handle| {
                        let destination = addressing::destination_of(self.context, handle, record)?;
                        handle.destinations.begin_probe(&destination)
                    });
                }
                let is_up = handle.is_none_or(|handle| handle.circuit.is_closed());
                if is_up && permit.probe.is_some() {
                    return true;
                }
                key_table.unblock(&record.lane);
                if is_up {
                    addressing::block_for_destination(self.context, record);
                }
                false
            }
        }
    }

    /// Waits until only a new read can show that the candidate must wait. Returns `None` if it must
    /// not go now.
    async fn permit(
        &self,
        candidate: &Candidate,
        handle: Option<&'a SinkHandle<S>>,
    ) -> Option<Permit<'a>> {
        let state = &self.context.state;
        let turns = match candidate.waits_for {
            Queue::Poison => Some(&state.turns),
            Queue::ConnectionLosses => handle.map(|handle| &handle.turns),
            Queue::Probes => None,
        };
        let turn = match turns {
            None => None,
            Some(turns) => tokio::select! {
                turn = turns.next(state.connection_losses.is_guilty(&candidate.head.id)) => Some(turn?),
                () = self.context.stopping() => return None,
            },
        };
        let is_outdated = candidate.read_at.elapsed() > self.context.settings.lease;
        if is_outdated || self.context.is_stopping() {
            return None;
        }
        if candidate.waits_for != Queue::Probes {
            return Some(Permit { _turn: turn, probe: None, _room: None });
        }
        // Begins before it waits for room: its destination calls no other record meanwhile.
        let probe = handle?.destinations.begin_probe(candidate.destination.as_ref()?)?;
        let room = tokio::select! {
            room = state.probe_budget.enter(candidate.size) => room,
            () = self.context.stopping() => return None,
        };
        Some(Permit { _turn: turn, probe: Some(probe), _room: room })
    }
}
