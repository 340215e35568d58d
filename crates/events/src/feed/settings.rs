//! The configuration of the feed.

use std::time::Duration;

use postrider_settings::units::HumanDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The section `[feed]`: one position for each event of the context (docs/feed.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FeedConfig {
    /// Whether events get positions and can be read in their order. Needs `events.enabled` and a replica set; sharded clusters are refused.
    pub enabled: bool,
    /// The interval of the audits. An audit finds events without a position that neither an append nor the change stream has reported. A longer interval costs MongoDB less.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "1s", "x-at-most" = "1h"))]
    pub audit_interval: Duration,
    /// The most appends per second that get a position in the backfill of events from before the feed was enabled. 0: no limit.
    pub backfill_rate: u32,
    /// The most clients of the HTTP API that wait for events at a time: long polls and streams. Further ones get 503.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_readers: usize,
}

impl Default for FeedConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            audit_interval: Duration::from_secs(60),
            backfill_rate: 10_000,
            max_readers: 64,
        }
    }
}
