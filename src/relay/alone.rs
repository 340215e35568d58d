//! Records that go alone: suspects of a crash, records that lost their connection twice, and
//! records that probe a destination that does not confirm.
//!
//! Each is leased by itself and published on its sink's isolated connection, so that whatever
//! happens is its doing and its neighbours do not notice. Suspects of a crash take turns within the
//! process: the next one may end it. Records that lost their connection take turns within their
//! sink, those first that may be innocent. The turn passes on when the outcome is settled.

use std::sync::Arc;
use std::time::Instant;

use crate::outbox::fields::PENDING;
use crate::outbox::record::{LaneKey, Record};
use crate::relay::blocker::Blocker;
use crate::relay::lane::{Lane, LaneEnd};
use crate::relay::plan::Way;
use crate::relay::shared::Shared;
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
        let Candidate { lane: key, head, sink, destination, size, read_at, waits_for } = candidate;
        let outlet = sink.as_ref().and_then(|sink| self.outlets.get(sink));
        let turns = match waits_for {
            Queue::Suspects => Some(&self.turns),
            Queue::Losses => outlet.map(|outlet| &outlet.turns),
            Queue::Probes => None,
        };
        let turn = match turns {
            None => None,
            Some(turns) => tokio::select! {
                turn = turns.next(self.losses.is_guilty(&head.id)) => turn,
                () = self.stopping() => None,
            },
        };
        let is_late = read_at.elapsed() > self.settings.lease;
        if is_late || self.is_stopping() || (turns.is_some() && turn.is_none()) {
            // The rotation meets it again.
            self.hands.free_waiting(&key);
            return Ok(None);
        }
        let is_probe = waits_for == Queue::Probes;
        // First of all, and kept while it waits for room: its destination calls no other meanwhile.
        let mut probe = match (is_probe, outlet, destination) {
            (true, Some(outlet), Some(destination)) => outlet.circuits.begin_probe(&destination),
            _ => None,
        };
        if is_probe && probe.is_none() {
            // It is planned anew.
            self.hands.free_waiting(&key);
            return Ok(None);
        }
        let room = tokio::select! {
            room = self.probe_room.enter(size), if is_probe => room,
            () = self.stopping(), if is_probe => {
                self.hands.free_waiting(&key);
                return Ok(None);
            }
            else => None,
        };
        let record = match self.read_again(&head.id, PENDING).await {
            Ok(Some(record)) if head.is(&record) && record.unfit.is_none() => {
                self.in_its_lane(record)
            }
            changed => {
                self.hands.free_waiting(&key);
                return changed.map(|_| None);
            }
        };
        let way = self.way(&record);
        if way == Way::Open && is_probe {
            // Its destination confirms again: it goes with the others.
            self.hands.free_waiting(&key);
            return Ok(None);
        }
        // Kept, like the turn, until the lane has ended, and with it all that it may do.
        if let (Way::Probe, Some(outlet)) = (way, outlet) {
            let destination = self.destination_of(outlet, &record);
            let begun = |destination| outlet.circuits.begin_probe(&destination);
            probe = probe.or_else(|| destination.and_then(begun));
        }
        let is_up = outlet.is_none_or(|outlet| outlet.gate.is_open());
        if way != Way::Open && !(is_up && probe.is_some()) {
            self.hands.free_waiting(&key);
            if outlet.is_some_and(|outlet| outlet.gate.is_open()) {
                self.hold_for_destination(&record);
            }
            return Ok(None);
        }
        let lane = Lane::alone(key, head.partition);
        if !self.hands.take_turn(&lane, &head) {
            return Ok(None);
        }
        let Some(lane) = self.lease_one(lane, record).await? else { return Ok(None) };
        let mut running = std::pin::pin!(worker::run(lane.clone(), self));
        let end = tokio::select! {
            end = &mut running => end,
            // Its outcome is known, and refused for as long as a validator is as it is.
            () = lane.refused() => {
                drop((turn, probe, room));
                running.await
            }
        };
        Ok(Some((lane, end)))
    }
}
