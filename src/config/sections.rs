//! The sections of the configuration, each the type of the part that owns it.

use std::collections::BTreeMap;

use postrider_adopt::config::AdoptConfig;
use postrider_events::config::{DatabaseConfig, EventsConfig};
use postrider_events::feed::FeedConfig;
use postrider_events::query::QuerySettings;
use postrider_outbox::config::OutboxConfig;
use postrider_relay::partition::config::PartitionsConfig;
use postrider_relay::partition::names::MAX_NAME_LENGTH;
use postrider_relay::routing::Route;
use postrider_relay::settings::Settings;
use postrider_settings::Rules;
use postrider_settings::secret::SecretUri;
use postrider_sinks::configured::ConfiguredSink;
use postrider_store::config::MongoConfig;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::http::config::ApiConfig;
use crate::ops::config::OpsConfig;
use crate::telemetry::config::LogConfig;

/// Everything that can be configured. `config/postrider.toml` shows it at its defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The connection to MongoDB.
    pub mongo: MongoConfig,
    /// URIs of MongoDB by name; `mongo.source` selects one where there is no source of that name.
    #[schemars(example = example_connection_strings())]
    pub connection_strings: BTreeMap<String, SecretUri>,
    /// This instance.
    pub instance: InstanceConfig,
    /// The collections of the outbox.
    pub outbox: OutboxConfig,
    /// How records are acquired, published and settled.
    pub relay: Settings,
    /// Which partitions this instance owns.
    pub partitions: PartitionsConfig,
    /// The brokers, one table each, under a name of your own. A running relay needs at least one.
    pub sinks: BTreeMap<String, ConfiguredSink>,
    /// Which records go where: the first route whose type matches wins. Templates have the variables `{type}`, `{key}`, `{destination}`, `{tenantId}`, `{aggregate}` and `{header.NAME}`; `{{` is a brace.
    pub routes: Vec<Route>,
    /// Liveness, readiness and metrics.
    pub ops: OpsConfig,
    /// The log on standard error.
    pub log: LogConfig,
    /// The append path (docs/events.md).
    pub events: EventsConfig,
    /// The snapshots of aggregates.
    pub snapshots: DatabaseConfig,
    /// The prepare keys.
    pub prepare: DatabaseConfig,
    /// Queries of events and snapshots (docs/queries.md).
    pub queries: QuerySettings,
    /// The feed over all event streams (docs/feed.md).
    pub feed: FeedConfig,
    /// The HTTP API (docs/http.md).
    pub api: ApiConfig,
    /// The outbox of another system, for `postrider adopt` (docs/adopt.md).
    pub adopt: AdoptConfig,
}

fn example_connection_strings() -> BTreeMap<String, String> {
    [("mongo".to_owned(), "mongodb://host/app".to_owned())].into()
}

/// The section `[instance]`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct InstanceConfig {
    /// A name that no other running instance of this outbox has, 1 to 200 characters. An instance that restarts under its name takes over the partitions and leases of its predecessor at once. Without it: the name of the host and the path of this file; a second instance with the same ones gets the suffix `#2`.
    #[schemars(example = &"orders-relay-0")]
    pub name: Option<String>,
}

impl InstanceConfig {
    /// Checks the name.
    pub fn validate(&self, rules: &mut Rules) {
        let Some(name) = &self.name else { return };
        let length = name.chars().count();
        let is_right = (1..=MAX_NAME_LENGTH).contains(&length) && name.trim() == name;
        let detail = format!(
            "has {length} characters; must have 1 to {MAX_NAME_LENGTH}, without spaces at its ends"
        );
        rules.require(is_right, "name", detail);
    }
}
