//! The fleet's figures, as this instance sees them.

use metrics::{Counter, counter, gauge};

use crate::telemetry::metrics::{
    INSTANCES_ACTIVE, PARTITIONS_UNASSIGNED, PAUSED, REBALANCES, STORE_FAILING, UNKNOWN,
};

/// A handle per counter, so that it exists from the start.
#[derive(Debug)]
pub struct FleetMetrics {
    rebalances: Counter,
}

impl Default for FleetMetrics {
    /// The counters at zero; gauges come with the first look.
    fn default() -> Self {
        let rebalances = counter!(REBALANCES);
        rebalances.increment(0);
        Self { rebalances }
    }
}

impl FleetMetrics {
    /// Partitions came or went.
    pub fn rebalanced(&self) {
        self.rebalances.increment(1);
    }

    /// What a look showed.
    pub fn seen(&self, active: usize, unassigned: usize) {
        gauge!(INSTANCES_ACTIVE).set(active as f64);
        gauge!(PARTITIONS_UNASSIGNED).set(unassigned as f64);
    }

    /// Whether the fleet is paused.
    pub fn paused(&self, paused: bool) {
        gauge!(PAUSED).set(if paused { 1.0 } else { 0.0 });
    }

    /// Whether MongoDB refuses what a share takes.
    pub fn refused(&self, refused: bool) {
        let failing = if refused { 1.0 } else { 0.0 };
        gauge!(STORE_FAILING, "work" => "assign", "cause" => "refused").set(failing);
    }

    /// Nothing is known while MongoDB does not answer.
    pub fn forget(&self) {
        for name in [INSTANCES_ACTIVE, PARTITIONS_UNASSIGNED, PAUSED] {
            gauge!(name).set(UNKNOWN);
        }
    }
}
