//! The places of a listener: who has one, and who loses it to a new connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// What a full listener does with connections whose clients do not read the end of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    /// They keep their places: an answer may be long, and its client slow.
    Kept,
    /// They are closed if there is no connection without a request: answers are short, and a probe of
    /// the kubelet must find a place.
    Closed,
}

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    limit: usize,
    unread: Unread,
    registry: Mutex<Registry>,
    /// A place was freed, or a connection may be closed for a new one. Only the accept loop waits.
    changed: Notify,
}

#[derive(Debug, Default)]
struct Registry {
    /// The places taken, with those of closed connections that have not ended yet.
    taken: usize,
    /// The closed connections that have not ended yet.
    leaving: usize,
    /// Orders the connections by the time when they came to wait.
    next: u64,
    /// The connections without a complete request.
    idle: BTreeMap<u64, CancellationToken>,
    /// The connections whose client has not read the end of its answer.
    unread: BTreeMap<u64, CancellationToken>,
}

impl Registry {
    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Places {
    pub(super) fn new(limit: usize, unread: Unread) -> Arc<Self> {
        Arc::new(Self { limit, unread, registry: Mutex::default(), changed: Notify::new() })
    }

    /// Takes a place, and closes a connection if there is none. Returns whether it closed one.
    pub(super) async fn take(self: &Arc<Self>) -> (Arc<Place>, bool) {
        let mut closed = false;
        loop {
            if let Some(place) = self.try_take() {
                return (place, closed);
            }
            closed |= self.close_oldest();
            self.changed.notified().await;
        }
    }

    /// Waits up to `limit` until a place is freed, after closing a connection if that helps.
    pub(super) async fn make_room(&self, helps: bool, limit: Duration) {
        if helps {
            self.close_oldest();
        }
        let _ = tokio::time::timeout(limit, self.changed.notified()).await;
    }

    fn try_take(self: &Arc<Self>) -> Option<Arc<Place>> {
        let mut registry = self.registry.lock();
        if registry.taken >= self.limit {
            return None;
        }
        registry.taken += 1;
        let (since, lost) = (registry.tick(), CancellationToken::new());
        registry.idle.insert(since, lost.clone());
        let phase = Mutex::new(Phase::Idle { since });
        Some(Arc::new(Place { places: self.clone(), phase, lost }))
    }

    /// Closes the connection that has been without a request for the longest time, one after the other:
    /// each frees its place first.
    fn close_oldest(&self) -> bool {
        let mut registry = self.registry.lock();
        if registry.leaving > 0 {
            return false;
        }
        let mut oldest = registry.idle.pop_first();
        if oldest.is_none() && self.unread == Unread::Closed {
            oldest = registry.unread.pop_first();
        }
        let Some((_, lost)) = oldest else { return false };
        registry.leaving += 1;
        lost.cancel();
        true
    }
}

/// The place of one connection. It is freed when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    phase: Mutex<Phase>,
    /// Cancelled when a new connection gets this place.
    lost: CancellationToken,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has sent no complete header since then.
    Idle { since: u64 },
    /// Its request is being answered.
    Answering,
    /// Its request is being answered, and since then its client has read nothing. (Only where that matters.)
    Stalled { since: u64 },
    /// Its answer is complete since then, and not yet sent.
    Unread { since: u64 },
    /// A new connection gets its place.
    Lost,
}

impl Place {
    /// Resolves when a new connection gets this place.
    pub(super) async fn lost(&self) {
        self.lost.cancelled().await;
    }

    /// Keeps the place until the returned value is dropped; `None` if it is lost already.
    pub(super) fn begin_answer(self: &Arc<Self>) -> Option<Answering> {
        let mut phase = self.phase.lock();
        let keeps = self.unregister(*phase);
        *phase = if keeps { Phase::Answering } else { Phase::Lost };
        keeps.then(|| Answering(self.clone()))
    }

    /// Everything that was written has been sent.
    pub(super) fn flushed(&self) {
        let mut phase = self.phase.lock();
        if let Phase::Unread { .. } = *phase {
            *phase = if self.unregister(*phase) {
                let mut registry = self.places.registry.lock();
                let since = registry.tick();
                registry.idle.insert(since, self.lost.clone());
                Phase::Idle { since }
            } else {
                Phase::Lost
            };
            self.places.changed.notify_one();
        }
    }

    /// Whether the client reads what is written to it.
    pub(super) fn reads(&self, reads: bool) {
        if self.places.unread == Unread::Kept {
            return;
        }
        let mut phase = self.phase.lock();
        *phase = match *phase {
            Phase::Answering if !reads => Phase::Stalled { since: self.register_unread() },
            Phase::Stalled { .. } if reads && self.unregister(*phase) => Phase::Answering,
            Phase::Stalled { .. } if reads => Phase::Lost,
            other => other,
        };
    }

    fn register_unread(&self) -> u64 {
        let mut registry = self.places.registry.lock();
        let since = registry.tick();
        registry.unread.insert(since, self.lost.clone());
        drop(registry);
        self.places.changed.notify_one();
        since
    }

    /// Returns whether the place was not lost.
    fn unregister(&self, phase: Phase) -> bool {
        let mut registry = self.places.registry.lock();
        match phase {
            Phase::Idle { since } => registry.idle.remove(&since).is_some(),
            Phase::Stalled { since } | Phase::Unread { since } => {
                registry.unread.remove(&since).is_some()
            }
            Phase::Answering => true,
            Phase::Lost => false,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let phase = *self.phase.get_mut();
        self.unregister(phase);
        let mut registry = self.places.registry.lock();
        registry.taken -= 1;
        if self.lost.is_cancelled() {
            registry.leaving -= 1;
        }
        drop(registry);
        self.places.changed.notify_one();
    }
}

/// A request that is being answered: its connection keeps its place.
#[derive(Debug)]
pub(super) struct Answering(Arc<Place>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut phase = self.0.phase.lock();
        *phase = match *phase {
            Phase::Answering => Phase::Unread { since: self.0.register_unread() },
            Phase::Stalled { since } => Phase::Unread { since },
            other => other,
        };
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_lost(place: &Place) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[tokio::test]
    async fn new_connection_gets_the_place_of_the_oldest_idle_one() {
        let places = Places::new(3, Unread::Kept);
        let (first, _) = places.take().await;
        let (second, _) = places.take().await;
        let (third, closed) = places.take().await;
        assert!(!closed);
        // It answered meanwhile, so another one waits for longer.
        drop(first.begin_answer());
        first.flushed();
        let answering = third.begin_answer().unwrap();

        let mut taking = Box::pin(places.take());
        assert!((&mut taking).now_or_never().is_none(), "the closed one has not ended yet");
        assert!(is_lost(&second) && !is_lost(&first) && !is_lost(&third));
        assert!(second.begin_answer().is_none(), "a request that came too late is not answered");
        drop(second);
        let (fourth, closed) = taking.now_or_never().unwrap();
        assert!(closed);

        let answering = [answering, first.begin_answer().unwrap(), fourth.begin_answer().unwrap()];
        let mut taking = Box::pin(places.take());
        assert!((&mut taking).now_or_never().is_none());
        assert!(![&first, &third, &fourth].into_iter().any(|place| is_lost(place)));
        drop(answering);
        assert!((&mut taking).now_or_never().is_none());
        assert!(![&first, &third, &fourth].into_iter().any(|place| is_lost(place)), "not yet sent");
        fourth.flushed();
        assert!((&mut taking).now_or_never().is_none());
        assert!(is_lost(&fourth));
        drop(fourth);
        assert!(taking.now_or_never().unwrap().1);
    }

    #[tokio::test]
    async fn unread_answer_loses_its_place_where_answers_are_short() {
        let places = Places::new(3, Unread::Closed);
        let [stalled, unread, idle] =
            [places.take().await.0, places.take().await.0, places.take().await.0];
        let answering = stalled.begin_answer().unwrap();
        stalled.reads(false);
        drop(unread.begin_answer());
        unread.reads(true);

        let mut taking = Box::pin(places.take());
        assert!((&mut taking).now_or_never().is_none());
        assert!(is_lost(&idle) && !is_lost(&stalled) && !is_lost(&unread));
        drop(idle);
        let (fourth, _) = taking.now_or_never().unwrap();
        let _kept = fourth.begin_answer().unwrap();

        let mut taking = Box::pin(places.take());
        assert!((&mut taking).now_or_never().is_none());
        assert!(is_lost(&stalled) && !is_lost(&unread) && !is_lost(&fourth));
        drop((answering, stalled));
        assert!(taking.now_or_never().unwrap().1);
    }

    #[tokio::test]
    async fn client_that_reads_again_keeps_its_place() {
        let places = Places::new(1, Unread::Closed);
        let (place, _) = places.take().await;
        let _answering = place.begin_answer().unwrap();
        place.reads(false);
        place.reads(true);

        assert!(places.take().now_or_never().is_none());
        assert!(!is_lost(&place));
    }
}
