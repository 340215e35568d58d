//! Records that go alone: suspects of a crash, records that lost their connection twice, and
//! records that probe a destination that does not confirm.
//!
//! Each is leased by itself and published on its sink's isolated connection, so that whatever
//! happens is its doing and its neighbours do not notice. Suspects of a crash take turns within the
//! process: the next one may end it. Records that lost their connection take turns within their
//! sink, those first that may be innocent. The turn passes on when the outcome is settled.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::SemaphorePermit;

use crate::outbox::fields::PENDING;
use crate::outbox::record::{LaneKey, Record};
use crate::relay::blocker::Blocker;
use crate::relay::circuits::Probe;
use crate::relay::lane::{Lane, LaneEnd};
use crate::relay::plan::Way;
use crate::relay::shared::{Outlet, Shared};
use crate::relay::turns::Turn;
use crate::relay::worker;
use crate::sink::{Address, Sink};
use crate::store::StoreError;

/// A record that waits for its turn to go alone. Its payload is not kept meanwhile: any number may
/// wait.
#[derive(Debug)]
pub struct Candidate {
    lane: LaneKey,
    /// The record, as it was read.
    head: Blocker,
    sink: Option<String>,
    /// What it is to probe.
    destination: Option<Address>,
    size: usize,
    read_at: Instant,
    waits_for: Queue,
}

/// Whose turn a candidate waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Queue {
    /// That of the suspects of a crash, one at a time in this process.
    Suspects,
    /// That of the records that lost the sink's connection, one at a time for each sink.
    Losses,
    /// None: the circuit admits one at a time.
    Probes,
}

/// What a candidate waited for. Kept until its lane has ended, and with it all that it may do.
struct Permit<'a> {
    _turn: Option<Turn>,
    probe: Option<Probe<'a>>,
    _room: Option<SemaphorePermit<'a>>,
}

impl<S: Sink> Shared<S> {
    /// The candidate of a record that was just read.
    pub(crate) fn candidate(&self, record: &Record) -> Candidate {
        let sink = self.sink_of(record).map(str::to_owned);
        // It was planned by its expired lease; the clock may have been corrected since.
        let waits_for = if record.lease_until.is_some() {
            Queue::Suspects
        } else if self.losses.goes_alone(&record.id) {
            Queue::Losses
        } else {
            Queue::Probes
        };
        let outlet = self.sink_of(record).and_then(|sink| self.outlets.get(sink));
        let outlet = outlet.filter(|_| waits_for == Queue::Probes);
        let destination = outlet.and_then(|outlet| self.destination_of(outlet, record));
        let (lane, head) = (record.lane.clone(), Blocker::of(record));
        let (size, read_at) = (record.size(), Instant::now());
        Candidate { lane, head, sink, destination, size, read_at, waits_for }
    }

    /// Waits for its turn, takes the record and delivers it. `None` where it did not come to
    /// that: it was taken by a peer, has changed, its sink or destination is paused, or a stop
    /// came.
    ///
    /// The record was its key's head when it was read, and whatever comes into its key later
    /// comes behind it; so of the key no more than the record itself is read again.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn go_alone(
        &self,
        candidate: Candidate,
    ) -> Result<Option<(Arc<Lane>, LaneEnd)>, StoreError> {
        let Candidate { lane: key, head, .. } = &candidate;
        let outlet = candidate.sink.as_ref().and_then(|sink| self.outlets.get(sink));
        let Some(mut permit) = self.permit(&candidate, outlet).await else {
            // The rotation meets it again, and plans it anew.
            self.hands.free_waiting(key);
            return Ok(None);
        };
        let record = match self.read_again(&head.id, PENDING).await {
            Ok(Some(record)) if head.is(&record) && record.unfit.is_none() => {
                self.in_its_lane(record)
            }
            changed => {
                self.hands.free_waiting(key);
                return changed.map(|_| None);
            }
        };
        match self.way(&record) {
            // Its destination confirms again: it goes with the others.
            Way::Open if candidate.waits_for == Queue::Probes => {
                self.hands.free_waiting(key);
                return Ok(None);
            }
            Way::Open => {}
            way => {
                if way == Way::Probe && permit.probe.is_none() {
                    permit.probe = outlet.and_then(|outlet| {
                        outlet.circuits.begin_probe(&self.destination_of(outlet, &record)?)
                    });
                }
                let is_up = outlet.is_none_or(|outlet| outlet.gate.is_open());
                if !is_up || permit.probe.is_none() {
                    self.hands.free_waiting(key);
                    if is_up {
                        self.hold_for_destination(&record);
                    }
                    return Ok(None);
                }
            }
        }
        let lane = Lane::alone(key.clone(), head.partition);
        if !self.hands.take_turn(&lane, head) {
            return Ok(None);
        }
        let Some(lane) = self.lease_one(lane, record).await? else { return Ok(None) };
        let mut running = std::pin::pin!(worker::run(lane.clone(), self));
        let end = tokio::select! {
            end = &mut running => end,
            // Its outcome is known, and refused for as long as a validator is as it is.
            () = lane.refused() => {
                drop(permit);
                running.await
            }
        };
        Ok(Some((lane, end)))
    }

    /// Waits until nothing is in the candidate's way but what a new read may show. `None` where it
    /// is not to go now.
    async fn permit<'a>(
        &'a self,
        candidate: &Candidate,
        outlet: Option<&'a Outlet<S>>,
    ) -> Option<Permit<'a>> {
        let turns = match candidate.waits_for {
            Queue::Suspects => Some(&self.turns),
            Queue::Losses => outlet.map(|outlet| &outlet.turns),
            Queue::Probes => None,
        };
        let turn = match turns {
            None => None,
            Some(turns) => tokio::select! {
                turn = turns.next(self.losses.is_guilty(&candidate.head.id)) => Some(turn?),
                () = self.stopping() => return None,
            },
        };
        if candidate.read_at.elapsed() > self.settings.lease || self.is_stopping() {
            return None;
        }
        if candidate.waits_for != Queue::Probes {
            return Some(Permit { _turn: turn, probe: None, _room: None });
        }
        // Before it waits for room: its destination calls no other meanwhile.
        let probe = outlet?.circuits.begin_probe(candidate.destination.as_ref()?)?;
        let room = tokio::select! {
            room = self.probe_room.enter(candidate.size) => room,
            () = self.stopping() => return None,
        };
        Some(Permit { _turn: turn, probe: Some(probe), _room: room })
    }
}
