//! The configuration of queries.

use std::time::Duration;

use postrider_settings::units::HumanDuration;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The section `[queries]`: queries of events and snapshots (docs/queries.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct QuerySettings {
    /// How long MongoDB may execute a query. Then the query is ended and answered with 503.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "100ms", "x-at-most" = "1h"))]
    pub timeout: Duration,
    /// The most documents that a query may read to find others: those that its condition leaves out, or that it sorts. Ten times as many where a condition compares an indexed field with single values, for example a tenant.
    pub max_scan: u64,
    /// The most queries that MongoDB executes at a time. Further ones wait for a second, and are then answered with 503.
    #[schemars(range(min = 1, max = 10_000))]
    pub max_concurrent: usize,
    /// What happens to a query that would read more than `max_scan`: `refuse`, or `warn`, which executes it and logs a warning.
    pub scans: ScanPolicy,
    /// Whether the operator `RAW` is allowed: a filter in MongoDB's own form, with operators that only test fields.
    pub raw: bool,
}

/// What happens to a query that reads a whole large collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScanPolicy {
    /// It is refused.
    #[default]
    Refuse,
    /// It is executed, with a warning in the log.
    Warn,
}

impl Default for QuerySettings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            max_scan: 10_000,
            max_concurrent: 8,
            scans: ScanPolicy::Refuse,
            raw: false,
        }
    }
}
