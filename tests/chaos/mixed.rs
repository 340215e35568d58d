//! Plans of the mixed kind: two brokers, sick destinations, odd records, and operators.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Fault, Kind, Peer, Plan, Planned, Setup};
use super::{line, millis, one_of, to_bindings, to_broker, to_exchanges, to_replica_set};

/// The options that only histories of the mixed kind have.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedOptions {
    /// The sink of the dead letters.
    pub dead_letters: Option<Peer>,
    pub key_window: usize,
    /// Whether the collection has Postrider's validator, which refuses an invalid partition.
    pub validator: bool,
    /// Whether ids have no order.
    pub scattered: bool,
    /// The sicknesses that exist from the beginning.
    pub sick: Vec<Sickness>,
    /// Clients that append events over HTTP.
    pub appenders: usize,
    /// Whether only destinations fail. Other records must not wait for these.
    pub calm: bool,
    /// Whether events get positions, and are read in their order.
    pub feed: bool,
}

impl Default for MixedOptions {
    fn default() -> Self {
        Self {
            dead_letters: None,
            key_window: 1,
            validator: false,
            scattered: false,
            sick: Vec::new(),
            appenders: 0,
            calm: false,
            feed: false,
        }
    }
}

/// A destination, or a kind of record, that fails until [`Fault::Heal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sickness {
    /// An exchange is missing.
    Exchange,
    /// A topic has fewer replicas in sync than it demands.
    Replicas,
    /// A topic is missing.
    Topic,
    /// Every connection that carries a marked payload is cut.
    Poison,
    /// A queue confirms nothing: its process is suspended.
    Queue,
}

impl Sickness {
    pub const ALL: [Self; 5] =
        [Self::Exchange, Self::Replicas, Self::Topic, Self::Poison, Self::Queue];
}

/// What an operator does with waiting records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorChange {
    /// Discards the first records of some keys, by the command.
    Discard,
    /// Deletes them from the collection.
    Delete,
    /// Sets their `visibleAt` to some seconds from now.
    Postpone,
    /// Makes records due that are not, by an update of `visibleAt`.
    Hasten,
    /// Discards the records for the sink that never answers, by the command.
    Ghosts,
    /// Requeues some dead records, by the command.
    Requeue,
    /// Replaces the latest records, again and again: their events may be in the relays, or their
    /// leases.
    Replace,
    /// Deletes them and inserts others with the same ids.
    Reinsert,
}

/// The privileges that a relay loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// To update records.
    Update,
    /// To read records.
    Find,
    /// To write anything.
    Write,
    All,
}

impl Plan {
    /// The plan of a seed with two brokers.
    pub fn mixed(seed: u64, duration: Duration) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let mut setup = Setup::random(rng);
        setup.kind = Kind::Mixed;
        setup.instances = rng.random_range(1..=3);
        setup.producers = rng.random_range(2..=4);
        setup.rest = millis(rng, 60..160);
        setup.distance = Duration::from_millis(one_of(rng, &[2, 5, 20]));
        setup.lease = millis(rng, 3000..7000);
        setup.max_attempts = rng.random_range(3..=8);
        setup.mixed_options = MixedOptions::random(rng);
        let calm = setup.mixed_options.calm;
        let mut faults = Vec::new();
        if !calm {
            setup.disturb(rng, duration, &mut faults);
        }
        for sick in setup.mixed_options.sick.clone() {
            // Poison may stay to the end, where no record must wait for an operator.
            if sick == Sickness::Poison && !setup.blocks && rng.random() {
                continue;
            }
            faults.push(healing(rng, duration, sick));
        }
        line(rng, duration, 2..5, &mut faults, |rng| {
            let how = one_of(
                rng,
                &[
                    OperatorChange::Discard,
                    OperatorChange::Delete,
                    OperatorChange::Postpone,
                    OperatorChange::Hasten,
                    OperatorChange::Ghosts,
                    OperatorChange::Requeue,
                    OperatorChange::Replace,
                    OperatorChange::Reinsert,
                ],
            );
            (Fault::OperatorChange { how }, Duration::ZERO)
        });
        line(rng, duration, 3..12, &mut faults, |rng| {
            let count = rng.random_range(50..250);
            (Fault::Burst { count, is_stamped: rng.random_range(0..4) == 0 }, Duration::ZERO)
        });
        line(rng, duration, 2..8, &mut faults, to_bindings);
        if rng.random() {
            let (at, lasts) = (duration.mul_f64(rng.random_range(0.1..0.4)), duration / 3);
            faults.push(Planned { at, fault: Fault::Forbid { lasts } });
        }
        if !calm && rng.random() {
            let lost = one_of(rng, &[Lost::Update, Lost::Find, Lost::Write, Lost::All]);
            let at = duration.mul_f64(rng.random_range(0.2..0.7));
            let lasts = millis(rng, 1000..5000);
            faults.push(Planned { at, fault: Fault::Unprivileged { lost, lasts } });
        }
        // Drawn last, so that the rest of the plan is as it was before `Sickness::Queue` was added.
        if rng.random_range(0..3) > 0 {
            setup.mixed_options.sick.push(Sickness::Queue);
            faults.push(healing(rng, duration, Sickness::Queue));
        }
        // The same: drawn later than the queue.
        setup.mixed_options.feed = setup.mixed_options.appenders > 0 && rng.random();
        // The same: drawn later than the feed.
        line(rng, duration, 1..6, &mut faults, to_exchanges);
        faults.sort_by_key(|planned| planned.at);
        Self { seed, duration, setup, faults }
    }
}

/// When each sickness is healed.
fn healing(rng: &mut StdRng, duration: Duration, sick: Sickness) -> Planned {
    let at = duration.mul_f64(rng.random_range(0.4..0.65));
    Planned { at, fault: Fault::Heal { sick } }
}

impl MixedOptions {
    fn random(rng: &mut StdRng) -> Self {
        let mut sick = Vec::from(Sickness::ALL);
        // `Plan::mixed` decides last whether the queue is sick.
        sick.retain(|sick| *sick != Sickness::Queue && rng.random_range(0..3) > 0);
        Self {
            dead_letters: one_of(rng, &[None, Some(Peer::Broker), Some(Peer::Stream)]),
            key_window: one_of(rng, &[1, 1, 3]),
            validator: rng.random_range(0..4) == 0,
            scattered: rng.random(),
            sick,
            appenders: one_of(rng, &[0, 2, 3]),
            calm: rng.random_range(0..3) == 0,
            // `Plan::mixed` decides.
            feed: false,
        }
    }
}

impl Setup {
    /// The faults of histories with one broker, with more time between them.
    fn disturb(&self, rng: &mut StdRng, duration: Duration, faults: &mut Vec<Planned>) {
        for process in 0..self.instances {
            line(rng, duration, 5..15, faults, |rng| self.to_process(rng, process));
            for to in [Peer::MongoDb, Peer::Broker, Peer::Stream] {
                line(rng, duration, 8..25, faults, |rng| self.to_link(rng, process, to));
            }
        }
        line(rng, duration, 8..25, faults, to_replica_set);
        for which in [Peer::Broker, Peer::Stream] {
            line(rng, duration, 15..60, faults, |rng| to_broker(rng, which));
        }
        line(rng, duration, 10..40, faults, |rng| {
            let lasts = millis(rng, 500..4000);
            (Fault::Pause { lasts }, lasts)
        });
    }
}
