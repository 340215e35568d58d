//! What all answers of a process may hold while their clients take them, and which of them end for others.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::http::problem::Problem;

/// What all answers may hold together above their reserves.
pub(super) const BUDGET_BYTES: usize = 64 << 20;

/// What each answer may hold in any case. Parts are made so that few are larger.
pub(super) const RESERVE_BYTES: usize = 128 << 10;

/// The unit of the budget.
const UNIT: usize = 1 << 10;

/// The answers that wait for room at a time. Further ones wait in their turns, so that few texts are in memory.
const WAITING: usize = 4;

/// The interval at which an answer that waits for room ends the slowest one.
const PRESS: Duration = Duration::from_millis(250);

/// How long answers and their clients may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The longest time until a piece is taken. A client that reads 16 KB/s takes one every few seconds: the buffer of a
    /// connection ([`SEND_BUFFER_BYTES`](crate::listener::SEND_BUFFER_BYTES)) accepts more when a third of it is free.
    pub stalled: Duration,
    /// The same while others wait for room.
    pub pressed: Duration,
    /// The longest wait for a turn or for room: longer than `pressed`, so that slow answers end before.
    pub wait: Duration,
}

pub(super) const DEFAULT_PATIENCE: Patience = Patience {
    stalled: Duration::from_secs(30),
    pressed: Duration::from_secs(8),
    wait: Duration::from_secs(20),
};

/// A turn, as long as a text is in memory for which there is no room yet.
pub type HeldTurn = Arc<OwnedSemaphorePermit>;

/// The room of all answers: places, and bytes.
#[derive(Debug)]
pub(super) struct Room {
    places: Arc<Semaphore>,
    budget: Arc<Semaphore>,
    waiting: Semaphore,
    outgoing: Mutex<Vec<Arc<Pace>>>,
    pub(super) patience: Patience,
}

/// How an answer is taken.
#[derive(Debug)]
struct Pace {
    /// When the last piece of its text was taken, or offered; `None` while it has nothing to send.
    since: Mutex<Option<Instant>>,
    has_share: AtomicBool,
    /// Ends the answer.
    over: CancellationToken,
}

/// There is no room for an answer.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("clients take the answers of this process too slowly")]
pub(super) struct Overloaded;

impl From<Overloaded> for Problem {
    fn from(error: Overloaded) -> Self {
        // (Only its answer has no room.)
        Self::overloaded(error.to_string()).of_begun()
    }
}

impl Room {
    /// Room for this many answers at a time.
    pub(super) fn new(places: usize, patience: Patience) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places.min(Semaphore::MAX_PERMITS))),
            budget: Arc::new(Semaphore::new(BUDGET_BYTES / UNIT)),
            waiting: Semaphore::new(WAITING),
            outgoing: Mutex::default(),
            patience,
        }
    }

    /// A place for an answer that is sent in pieces.
    pub(super) async fn enter(
        self: &Arc<Self>,
        turn: Option<HeldTurn>,
    ) -> Result<Outgoing, Overloaded> {
        let place = self.acquire(&self.places, 1, turn, |_| true).await?;
        let pace = Arc::new(Pace {
            since: Mutex::new(None),
            has_share: AtomicBool::new(false),
            over: CancellationToken::new(),
        });
        self.outgoing.lock().push(pace.clone());
        Ok(Outgoing { room: self.clone(), pace, _place: place })
    }

    async fn acquire(
        &self,
        room: &Arc<Semaphore>,
        units: u32,
        turn: Option<HeldTurn>,
        has_of_it: fn(&Pace) -> bool,
    ) -> Result<OwnedSemaphorePermit, Overloaded> {
        if let Ok(permit) = room.clone().try_acquire_many_owned(units) {
            return Ok(permit);
        }
        let waiting = async {
            let _waiting = self.waiting.acquire().await;
            drop(turn);
            self.press(room, units, has_of_it).await
        };
        timeout(self.patience.wait, waiting).await.map_err(|_| Overloaded)
    }

    /// Waits for room, and ends slow answers meanwhile.
    async fn press(
        &self,
        room: &Arc<Semaphore>,
        units: u32,
        has_of_it: fn(&Pace) -> bool,
    ) -> OwnedSemaphorePermit {
        let mut acquiring = std::pin::pin!(room.clone().acquire_many_owned(units));
        loop {
            tokio::select! {
                Ok(permit) = &mut acquiring => return permit,
                () = sleep(PRESS) => self.end_slowest(has_of_it),
            }
        }
    }

    fn end_slowest(&self, has_of_it: fn(&Pace) -> bool) {
        let outgoing = self.outgoing.lock();
        let all = outgoing.iter().filter(|pace| has_of_it(pace));
        if let Some(slowest) = slowest(all, Instant::now(), self.patience.pressed) {
            slowest.over.cancel();
        }
    }

    /// What is free: places, and bytes.
    #[cfg(test)]
    pub(super) fn free(&self) -> (usize, usize) {
        (self.places.available_permits(), self.budget.available_permits() * UNIT)
    }
}

/// The answer of which nothing was taken for the longest time, if that is too long.
fn slowest<'p>(
    all: impl Iterator<Item = &'p Arc<Pace>>,
    now: Instant,
    pressed: Duration,
) -> Option<&'p Arc<Pace>> {
    let going = all.filter(|pace| !pace.over.is_cancelled());
    let waiting = going.filter_map(|pace| {
        let since = (*pace.since.lock())?;
        (now.saturating_duration_since(since) >= pressed).then_some((since, pace))
    });
    waiting.min_by_key(|(since, _)| *since).map(|(_, slowest)| slowest)
}

/// An answer that is being sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    room: Arc<Room>,
    pace: Arc<Pace>,
    _place: OwnedSemaphorePermit,
}

/// What an answer holds of the budget; by default nothing.
#[derive(Debug, Default)]
pub(super) struct Share {
    held: Option<(Arc<Pace>, OwnedSemaphorePermit)>,
}

impl Outgoing {
    /// Holds a text of this size, which is in memory. One that is larger than the budget takes all of it.
    pub(super) async fn hold(
        &self,
        bytes: usize,
        turn: Option<HeldTurn>,
    ) -> Result<Share, Overloaded> {
        let units = bytes.saturating_sub(RESERVE_BYTES).div_ceil(UNIT).min(BUDGET_BYTES / UNIT);
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        if units == 0 {
            return Ok(Share { held: None });
        }
        let has_share = |pace: &Pace| pace.has_share.load(Ordering::Relaxed);
        let permit = self.room.acquire(&self.room.budget, units, turn, has_share).await?;
        self.pace.has_share.store(true, Ordering::Relaxed);
        Ok(Share { held: Some((self.pace.clone(), permit)) })
    }

    /// How long its client may wait.
    pub(super) fn patience(&self) -> Patience {
        self.room.patience
    }

    /// A piece is offered to the client.
    pub(super) fn offer(&self) {
        *self.pace.since.lock() = Some(Instant::now());
    }

    /// The client has taken all that there is.
    pub(super) fn rest(&self) {
        *self.pace.since.lock() = None;
    }

    /// Ends when others need the room more.
    pub(super) async fn over(&self) {
        self.pace.over.cancelled().await;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some((pace, _)) = &self.held {
            pace.has_share.store(false, Ordering::Relaxed);
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.room.outgoing.lock().retain(|pace| !Arc::ptr_eq(pace, &self.pace));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slowest_answer_ends_unless_it_is_taken_or_has_nothing_to_send() {
        let now = Instant::now() + Duration::from_secs(60);
        let pace = |seconds: Option<u64>| {
            let since = seconds.map(|seconds| now - Duration::from_secs(seconds));
            let over = CancellationToken::new();
            Arc::new(Pace { since: Mutex::new(since), has_share: false.into(), over })
        };
        let (slow, slower) = (pace(Some(9)), pace(Some(12)));
        let all = [slow.clone(), slower.clone(), pace(Some(7)), pace(None)];
        let next = || slowest(all.iter(), now, DEFAULT_PATIENCE.pressed);

        assert!(Arc::ptr_eq(next().unwrap(), &slower));
        slower.over.cancel();
        assert!(Arc::ptr_eq(next().unwrap(), &slow));
        slow.over.cancel();
        assert!(next().is_none());
    }
}
