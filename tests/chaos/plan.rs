//! What a seed determines: the instances, their configuration, their records, and which faults
//! happen when.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

pub use mixed::{Lost, MixedOptions, OperatorChange, Sickness};

#[path = "mixed.rs"]
mod mixed;

/// `relay.sink_probe_interval_max` of each process.
pub const SINK_PROBE_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// A history before it happens.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub seed: u64,
    /// How long producers and faults continue; the healing and the rest follow.
    pub duration: Duration,
    pub setup: Setup,
    /// Sorted by time.
    pub faults: Vec<Planned>,
}

/// Which brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    RabbitMq,
    Kafka,
    /// Both at once, with everything of [`MixedOptions`].
    Mixed,
}

/// The instances, their configuration and their producers.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    pub kind: Kind,
    pub instances: usize,
    /// `relay.on_dead = "block"`, else `"skip"`.
    pub blocks: bool,
    pub change_stream: bool,
    pub batch_size: usize,
    pub lease: Duration,
    pub stale_after: Duration,
    pub poll: Duration,
    pub max_attempts: u32,
    pub producers: usize,
    /// The pause between two transactions of a producer.
    pub rest: Duration,
    /// The delay between each process and the broker, so that something is always in flight.
    pub distance: Duration,
    pub mixed_options: MixedOptions,
}

/// A fault at a time after the start.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    pub at: Duration,
    pub fault: Fault,
}

/// The faults. Each ends by itself after its time.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// A process starts that did not run from the beginning.
    Join { process: usize },
    /// SIGKILL, and another process in its place after a while.
    Kill { process: usize, down: Duration },
    /// SIGSTOP, then SIGCONT.
    Suspend { process: usize, lasts: Duration },
    /// SIGSTOP, then another process of the same name, then SIGCONT.
    Replace { process: usize, lasts: Duration },
    /// SIGTERM, and another process in its place after a while.
    Leave { process: usize, away: Duration },
    /// The clock of a process's host jumps, and back.
    Clock { process: usize, minutes: i64, lasts: Duration },
    /// A process's link to MongoDB or to the broker has a fault.
    Link { process: usize, to: Peer, how: LinkFault, lasts: Duration },
    /// A broker is stopped or killed, and started again.
    Broker { which: Peer, killed: bool, down: Duration },
    /// The primary of the replica set steps down.
    StepDown,
    /// The primary writes for itself alone for a while, then is killed, and rolls back.
    Rollback { lasts: Duration },
    /// The broker returns messages of the flaky type for a while.
    Unbound { lasts: Duration },
    /// Exchanges are deleted, and made again after a while.
    Vanished { lasts: Duration },
    /// An operator makes the doomed records deliverable for a while, and requeues them.
    Requeue { lasts: Duration },
    /// An operator pauses all instances for a while.
    Pause { lasts: Duration },
    /// An operator discards what can never be delivered.
    Discard,
    /// A destination that was sick from the beginning is healthy from now on.
    Heal { sick: Sickness },
    /// The relays' user may not publish one type for a while.
    Forbid { lasts: Duration },
    /// An operator changes waiting records.
    OperatorChange { how: OperatorChange },
    /// The relays' user loses privileges in MongoDB for a while.
    Unprivileged { lost: Lost, lasts: Duration },
    /// A producer writes many records of one key, without a valid partition, in one command.
    Burst { count: u64, is_stamped: bool },
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    MongoDb,
    /// The broker, or RabbitMQ where there are both.
    Broker,
    /// Kafka where there are both.
    Stream,
}

/// The fault of a link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LinkFault {
    /// Connections end, and new ones are refused.
    Cut,
    /// Connections stay open, and nothing passes.
    Frozen,
    /// The same, and in the end connections are cut, with all that was in transit.
    Swallowed,
    /// The process's requests pass, and the answers do not.
    Deaf,
    /// All bytes are delayed by this time, each way.
    Slow(Duration),
}

impl Plan {
    /// The plan of a seed, always the same; of the kind that the seed decides, or of the mixed
    /// kind.
    pub fn of(seed: u64, duration: Duration, is_mixed: bool) -> Self {
        if is_mixed {
            return Self::mixed(seed, duration);
        }
        let mut rng = StdRng::seed_from_u64(seed);
        let setup = Setup::random(&mut rng);
        let mut faults = Vec::new();
        // Faults that exclude one another are in one line; the lines overlap arbitrarily.
        for process in 0..setup.instances {
            // The first one runs from the beginning.
            if process > 0 && rng.random_range(0..3) == 0 {
                let at = millis(&mut rng, 0..8000).min(duration);
                faults.push(Planned { at, fault: Fault::Join { process } });
            }
            line(&mut rng, duration, 3..9, &mut faults, |rng| setup.to_process(rng, process));
            for to in [Peer::MongoDb, Peer::Broker] {
                line(&mut rng, duration, 4..14, &mut faults, |rng| setup.to_link(rng, process, to));
            }
        }
        line(&mut rng, duration, 5..15, &mut faults, to_replica_set);
        line(&mut rng, duration, 6..30, &mut faults, |rng| to_broker(rng, Peer::Broker));
        if setup.kind == Kind::RabbitMq {
            line(&mut rng, duration, 2..8, &mut faults, to_bindings);
        }
        line(&mut rng, duration, 10..40, &mut faults, |rng| {
            let lasts = millis(rng, 500..4000);
            (Fault::Pause { lasts }, lasts)
        });
        line(&mut rng, duration, 4..10, &mut faults, |_| (Fault::Discard, Duration::ZERO));
        // Drawn last, so that the rest of the plan is as it was before.
        if setup.kind == Kind::RabbitMq {
            line(&mut rng, duration, 1..6, &mut faults, to_exchanges);
        }
        faults.sort_by_key(|planned| planned.at);
        Self { seed, duration, setup, faults }
    }

    /// Whether this process runs from the beginning.
    pub fn begins_with(&self, process: usize) -> bool {
        let joins = Fault::Join { process };
        self.faults.iter().all(|planned| planned.fault != joins)
    }
}

/// Faults one after the other, with this many seconds between them.
fn line(
    rng: &mut StdRng,
    end: Duration,
    gap: std::ops::Range<u64>,
    faults: &mut Vec<Planned>,
    mut draw: impl FnMut(&mut StdRng) -> (Fault, Duration),
) {
    let mut at = millis(rng, 500..gap.end * 1000);
    while at < end {
        let (fault, lasts) = draw(rng);
        faults.push(Planned { at, fault });
        at += lasts + millis(rng, gap.start * 1000..gap.end * 1000);
    }
}

fn millis(rng: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}

fn one_of<T: Copy>(rng: &mut StdRng, all: &[T]) -> T {
    *all.choose(rng).expect("there are some")
}

impl Setup {
    fn random(rng: &mut StdRng) -> Self {
        let distance = Duration::from_millis(one_of(rng, &[5, 20, 50, 100]));
        let producers: u8 = rng.random_range(2..=8);
        Self {
            kind: one_of(rng, &[Kind::RabbitMq, Kind::RabbitMq, Kind::Kafka]),
            instances: rng.random_range(2..=4),
            blocks: rng.random(),
            change_stream: rng.random(),
            batch_size: one_of(rng, &[3, 10, 50, 500]),
            lease: millis(rng, 3000..10_000),
            stale_after: millis(rng, 2000..6000),
            poll: millis(rng, 50..1000),
            max_attempts: rng.random_range(4..=8),
            producers: producers.into(),
            // The machine carries no more load, and a key cannot be faster than its confirms.
            rest: (millis(rng, 10..60) * producers.into() / 2).max(distance * 5 / 2),
            distance,
            mixed_options: MixedOptions::default(),
        }
    }

    fn to_process(&self, rng: &mut StdRng, process: usize) -> (Fault, Duration) {
        match rng.random_range(0..8) {
            0..3 => {
                let down = millis(rng, 0..4000);
                (Fault::Kill { process, down }, down)
            }
            3..5 => {
                // As a rule longer than all timeouts of the others, by a little or by more.
                let longest = self.lease.max(self.stale_after);
                let lasts = match rng.random_range(0..4) {
                    0 => millis(rng, 500..3000),
                    _ => longest + millis(rng, 0..3000),
                };
                // Without another random number, so that what follows stays as it is.
                if lasts.as_millis() % 3 == 0 {
                    (Fault::Replace { process, lasts }, lasts)
                } else {
                    (Fault::Suspend { process, lasts }, lasts)
                }
            }
            5..7 => {
                let away = millis(rng, 0..6000);
                (Fault::Leave { process, away }, away)
            }
            _ => {
                let lasts = millis(rng, 2000..8000);
                let minutes = one_of(rng, &[-10, 10]);
                (Fault::Clock { process, minutes, lasts }, lasts)
            }
        }
    }

    fn to_link(&self, rng: &mut StdRng, process: usize, to: Peer) -> (Fault, Duration) {
        let how = match rng.random_range(0..5) {
            0 => LinkFault::Cut,
            1 => LinkFault::Frozen,
            2 => LinkFault::Swallowed,
            3 => LinkFault::Deaf,
            _ => LinkFault::Slow(millis(rng, 20..700)),
        };
        let lasts = match rng.random_range(0..3) {
            0 => self.lease + millis(rng, 0..2000),
            _ => millis(rng, 300..4000),
        };
        (Fault::Link { process, to, how, lasts }, lasts)
    }
}

fn to_replica_set(rng: &mut StdRng) -> (Fault, Duration) {
    match rng.random_range(0..3) {
        0 => {
            let lasts = millis(rng, 500..4000);
            (Fault::Rollback { lasts }, lasts)
        }
        _ => (Fault::StepDown, Duration::ZERO),
    }
}

fn to_broker(rng: &mut StdRng, which: Peer) -> (Fault, Duration) {
    let down = millis(rng, 0..3000);
    (Fault::Broker { which, killed: rng.random(), down }, down)
}

/// Shorter than the attempts of a record.
fn to_exchanges(rng: &mut StdRng) -> (Fault, Duration) {
    let lasts = millis(rng, 100..800);
    (Fault::Vanished { lasts }, lasts)
}

fn to_bindings(rng: &mut StdRng) -> (Fault, Duration) {
    let lasts = millis(rng, 500..3000);
    let fault = if rng.random() { Fault::Unbound { lasts } } else { Fault::Requeue { lasts } };
    (fault, lasts)
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, duration, setup, .. } = self;
        writeln!(f, "seed {seed} for {duration:?}: {setup:?}")?;
        for Planned { at, fault } in &self.faults {
            writeln!(f, "{:>7.3} s  {fault:?}", at.as_secs_f64())?;
        }
        Ok(())
    }
}
