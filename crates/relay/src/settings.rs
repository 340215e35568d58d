//! The configuration of the relay.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_outbox::ids::{RecordId, SinkName};
use postrider_outbox::record::{LaneKey, Record};
use postrider_settings::Rules;
use postrider_settings::units::{HumanDuration, HumanSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backoff::Backoff;
use crate::routing::Template;

/// The section `[relay]`: how records are acquired, published and settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Whether this process delivers records. `false`: it needs no sink; it can still serve the API and append events.
    pub enabled: bool,
    /// The most records that one scan of the outbox reads.
    #[schemars(range(min = 1, max = 10_000))]
    pub batch_size: usize,
    /// The most bytes of records in memory, in flight or being read. Above it the relay reads no more. Up to 10 MB from the change stream can be in memory in addition.
    #[serde(with = "HumanSize")]
    #[schemars(extend("x-at-least" = "1B"))]
    pub batch_bytes: usize,
    /// The longest wait between two scans of an idle outbox where no change stream (`relay.change_stream`) delivers what is inserted. A busy outbox is scanned again at once. Blocked keys are checked at this interval.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "10ms"))]
    pub poll_interval: Duration,
    /// Whether a change stream delivers what is inserted: the fastest way, and the cheapest for MongoDB. `false`: polling only.
    pub change_stream: bool,
    /// How long an acquired record is leased, by MongoDB's clock. It is the longest time that a key in flight waits after a crash. Leases in use are renewed. At least 1s, because a lease that is shorter than MongoDB's response time under load would expire unused.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "1s"))]
    pub lease: Duration,
    /// The number of counted attempts after which a record is dead. With the default backoff, ten attempts take about 8 minutes. A sink that is down or loses its connection is not counted.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_attempts: u32,
    /// `key`: the records of a key are delivered one after the other. `none`: in no order. All instances of an outbox must agree.
    pub ordering: Ordering,
    /// What a dead record does to its key. `skip`: the next record is delivered. `block`: the key is blocked until an operator decides (`postrider outbox requeue`, `discard`). All instances of an outbox must agree.
    pub on_dead: OnDead,
    /// The wait after a counted failure.
    pub backoff: Backoff,
    /// How long a stop may take. Choose it below the grace period of the service manager that sends SIGTERM.
    #[serde(with = "HumanDuration")]
    pub shutdown_timeout: Duration,
    /// The longest time from one probe of a sink that is down to the next; the first is 0.5 s. A probe that takes longer is followed by the next one after 0.5 s.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "100ms"))]
    pub sink_probe_interval_max: Duration,
    /// How often everything pending is compared with what the change stream (`relay.change_stream`) has delivered, and how often all dead records that block keys are read again if they are more than 500.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "1s"))]
    pub audit_interval: Duration,
    /// The sink of records that no route matches. By default: the only sink.
    #[schemars(example = &"orders")]
    pub default_sink: Option<SinkName>,
    /// Where a copy of each dead record is sent, with the headers `x-dead-reason`, `x-attempts` and `x-destination`. While that sink is down, a record that would become dead waits with its key. Malformed records have no copy.
    pub dead_letter: Option<DeadLetters>,
    /// The sinks with more than one unconfirmed message per key: their `key_window`.
    #[serde(skip)]
    pub key_windows: BTreeMap<String, usize>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: true,
            // Where one command per batch costs little per record, and a crash leaves little leased.
            batch_size: 500,
            batch_bytes: 16 << 20,
            poll_interval: Duration::from_secs(1),
            change_stream: true,
            // Three publish timeouts.
            lease: Duration::from_secs(30),
            // With the default backoff about 8 minutes of failures: nine waits, the last of 256 s.
            max_attempts: 10,
            ordering: Ordering::Key,
            on_dead: OnDead::Skip,
            backoff: Backoff::default(),
            // Below the 30 s that Kubernetes grants by default.
            shutdown_timeout: Duration::from_secs(25),
            sink_probe_interval_max: Duration::from_secs(5),
            audit_interval: Duration::from_secs(60),
            default_sink: None,
            dead_letter: None,
            key_windows: BTreeMap::new(),
        }
    }
}

/// Whether the records of a key are delivered one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// One after the other.
    Key,
    /// In no order.
    None,
}

/// What a dead record does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnDead {
    /// The next record of the key is delivered.
    Skip,
    /// The key is blocked until the record is requeued or discarded.
    Block,
}

impl Settings {
    /// Checks the rules of more than one key.
    pub fn validate(&self, rules: &mut Rules) {
        rules.within("backoff", |rules| self.backoff.validate(rules));
    }

    /// Whether the records of a key are delivered one after the other.
    pub fn is_ordered(&self) -> bool {
        self.ordering == Ordering::Key
    }

    /// Whether a dead record blocks its key.
    pub fn blocks_on_dead(&self) -> bool {
        self.on_dead == OnDead::Block
    }

    /// Records of one key leased at a time. Long enough that refilling a busy lane (two
    /// commands) costs little per record, short enough that one key doesn't fill a batch.
    pub const LANE: usize = 64;

    /// Records of one key that a rotation leases whole, if it has no more than these.
    pub const WHOLE: usize = 2 * Self::LANE;

    /// Records in flight at most. A backlog gives [`LANE`](Self::LANE) to [`WHOLE`](Self::WHOLE)
    /// records a key, so twelve batches are fifty to ninety lanes in flight: as many as a broker
    /// on two cores answers; more would only lengthen what a crash leaves leased.
    pub fn max_in_flight(&self) -> usize {
        self.batch_size * 12
    }

    /// How long lanes wait for a sink that is down before they release their records. Leases are
    /// renewed meanwhile.
    pub fn grace(&self) -> Duration {
        self.lease / 6
    }

    /// The lane of a record of this one: its key's, or its own where `relay.ordering` is off.
    pub(super) fn lane_of(&self, lane: LaneKey, id: &RecordId) -> LaneKey {
        if self.is_ordered() { lane } else { LaneKey::Single(id.to_string().into()) }
    }

    /// The record in the lane that [`lane_of`](Self::lane_of) gives it.
    pub(super) fn in_lane(&self, record: Record) -> Record {
        if self.is_ordered() { record } else { record.without_order() }
    }

    /// Whether a dead record of this lane blocks it.
    pub(super) fn dead_blocks(&self, lane: &LaneKey) -> bool {
        self.is_ordered() && self.blocks_on_dead() && matches!(lane, LaneKey::Keyed(_))
    }

    /// Unconfirmed messages per key on this sink.
    pub fn key_window(&self, sink: &str) -> usize {
        self.key_windows.get(sink).copied().unwrap_or(1)
    }

    /// Lanes that wait for a confirm at most, where keys have one record each.
    pub fn lanes(&self) -> usize {
        self.batch_size * 2
    }
}

/// The section `[relay.dead_letter]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadLetters {
    /// The sink of the copies.
    #[schemars(example = &"orders")]
    pub sink: SinkName,
    /// Template of their exchange or topic.
    #[schemars(example = &"dead-letters")]
    pub destination: Template,
}
