//! What an operator decides about the relay.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_outbox::ids::{RecordId, SinkName};
use postrider_outbox::record::{LaneKey, Record};

use crate::backoff::Backoff;
use crate::routing::Template;

/// The relay's part of the configuration, validated by `config`.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Records that one scan reads at most.
    pub batch_size: usize,
    /// Bytes of records in flight, beyond which nothing more is leased.
    pub batch_bytes: usize,
    /// The longest wait between two scans of an idle outbox.
    pub poll_interval: Duration,
    /// Length of a lease.
    pub lease: Duration,
    /// Deliveries in all; the last failure makes the record dead.
    pub max_attempts: u32,
    /// Whether records of a key go one after the other.
    pub ordered: bool,
    /// Whether a dead record holds its key.
    pub block_on_dead: bool,
    /// Wait after a charged failure.
    pub backoff: Backoff,
    /// How long a stop may take.
    pub shutdown_timeout: Duration,
    /// The longest pause between two probes of a sink that is down.
    pub probe_max: Duration,
    /// How often everything pending is compared with what the change stream has brought.
    pub audit_interval: Duration,
    /// Where a copy of each dead record goes.
    pub dead_letter: Option<DeadLetters>,
    /// Unconfirmed messages per key, of the sinks that allow more than one.
    pub key_windows: BTreeMap<String, usize>,
}

impl Settings {
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
        if self.ordered { lane } else { LaneKey::Single(id.to_string().into()) }
    }

    /// The record in the lane that [`lane_of`](Self::lane_of) gives it.
    pub(super) fn in_lane(&self, record: Record) -> Record {
        if self.ordered { record } else { record.without_order() }
    }

    /// Whether a dead record of this lane blocks it.
    pub(super) fn dead_blocks(&self, lane: &LaneKey) -> bool {
        self.ordered && self.block_on_dead && matches!(lane, LaneKey::Keyed(_))
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

/// Where dead letters go.
#[derive(Clone, Debug)]
pub struct DeadLetters {
    /// The sink.
    pub sink: SinkName,
    /// Exchange or topic.
    pub destination: Template,
}
