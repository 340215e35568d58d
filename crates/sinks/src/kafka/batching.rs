//! Larger batches under load: records go to a second producer, which lets each wait for others.
//!
//! A produce request costs Kafka about the same with one record as with ten. `linger.ms` fills
//! requests, but it delays each record, and the next one of a key waits for the confirm of the one
//! before: a lone record and a hot key would be slower by it. librdkafka fixes `linger.ms` when a
//! producer is made. So there are two producers: one without `linger.ms` while few lanes have
//! records for the sink, and one with it while many have. Even then a record goes to the first one
//! if its key has many more behind it than others have ([`Message::is_urgent`]).
//!
//! Both take records of the same key, one after the other: the relay publishes the second when the
//! first is confirmed. With `key_window` above 1 it does not wait, and there is no second producer.
//!
//! [`Message::is_urgent`]: postrider_relay::sink::Message::is_urgent

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// Lanes from which on records are gathered. So many, with a record each in every [`LINGER`] and the
/// broker's own time, are as much as MongoDB leases and settles: the delay costs no throughput. (A
/// backlog of more than 100 records a key has some 40 lanes, and is not gathered.)
const MANY: usize = 60;

/// Lanes below which records are no longer gathered: a number that varies about [`MANY`] does not
/// change the producer with each record.
const FEW: usize = 45;

/// `linger.ms` of the second producer.
pub(super) const LINGER: &str = "5";

/// How long nothing is gathered after the broker has refused a batch for its size, of which each
/// record had to be sent again.
const REST: Duration = Duration::from_secs(60);

/// Whether records are gathered at the moment.
#[derive(Debug, Default)]
pub(super) struct Gathering(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    is_on: bool,
    rests_until: Option<Instant>,
}

impl Gathering {
    /// So many lanes have records for the sink.
    pub(super) fn expect(&self, lanes: usize) {
        let mut state = self.state();
        if lanes >= MANY {
            state.is_on = true;
        } else if lanes < FEW {
            state.is_on = false;
        }
    }

    /// Whether the next record is to be gathered.
    pub(super) fn is_on(&self) -> bool {
        let state = self.state();
        state.is_on && state.rests_until.is_none_or(|until| until <= Instant::now())
    }

    /// The broker has refused a batch for its size.
    pub(super) fn rest(&self) {
        self.state().rests_until = Some(Instant::now() + REST);
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_gathered_from_many_lanes_until_few_are_left() {
        let gathering = Gathering::default();
        let is_on = |lanes| {
            gathering.expect(lanes);
            gathering.is_on()
        };

        let seen = [1, MANY - 1, MANY, FEW, FEW - 1, MANY - 1].map(is_on);

        assert_eq!(seen, [false, false, true, true, false, false]);
    }

    #[test]
    fn nothing_is_gathered_for_a_while_after_a_batch_was_too_large() {
        let gathering = Gathering::default();
        gathering.expect(MANY);
        assert!(gathering.is_on());

        gathering.rest();

        assert!(!gathering.is_on());
        gathering.state().rests_until = Some(Instant::now());
        assert!(gathering.is_on());
    }
}
