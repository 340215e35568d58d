//! Larger batches under load: records go to a second producer, which waits for further ones.
//!
//! A produce request costs Kafka about the same with one record as with ten. `linger.ms` fills
//! requests, but it delays each record, and the next one of a key waits for the confirm of the one
//! before: a single record and a busy key would be slower. librdkafka fixes `linger.ms` when a
//! producer is created. So there are two producers: one without `linger.ms` while few lanes have
//! records for the sink, and one with it while many have. Even then a record goes to the first one
//! if its key has many more behind it than others have ([`Message::is_urgent`]).
//!
//! Both producers take records of the same key, one after the other: the relay publishes the second when
//! the first is confirmed. With `key_window` above 1 it does not wait, and there is no second producer.
//!
//! [`Message::is_urgent`]: postrider_relay::sink::Message::is_urgent

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// The number of lanes from which on records are batched. So many lanes, with one record each in every
/// [`LINGER`] and the broker's own time, are as fast as MongoDB leases and settles: the delay costs no
/// throughput. (A backlog of more than 100 records a key has some 40 lanes, and is not batched.)
const MIN_LANES_TO_START: usize = 60;

/// The number of lanes below which batching ends. It is lower, so that a number that varies about
/// [`MIN_LANES_TO_START`] does not change the producer with each record.
const MIN_LANES_TO_CONTINUE: usize = 45;

/// `linger.ms` of the second producer.
pub(super) const LINGER: &str = "5";

/// The pause of batching after the broker has refused a batch for its size, of which each record had to be
/// sent again.
const REFUSED_BATCH_PAUSE: Duration = Duration::from_secs(60);

/// Decides whether records are batched.
#[derive(Debug, Default)]
pub(super) struct Batching(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    has_many_lanes: bool,
    paused_until: Option<Instant>,
}

impl Batching {
    /// Notes how many lanes have records for the sink.
    pub(super) fn set_lanes(&self, lanes: usize) {
        let mut state = self.0.lock();
        if lanes >= MIN_LANES_TO_START {
            state.has_many_lanes = true;
        } else if lanes < MIN_LANES_TO_CONTINUE {
            state.has_many_lanes = false;
        }
    }

    /// Returns whether the next record is batched.
    pub(super) fn is_on(&self) -> bool {
        let state = self.0.lock();
        state.has_many_lanes && state.paused_until.is_none_or(|until| until <= Instant::now())
    }

    /// Notes that the broker has refused a batch for its size.
    pub(super) fn pause(&self) {
        self.0.lock().paused_until = Some(Instant::now() + REFUSED_BATCH_PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batching_starts_with_many_lanes_and_ends_with_few() {
        let batching = Batching::default();
        let is_on = |lanes| {
            batching.set_lanes(lanes);
            batching.is_on()
        };

        let (start, stop) = (MIN_LANES_TO_START, MIN_LANES_TO_CONTINUE - 1);
        let seen = [1, start - 1, start, stop + 1, stop, start - 1].map(is_on);

        assert_eq!(seen, [false, false, true, true, false, false]);
    }

    #[test]
    fn batching_pauses_after_a_refused_batch() {
        let batching = Batching::default();
        batching.set_lanes(MIN_LANES_TO_START);
        assert!(batching.is_on());

        batching.pause();

        assert!(!batching.is_on());
        batching.0.lock().paused_until = Some(Instant::now());
        assert!(batching.is_on());
    }
}
