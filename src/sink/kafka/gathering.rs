//! Larger batches under load: records go to a second producer, which lets each wait for company.
//!
//! A produce request costs Kafka about the same with one record as with ten. `linger.ms` fills
//! requests, but it delays each record, and the next one of a key waits for the confirm of the one
//! before: a lone record and a hot key would be slower by it. librdkafka fixes `linger.ms` when a
//! producer is made. So there are two producers: one without `linger.ms` while few lanes have
//! records for the sink, and one with it while many have. [`MANY`] lanes with a record each in every
//! [`LINGER`] are about as much as MongoDB settles, so that the delay costs no throughput.
//!
//! Both take records of the same key, one after the other: the relay publishes the second when the
//! first is confirmed. With `key_window` above 1 it does not wait, and there is no second producer.

use std::sync::atomic::{AtomicBool, Ordering};

/// Lanes from which on records are gathered.
const MANY: usize = 40;

/// Lanes below which records are no longer gathered: a number that wanders about [`MANY`] does not
/// change the producer with each record.
const FEW: usize = 16;

/// `linger.ms` of the second producer.
pub(super) const LINGER: &str = "10";

/// Whether records are gathered at the moment.
#[derive(Debug, Default)]
pub(super) struct Gathering(AtomicBool);

impl Gathering {
    /// So many lanes have records for the sink.
    pub(super) fn expect(&self, lanes: usize) {
        if lanes >= MANY {
            self.0.store(true, Ordering::Relaxed);
        } else if lanes < FEW {
            self.0.store(false, Ordering::Relaxed);
        }
    }

    /// Whether the next record is to be gathered.
    pub(super) fn is_on(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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
}
