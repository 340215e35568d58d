//! The configuration of the event store.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::context::RequestIds;

/// The section `[events]`: the append path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct EventsConfig {
    /// Whether the HTTP API serves events. It has no effect without `api.enabled`, and needs a replica set. `postrider append` and the library do not depend on it.
    pub enabled: bool,
    /// The bounded context. A database has one, which the first append sets.
    #[schemars(length(min = 1))]
    pub context: String,
    /// The database of the event streams. By default: `mongo.database`.
    #[schemars(example = &"app")]
    pub database: Option<String>,
    /// Where a request id is unique: within its `aggregate`, or `global`: within all aggregates of a name, in collections that are not sharded. It cannot change after the first append.
    pub request_id_unique: RequestIds,
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            context: "default".into(),
            database: None,
            request_id_unique: RequestIds::Aggregate,
        }
    }
}

/// The sections `[snapshots]` and `[prepare]`: a part of the event store with a database of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DatabaseConfig {
    /// The database. By default: `mongo.database`.
    #[schemars(example = &"app")]
    pub database: Option<String>,
}
