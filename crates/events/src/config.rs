//! The configuration of the event store.

use postrider_settings::{Glob, Rules};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::context::RequestIds;
use crate::names::is_name_character;

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
    /// Globs of the names that may be created: of aggregates, for their events and snapshots, and of prepare keys. `*` matches any characters, `?` one character. Each new name creates a collection, so clients that may choose names freely can create any number. An append, snapshot or prepare key of another name is refused with 422, unless its collection exists.
    #[schemars(example = &["order", "customer-*"])]
    pub aggregates: Vec<Glob>,
}

impl EventsConfig {
    /// Checks the globs: each can match a name.
    pub fn check(&self, rules: &mut Rules) {
        let key = "events.aggregates";
        let is_wrong = |c: &char| !is_name_character(*c) && !matches!(c, '*' | '?');
        rules.require(
            !self.aggregates.is_empty(),
            key,
            "has no glob, so no name could be created; add globs, or \"*\" for all names",
        );
        for pattern in self.aggregates.iter().map(Glob::to_string) {
            if let Some(wrong) = pattern.chars().find(is_wrong) {
                let detail = format!(
                    "its glob {pattern:?} has {wrong:?}, which no name has; use letters, digits, \
                     _ . - and the wildcards * and ?"
                );
                rules.wrong(key, detail);
            } else if pattern.is_empty() {
                rules.wrong(key, "its glob \"\" matches no name; remove it");
            }
        }
    }
}

impl Default for EventsConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            context: "default".into(),
            database: None,
            request_id_unique: RequestIds::Aggregate,
            aggregates: vec![Glob::new("*")],
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
