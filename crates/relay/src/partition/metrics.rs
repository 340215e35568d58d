//! Metrics of instances and partitions, as this instance reads them.

use metrics::{Counter, counter, gauge};
use postrider_store::metric::Description;

use crate::metrics::STORE_FAILING;

/// The value of a gauge that is unknown now. The exporter cannot remove a series, so the metrics page
/// leaves this value out.
pub const UNKNOWN: f64 = f64::NAN;

/// Partitions that this instance delivers.
pub const PARTITIONS_OWNED: &str = "postrider_partitions_owned";
/// Partitions that no living instance has.
pub const PARTITIONS_UNASSIGNED: &str = "postrider_partitions_unassigned";
/// Instances whose heartbeats are fresh.
pub const INSTANCES_ACTIVE: &str = "postrider_instances_active";
/// Changes of this instance's partitions.
pub const REBALANCES: &str = "postrider_rebalances_total";
/// Whether the fleet is paused.
pub const PAUSED: &str = "postrider_relay_paused";
/// Whether a majority of MongoDB acknowledged the last heartbeat.
pub const STORE_UP: &str = "postrider_store_up";

/// The descriptions of these metrics.
pub const DESCRIPTIONS: [Description; 6] = [
    Description::gauge(PARTITIONS_OWNED, "Partitions that this instance delivers."),
    Description::gauge(
        PARTITIONS_UNASSIGNED,
        "Partitions without an active instance, as this instance sees it.",
    ),
    Description::gauge(INSTANCES_ACTIVE, "Instances with a fresh heartbeat, including this one."),
    Description::counter(REBALANCES, "How often this instance gained or lost partitions."),
    Description::gauge(PAUSED, "1 while all instances are paused, else 0."),
    Description::gauge(
        STORE_UP,
        "1 while a majority of MongoDB acknowledges the heartbeats of this instance, else 0.",
    ),
];

/// Sets whether heartbeats are acknowledged: 0 from the start until the first one.
pub fn store_up(up: bool) {
    gauge!(STORE_UP).set(if up { 1.0 } else { 0.0 });
}

/// Handles of the counters, which exist from the start.
#[derive(Debug)]
pub struct FleetMetrics {
    rebalances: Counter,
}

impl Default for FleetMetrics {
    /// Registers the counters at zero; the first read sets the gauges.
    fn default() -> Self {
        let rebalances = counter!(REBALANCES);
        rebalances.increment(0);
        Self { rebalances }
    }
}

impl FleetMetrics {
    /// Counts a change of this instance's partitions.
    pub fn rebalanced(&self) {
        self.rebalances.increment(1);
    }

    /// Sets the gauges from a read.
    pub fn seen(&self, active: usize, unassigned: usize) {
        gauge!(INSTANCES_ACTIVE).set(active as f64);
        gauge!(PARTITIONS_UNASSIGNED).set(unassigned as f64);
    }

    /// Sets whether all instances are paused.
    pub fn paused(&self, paused: bool) {
        gauge!(PAUSED).set(if paused { 1.0 } else { 0.0 });
    }

    /// Sets whether MongoDB refuses the commands of the assignment.
    pub fn refused(&self, refused: bool) {
        let failing = if refused { 1.0 } else { 0.0 };
        gauge!(STORE_FAILING, "operation" => "assign", "cause" => "refused").set(failing);
    }

    /// Marks the gauges unknown while MongoDB does not answer.
    pub fn forget(&self) {
        for name in [INSTANCES_ACTIVE, PARTITIONS_UNASSIGNED, PAUSED] {
            gauge!(name).set(UNKNOWN);
        }
    }
}
