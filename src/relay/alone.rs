//! Records that go alone: suspects of a crash, records that lost their connection twice, and
//! records that probe a destination that does not confirm.
//!
//! Each is leased by itself and published on its sink's isolated connection, so that whatever
//! happens is its doing and its neighbours do not notice. Suspects of a crash take turns within the
//! process: the next one may end it. Records that lost their connection take turns within their
//! sink, those first that may be innocent. The turn passes on when the outcome is settled.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

use crate::outbox::fields::PENDING;
use crate::outbox::record::{LaneKey, Record};
use crate::relay::blocker::Blocker;
use crate::relay::lane::{Lane, LaneEnd};
use crate::relay::plan::Way;
use crate::relay::shared::Shared;
use crate::sink::{Address, Sink};
use crate::store::StoreError;

/// Whose turn it is to go alone.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    turn: Arc<Semaphore>,
    /// Those that wait and may be innocent.
    innocent: watch::Sender<usize>,
}

/// One of those, until it has its turn.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The turn itself; dropped, it passes on.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// Room for the large ones among the records that probe: they are in memory beside all that
/// `relay.batch_bytes` bounds.
#[derive(Debug)]
pub(crate) struct ProbeRoom {
    kilobytes: Semaphore,
    all: u32,
}

impl ProbeRoom {
    /// A record up to this size needs none: there are few probes.
    const SMALL: usize = 64 << 10;

    /// A quarter of this.
    pub(crate) fn new(batch_bytes: usize) -> Self {
        let all = u32::try_from(batch_bytes / 4 / 1_024).unwrap_or(u32::MAX);
        let all = all.clamp(1, Semaphore::MAX_PERMITS.try_into().unwrap_or(u32::MAX));
        Self { kilobytes: Semaphore::new(all as usize), all }
    }

    /// Waits, in its turn, for room for a record of this size, or for all that there is.
    async fn enter(&self, size: usize) -> Option<SemaphorePermit<'_>> {
        if size <= Self::SMALL {
            return None;
        }
        let kilobytes = u32::try_from(size.div_ceil(1_024)).unwrap_or(u32::MAX);
        // It is never closed.
        self.kilobytes.acquire_many(kilobytes.min(self.all)).await.ok()
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self { turn: Arc::new(Semaphore::new(1)), innocent: watch::Sender::new(0) }
    }
}

impl Turns {
    /// The next turn. One that is known to be guilty lets all others go before it.
    async fn next(&self, is_guilty: bool) -> Option<Turn> {
        let waiting = (!is_guilty).then(|| {
            self.innocent.send_modify(|count| *count += 1);
            Waiting(&self.innocent)
        });
        let mut innocent = self.innocent.subscribe();
        loop {
            // Neither is ever closed.
            if waiting.is_none() {
                innocent.wait_for(|count| *count == 0).await.ok()?;
            }
            let permit = self.turn.clone().acquire_owned().await.ok()?;
            if waiting.is_some() || *innocent.borrow() == 0 {
                return Some(Turn { _permit: permit });
            }
        }
    }
}

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
            Ok(Some(record)) if head.is(&record) => self.in_its_lane(record),
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
        let mut running = std::pin::pin!(lane.clone().run(self));
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn who_may_be_innocent_goes_before_all_that_are_guilty() {
        let turns = Turns::default();
        let held = turns.next(false).await.unwrap();
        let mut guilty = Box::pin(turns.next(true));
        assert!(guilty.as_mut().now_or_never().is_none());
        let mut innocent = Box::pin(turns.next(false));
        assert!(innocent.as_mut().now_or_never().is_none());

        drop(held);
        assert!(guilty.as_mut().now_or_never().is_none(), "one that may be innocent came later");
        let turn = innocent.await.unwrap();
        assert!(guilty.as_mut().now_or_never().is_none());
        drop(turn);

        assert!(guilty.await.is_some());
    }
}
