//! Records that go alone: suspects of a crash, records that lost their connection twice, and
//! records that probe a destination that does not confirm.
//!
//! Each is leased by itself and published on its sink's isolated connection, so that whatever
//! happens is its doing and its neighbours do not notice. Suspects of a crash take turns within the
//! process: the next one may end it. Records that lost their connection take turns within their
//! sink. The turn passes on when the outcome is settled.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::outbox::record::Record;
use crate::relay::blocker::Blocker;
use crate::relay::hands::{HoldReason, Wait};
use crate::relay::lane::{Lane, LaneEnd};
use crate::relay::plan::Way;
use crate::relay::shared::Shared;
use crate::sink::Sink;
use crate::store::StoreError;

/// Whose turn it is to go alone.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Semaphore>);

/// The turn itself; dropped, it passes on.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Turns {
    async fn next(&self) -> Option<Turn> {
        // Never closed.
        let permit = self.0.clone().acquire_owned().await.ok()?;
        Some(Turn { _permit: permit })
    }
}

impl<S: Sink> Shared<S> {
    /// Waits for its turn, takes the record and delivers it. `None` where it did not come to
    /// that: it was taken by a peer, its sink or destination is paused, or a stop came.
    ///
    /// The record was its key's head when it was read, and whatever comes into its key later
    /// comes behind it; so the snapshot need not be read again.
    ///
    /// # Errors
    ///
    /// Those of the store, at the lease.
    pub async fn go_alone(
        &self,
        record: Record,
        read_at: Instant,
    ) -> Result<Option<(Arc<Lane>, LaneEnd)>, StoreError> {
        let outlet = self.sink_of(&record).and_then(|sink| self.outlets.get(sink));
        // It was planned by its expired lease; the clock may have been corrected since.
        let is_suspect = record.lease_until.is_some();
        let turns = match outlet {
            _ if is_suspect => Some(&self.turns),
            Some(outlet) if self.losses.goes_alone(&record.id) => Some(&outlet.turns),
            Some(_) | None => None,
        };
        let turn = match turns {
            None => None,
            Some(turns) => tokio::select! {
                turn = turns.next() => turn,
                () = self.stopping() => None,
            },
        };
        let late = read_at.elapsed() > self.settings.lease;
        let way = self.way(&record);
        let is_paused = matches!(way, Way::Paused(_));
        // Kept, like the turn, until the lane has ended, and with it all that it may do.
        let probe = match (way, outlet) {
            (Way::Probe, Some(outlet)) => {
                let destination = self.destination_of(outlet, &record);
                destination.and_then(|destination| outlet.circuits.begin_probe(&destination))
            }
            _ => None,
        };
        let waits = is_paused || (way == Way::Probe && probe.is_none());
        if late || self.is_stopping() || waits || (turns.is_some() && turn.is_none()) {
            // The rotation meets it again.
            self.hands.free_waiting(&record.lane);
            if waits && outlet.is_some_and(|outlet| outlet.gate.is_open()) {
                let until = Instant::now() + self.settings.probe_max;
                let blocker = Blocker::of(&record);
                let mut wait = Wait::new(HoldReason::DestinationPaused, blocker, Some(until));
                wait.sink = self.sink_of(&record).map(Into::into);
                self.hands.hold(record.lane, wait);
            }
            return Ok(None);
        }
        let lane = Lane::alone(record.lane.clone(), record.partition.unwrap_or(0));
        if !self.hands.take_turn(&lane, &Blocker::of(&record)) {
            return Ok(None);
        }
        let Some(lane) = self.lease_one(lane, record).await? else { return Ok(None) };
        let mut running = std::pin::pin!(lane.clone().run(self));
        let end = tokio::select! {
            end = &mut running => end,
            // Its outcome is known, and refused for as long as a validator is as it is.
            () = lane.refused() => {
                drop((turn, probe));
                running.await
            }
        };
        Ok(Some((lane, end)))
    }
}
