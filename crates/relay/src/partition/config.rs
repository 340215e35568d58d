//! The configuration of partitions.

use std::time::Duration;

use postrider_settings::Rules;
use postrider_settings::units::HumanDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::partition::set::PartitionSet;

/// The section `[partitions]`: which of the 256 partitions this instance owns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PartitionsConfig {
    /// The interval of this instance's heartbeats. While no majority acknowledges them, the instance acquires nothing. At most 24 days, MongoDB's limit for the wait of a write.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "100ms", "x-at-most" = "24d"))]
    pub heartbeat: Duration,
    /// The age at which a heartbeat is stale: the other instances take over the partitions of its instance. At least twice `partitions.heartbeat`, so that one late heartbeat costs nothing.
    #[serde(with = "HumanDuration")]
    pub stale_after: Duration,
    /// How often an instance that owns more than its share releases the rest.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "100ms"))]
    pub rebalance: Duration,
    /// Fixed partitions, such as `0-127` or `3,7-9`. By default the instances divide the 256 partitions among themselves. If an instance with fixed partitions stops, no other instance takes them over.
    #[serde(rename = "static")]
    #[schemars(example = &"0-127")]
    pub fixed: Option<PartitionSet>,
}

impl Default for PartitionsConfig {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(3),
            stale_after: Duration::from_secs(12),
            rebalance: Duration::from_secs(3),
            fixed: None,
        }
    }
}

impl PartitionsConfig {
    /// Checks the rules of more than one key.
    pub fn validate(&self, rules: &mut Rules) {
        rules.require(
            self.stale_after >= self.heartbeat * 2,
            "stale_after",
            "must be at least twice partitions.heartbeat, so that one late heartbeat is not a \
             failure",
        );
    }
}
