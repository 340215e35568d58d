//! The pools of connections of a process, and whether one of them is starved.
//!
//! The driver reports that an operation asks for a connection, and that one has got it. It reports nothing when
//! an operation is given up while it waits, so that those that wait cannot be counted.

use std::time::{Duration, Instant};

use metrics::gauge;
use mongodb::event::cmap::CmapEvent;
use parking_lot::Mutex;

/// Whether a pool is starved: 1 or 0.
pub const STARVED_POOLS: &str = "postrider_mongodb_pool_starved";

/// How long no operation gets a connection of a pool until it is starved. (To open one takes less.)
const STARVED_AFTER: Duration = Duration::from_secs(5);

/// A pool that no operation has asked for so long is not starved any more: longer than any operation waits.
const IDLE_AFTER: Duration = Duration::from_secs(30);

/// A pool of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Of heartbeats, leases and settlements.
    Relay,
    /// Of requests to the API.
    Api,
    /// Of reads of the API that may be many or slow.
    Reading,
}

/// All pools.
pub const POOLS: [Pool; 3] = [Pool::Relay, Pool::Api, Pool::Reading];

/// What is known of the pools, in their order.
static USES: [Mutex<PoolUse>; 3] = [const { Mutex::new(PoolUse::NEW) }; 3];

impl Pool {
    /// The name in metrics and texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Api => "api",
            Self::Reading => "reading",
        }
    }

    fn usage(self) -> &'static Mutex<PoolUse> {
        &USES[self as usize]
    }

    /// How long no operation has got a connection, although some have asked for one; `None` unless that is long.
    pub fn starved_for(self) -> Option<Duration> {
        self.usage().lock().starved_for(Instant::now())
    }

    pub(crate) fn note(self, event: &CmapEvent) {
        self.usage().lock().note(event, Instant::now());
    }
}

/// Sets the metric of starved pools.
pub fn report() {
    for pool in POOLS {
        let starved = pool.starved_for().is_some();
        gauge!(STARVED_POOLS, "pool" => pool.name()).set(if starved { 1.0 } else { 0.0 });
    }
}

/// When connections of a pool were asked for.
#[derive(Debug)]
struct PoolUse {
    /// The first request after the last one that has got a connection.
    unanswered: Option<Instant>,
    last: Option<Instant>,
}

impl PoolUse {
    const NEW: Self = Self { unanswered: None, last: None };

    fn note(&mut self, event: &CmapEvent, now: Instant) {
        match event {
            CmapEvent::ConnectionCheckoutStarted(_) => self.ask(now),
            // (A failed one says that MongoDB is not reached, which is another trouble. One that is checked in is free
            // for those that ask; without any, the one that has asked was given up.)
            CmapEvent::ConnectionCheckedOut(_)
            | CmapEvent::ConnectionCheckoutFailed(_)
            | CmapEvent::ConnectionCheckedIn(_) => self.answer(),
            _ => {}
        }
    }

    fn ask(&mut self, now: Instant) {
        self.unanswered.get_or_insert(now);
        self.last = Some(now);
    }

    fn answer(&mut self) {
        self.unanswered = None;
    }

    fn starved_for(&self, now: Instant) -> Option<Duration> {
        let since = now.saturating_duration_since(self.unanswered?);
        let is_asked = now.saturating_duration_since(self.last?) < IDLE_AFTER;
        (is_asked && since >= STARVED_AFTER).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_that_was_given_up_starves_no_idle_pool() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let asked = bson::deserialize_from_document(bson::doc! {}).unwrap();
        let checked_in = bson::deserialize_from_document(bson::doc! {}).unwrap();
        let mut usage = PoolUse::NEW;

        usage.note(&CmapEvent::ConnectionCheckoutStarted(asked), at(0));
        assert_eq!(usage.starved_for(at(6)), Some(Duration::from_secs(6)));
        // The connection that was opened for it comes to the pool.
        usage.note(&CmapEvent::ConnectionCheckedIn(checked_in), at(7));

        assert_eq!(usage.starved_for(at(13)), None);
    }

    #[test]
    fn pool_is_starved_while_operations_ask_without_an_answer() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut usage = PoolUse::NEW;
        assert_eq!(usage.starved_for(at(100)), None);

        usage.ask(at(100));
        assert_eq!(usage.starved_for(at(103)), None);
        assert_eq!(usage.starved_for(at(110)), Some(Duration::from_secs(10)));

        // An operation that was given up is not reported: no operation asks any more.
        assert_eq!(usage.starved_for(at(131)), None);
        usage.ask(at(140));
        assert_eq!(usage.starved_for(at(141)), Some(Duration::from_secs(41)));

        usage.answer();
        assert_eq!(usage.starved_for(at(142)), None);
    }
}
