//! Turns of quarantined records, and room for large records that probe.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit, watch};

/// The turn to be delivered in quarantine.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    turn: Arc<Semaphore>,
    /// The number of waiting records that may be innocent.
    innocent: watch::Sender<usize>,
}

/// A record that waits for its turn.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// One turn; dropping it passes it on.
#[derive(Debug)]
pub(crate) struct Turn {
    _permit: OwnedSemaphorePermit,
}

/// Room for large records that probe: their memory is in addition to what `relay.batch_bytes`
/// bounds.
#[derive(Debug)]
pub(crate) struct ProbeBudget {
    kilobytes: Semaphore,
    all: u32,
}

impl ProbeBudget {
    /// Size up to which a record needs no room: there are few probes.
    const SMALL_BYTES: usize = 64 << 10;

    /// Creates room for a quarter of this size.
    pub(crate) fn new(batch_bytes: usize) -> Self {
        let all = u32::try_from(batch_bytes / 4 / 1_024).unwrap_or(u32::MAX);
        let all = all.clamp(1, Semaphore::MAX_PERMITS.try_into().unwrap_or(u32::MAX));
        Self { kilobytes: Semaphore::new(all as usize), all }
    }

    /// Waits, in order, for room for a record of this size, or for all room.
    pub(super) async fn enter(&self, size: usize) -> Option<SemaphorePermit<'_>> {
        if size <= Self::SMALL_BYTES {
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
    /// Waits for the next turn. A record that is known to be guilty lets all others go first.
    pub(super) async fn next(&self, is_guilty: bool) -> Option<Turn> {
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn innocent_records_go_before_guilty_ones() {
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
