//! Those that go alone: suspects of a crash, and records that lost their connection twice.
//!
//! One at a time takes its turn: it is leased by itself, so that a crash charges nobody else,
//! and published while nothing else is on its sink, so that whatever happens is its doing. The
//! turn passes on when its outcome is settled: the next one may end this process.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::outbox::record::Record;
use crate::relay::lane::{Lane, LaneEnd};
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
    /// that: it was taken by a peer, its sink is down, or a stop came.
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
        let turn = tokio::select! {
            turn = self.turns.next() => turn,
            () = self.stopping() => None,
        };
        let late = read_at.elapsed() > self.settings.lease;
        let goes = !late && !self.is_stopping() && !self.is_paused(&record);
        // Kept until the lane has ended, and with it all that it may do.
        let (Some(_turn), true) = (turn, goes) else {
            // The rotation meets it again.
            self.hands.free_waiting(&record.lane);
            return Ok(None);
        };
        let lane = Lane::alone(record.lane.clone(), record.partition.unwrap_or(0));
        if !self.hands.take_turn(&lane) {
            return Ok(None);
        }
        let Some(lane) = self.lease_one(lane, record).await? else { return Ok(None) };
        let end = lane.clone().run(self).await;
        Ok(Some((lane, end)))
    }
}
