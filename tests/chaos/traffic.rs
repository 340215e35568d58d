//! The producers' records: mostly plain ones, and some of every kind that causes errors.

use std::sync::Arc;
use std::time::Duration;

use bson::{Bson, DateTime, Document, doc};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::plan::{Kind, Plan, Sickness};
use crate::support::outbox::record;
use crate::support::producers::{Make, Name, in_order};

/// A type that the broker always accepts.
pub const PLAIN: &str = "T";
/// A type that it returns for a while now and then.
pub const FLAKY: &str = "Flaky";
/// A type that it returns until an operator repairs that.
pub const DOOMED: &str = "Doomed";
/// A type that the relays' user may not publish for a while.
pub const FORBIDDEN: &str = "Forbidden";
/// A type whose payload the proxies may cut at.
pub const POISON: &str = "Poison";
/// A type that is not due until an operator changes it.
pub const FAR: &str = "Far";
/// A type for the sink that never answers.
pub const GHOST: &str = "Ghost";
/// The beginning of types that go to Kafka, where there are two brokers.
pub const STREAM: &str = "K";

/// The marked payload. A batch that a Kafka producer compresses (LZ4) contains it unchanged,
/// because no other text has its first and its last character: nothing of it repeats earlier text.
pub const MARK: &str = "~p0ison~";

/// The destination that no sink of these histories lets a record name.
const NOT_ALLOWED: &str = "forbidden";

/// The exchanges that vanish: together they close more channels than a connection may have.
pub const VANISHING_EXCHANGES: usize = 8;

/// An hour: longer than any history.
const AN_HOUR: Duration = Duration::from_secs(3600);

/// Where the messages of a record arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The queue of the exchange, or the topic where Kafka is alone.
    Main,
    /// The queue of the exchange that may be missing.
    SickExchange,
    /// The queue that may confirm nothing.
    SilentQueue,
    /// The topic, where there are two brokers.
    Stream,
    /// The topic with too few replicas.
    SickTopic,
    /// The topic that may be missing.
    LateTopic,
    /// Nowhere.
    Ghost,
}

impl Place {
    pub const ALL: [Self; 7] = [
        Self::Main,
        Self::SickExchange,
        Self::SilentQueue,
        Self::Stream,
        Self::SickTopic,
        Self::LateTopic,
        Self::Ghost,
    ];

    /// Where a record's messages arrive; anywhere, for one that is never sent.
    pub fn of(record: &Document) -> Self {
        let kind = record.get_str("type").unwrap_or_default();
        let destination = record.get_str("destination").unwrap_or_default();
        match (kind.starts_with(STREAM), destination) {
            _ if kind == GHOST => Self::Ghost,
            (false, to) if to.ends_with("-sick") => Self::SickExchange,
            (false, to) if to.ends_with("-silent") => Self::SilentQueue,
            (false, _) => Self::Main,
            (true, to) if to.ends_with("-sick") => Self::SickTopic,
            (true, to) if to.ends_with("-late") => Self::LateTopic,
            (true, _) => Self::Stream,
        }
    }
}

/// Makes records from the plan's seed and the id. `name` is that of the history's destinations.
pub fn make(plan: &Plan, name: &str) -> Make {
    match plan.setup.kind {
        Kind::Mixed => mixed(plan, name),
        _ => single(plan, name),
    }
}

/// Makes ids.
pub fn naming(plan: &Plan) -> Name {
    if plan.setup.mixed_options.scattered {
        Arc::new(|key, transaction, place| {
            let id = in_order(key, transaction, place);
            format!("{:016x}-{id}", hash(&id))
        })
    } else {
        Arc::new(in_order)
    }
}

fn single(plan: &Plan, name: &str) -> Make {
    let (seed, blocks, name) = (plan.seed, plan.setup.blocks, name.to_owned());
    let has_exchanges = plan.setup.kind == Kind::RabbitMq;
    Arc::new(move |id, key| {
        let mut rng = StdRng::seed_from_u64(seed ^ hash(id));
        let mut made = record(id, key);
        // With `on_dead = "block"` a few deaths are enough to block every key.
        let deadly = if blocks { 2 } else { 10 };
        match rng.random_range(0..500) {
            0..25 => made.extend(scheduled(&mut rng)),
            25..55 => _ = made.insert("type", FLAKY),
            55..75 => without_key(&mut made),
            75..85 => _ = made.remove("partition"),
            n if (100..100 + deadly).contains(&n) => _ = made.insert("type", DOOMED),
            n if (200..200 + deadly).contains(&n) => _ = made.insert("destination", NOT_ALLOWED),
            300..330 if has_exchanges => to_vanishing(&name, &mut rng, &mut made),
            _ => {}
        }
        made
    })
}

fn to_vanishing(name: &str, rng: &mut StdRng, made: &mut Document) {
    let number = rng.random_range(0..VANISHING_EXCHANGES);
    made.insert("destination", vanishing(name, number));
}

/// The name of an exchange that vanishes.
pub fn vanishing(name: &str, number: usize) -> String {
    format!("{name}-vanishing-{number}")
}

fn scheduled(rng: &mut StdRng) -> Document {
    let later = Duration::from_millis(rng.random_range(0..3000));
    doc! { "status": "scheduled", "visibleAt": DateTime::now().saturating_add_duration(later) }
}

fn without_key(made: &mut Document) {
    made.remove("key");
    made.remove("partition");
}

/// What all records of a key have in common, where there are two brokers.
#[derive(Clone, Debug)]
pub struct Class {
    /// Whether they go to Kafka.
    is_stream: bool,
    /// Whether all of them can be delivered at once.
    pub is_healthy: bool,
    partition: Partition,
}

/// What producers write as the partition of a key's records.
#[derive(Clone, Debug, PartialEq)]
enum Partition {
    Right,
    Absent,
    /// Correct in some, absent in others.
    Half,
    /// The same in all: another than the key's, or an invalid one.
    Always(Bson),
    /// One or another, both of them valid.
    Different,
}

impl Class {
    /// The class of this key in histories of this seed.
    pub fn of(plan: &Plan, key: &str) -> Self {
        let mut rng = StdRng::seed_from_u64(plan.seed ^ hash(key));
        let right = postrider::partition::of_key(key);
        let partition = match rng.random_range(0..10) {
            0..3 => Partition::Right,
            3 => Partition::Absent,
            4 => Partition::Half,
            5 => Partition::Different,
            // The validator refuses the following ones.
            _ if plan.setup.mixed_options.validator => Partition::Absent,
            6..8 => Partition::Always(invalid(rng.random_range(0..5))),
            8 => Partition::Always(f64::from(right).into()),
            _ => {
                Partition::Always(format!("{right}.0").parse::<bson::Decimal128>().unwrap().into())
            }
        };
        // The first of a producer's keys is healthy; the producers alternate between brokers.
        let is_healthy = key.ends_with("k0");
        let is_stream = key.ends_with("k2") || (is_healthy && hash(key).is_multiple_of(2));
        Self { is_stream, is_healthy, partition }
    }

    /// Whether an order is promised for it.
    pub fn is_ordered(&self) -> bool {
        self.partition != Partition::Different
    }

    /// Whether each of its records has the partition of the key, or none.
    pub fn has_own_partition(&self) -> bool {
        matches!(self.partition, Partition::Right | Partition::Absent | Partition::Half)
    }

    /// Whether all of its records have the same partition, and that one is invalid.
    pub fn has_invalid_partition(&self) -> bool {
        (0..5).any(|which| self.partition == Partition::Always(invalid(which)))
    }

    fn plain(&self) -> &'static str {
        if self.is_stream { STREAM } else { PLAIN }
    }
}

/// A value that is not a partition.
pub fn invalid(which: u8) -> Bson {
    match which {
        0 => Bson::Int32(-5),
        1 => Bson::Int32(700),
        2 => Bson::String("189".to_owned()),
        3 => Bson::Double(3.5),
        _ => Bson::Int64(i64::MAX),
    }
}

fn mixed(plan: &Plan, name: &str) -> Make {
    let (plan, name) = (plan.clone(), name.to_owned());
    Arc::new(move |id, key| {
        let class = Class::of(&plan, key);
        let mut rng = StdRng::seed_from_u64(plan.seed ^ hash(id));
        let mut made = record(id, key);
        made.insert("type", class.plain());
        class.stamp(&mut made, &mut rng);
        if !class.is_healthy {
            trouble(&plan, &class, &name, &mut rng, &mut made);
        }
        made
    })
}

impl Class {
    fn stamp(&self, made: &mut Document, rng: &mut StdRng) {
        let stamp = match &self.partition {
            Partition::Right => return,
            Partition::Absent => None,
            Partition::Half if rng.random() => None,
            Partition::Half => return,
            Partition::Always(value) => Some(value.clone()),
            Partition::Different => Some(Bson::Int32(rng.random_range(7..9))),
        };
        match stamp {
            Some(stamp) => _ = made.insert("partition", stamp),
            None => _ = made.remove("partition"),
        }
    }
}

/// Makes some records of a key such that they are not delivered at once, or never.
fn trouble(plan: &Plan, class: &Class, name: &str, rng: &mut StdRng, made: &mut Document) {
    // With `on_dead = "block"` a few deaths are enough to block every key.
    let deadly = if plan.setup.blocks { 1 } else { 2 };
    let of_its_broker =
        |kind: &str| if class.is_stream { format!("{STREAM}{kind}") } else { kind.to_owned() };
    // In other plans the records are as they were before `Sickness::Queue` was added.
    let has_silent = !class.is_stream && plan.setup.mixed_options.sick.contains(&Sickness::Queue);
    match rng.random_range(0..100) {
        0..5 => made.extend(scheduled(rng)),
        5..10 => without_key(made),
        10..12 => {
            made.insert("type", of_its_broker(FAR));
            made.insert("visibleAt", DateTime::now().saturating_add_duration(AN_HOUR));
        }
        12..14 => _ = made.insert("type", GHOST),
        n if (20..20 + deadly).contains(&n) => {
            made.insert("type", of_its_broker(POISON));
            made.insert("payload", doc! { "is": MARK });
        }
        n if (30..30 + deadly).contains(&n) => _ = made.insert("destination", NOT_ALLOWED),
        40..45 => _ = made.insert("destination", format!("{name}-sick")),
        45..50 if class.is_stream => _ = made.insert("destination", format!("{name}-late")),
        45..48 => _ = made.insert("type", FLAKY),
        50..53 if !class.is_stream => _ = made.insert("type", FORBIDDEN),
        n if (60..60 + deadly).contains(&n) && !class.is_stream => _ = made.insert("type", DOOMED),
        80..88 if !class.is_stream => to_vanishing(name, rng, made),
        70..75 if has_silent => _ = made.insert("destination", format!("{name}-silent")),
        _ => {}
    }
}

/// FNV-1a: the same in every process, unlike the standard library's.
pub fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
