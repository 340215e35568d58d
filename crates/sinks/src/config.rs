//! The configuration of a sink: what every kind has, and what its own kind adds.
//!
//! A kind of sink is a folder with a type that implements [`SinkConfig`], and one line in
//! [`registry`](crate::registry).

use std::future::Future;
use std::time::Duration;

use postrider_outbox::ids::SinkName;
use postrider_relay::routing::{Glob, SinkRules, Template};
use postrider_relay::sink::{PublishError, Sink};
use postrider_settings::units::HumanDuration;
use postrider_settings::{Rules, quoted};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use toml::{Table, Value};

use crate::registry::KindConfig;

/// A table `[sinks.NAME]`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConfiguredSink {
    /// The keys of its kind, `kind` among them.
    #[serde(flatten)]
    pub kind: KindConfig,
    /// The keys of every kind.
    #[serde(flatten)]
    pub delivery: DeliveryConfig,
}

/// The keys that every kind of sink has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeliveryConfig {
    /// How long a publish may take. It must be above 0 and below `relay.lease`, so that no other instance publishes the record meanwhile.
    #[serde(with = "HumanDuration")]
    #[schemars(extend("x-at-least" = "1ms"))]
    pub timeout: Duration,
    /// Unconfirmed messages per key. Above 1 a key is faster, and a message that the broker refuses (nack, return, unknown topic) lets the messages behind it overtake it.
    #[schemars(range(min = 1, max = 1000))]
    pub key_window: usize,
    /// Globs of the destinations that a record may name itself. A record that names another one is dead, with a reason that begins with `refused:`.
    pub allow: Vec<Glob>,
}

/// The names of the keys of [`DeliveryConfig`].
const DELIVERY_KEYS: [&str; 3] = ["timeout", "key_window", "allow"];

impl Default for DeliveryConfig {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(10), key_window: 1, allow: vec![Glob::new("*")] }
    }
}

/// One sink's whole configuration, from which it is built.
#[derive(Clone, Debug)]
pub struct SinkSettings<C> {
    /// The name of its table.
    pub name: SinkName,
    /// The keys of every kind.
    pub delivery: DeliveryConfig,
    /// The keys of its kind.
    pub own: C,
}

impl<C> SinkSettings<C> {
    /// Defaults for the keys of every kind.
    pub fn new(name: &str, own: C) -> Self {
        Self { name: name.into(), delivery: DeliveryConfig::default(), own }
    }
}

/// Where records go that name no destination, in a sink of some kind.
#[derive(Clone, Debug)]
pub struct DefaultAddress {
    /// The destination.
    pub destination: Template,
    /// The message's key; `None` for the record's own.
    pub key: Option<Template>,
    /// The CloudEvents source, where messages are CloudEvents.
    pub source: Option<Template>,
}

/// How `postrider check` explains that a sink cannot be reached, where the sink itself has no remedy.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionHelp {
    /// The keys to look at.
    pub keys: &'static str,
    /// What to do.
    pub remedy: &'static str,
}

/// The configuration of one kind of sink.
pub trait SinkConfig: Clone + Serialize + DeserializeOwned + JsonSchema + Send + Sync {
    /// The sink that is built from it.
    type Sink: Sink;

    /// The broker's word for a destination; `None` where there is nothing to look up.
    const DESTINATION: Option<&'static str>;

    /// Advice for a sink that cannot be reached.
    const CONNECTION_HELP: ConnectionHelp;

    /// Checks the rules of its keys; the keys of `rules` are below the sink's table. It contacts nothing.
    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules);

    /// Warnings about what is legal and probably not meant, each with its key.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Where records go that name no destination.
    fn address(&self) -> DefaultAddress;

    /// The destinations that the sink creates when it connects.
    fn declared(&self) -> Vec<&str> {
        Vec::new()
    }

    /// The same configuration for `postrider check`, which creates nothing.
    fn without_declarations(self) -> Self {
        self
    }

    /// Builds the sink; it contacts nothing yet.
    ///
    /// # Errors
    ///
    /// What is wrong, without secrets.
    fn build(settings: SinkSettings<Self>) -> Result<Self::Sink, String>;

    /// Looks a destination up without creating it.
    ///
    /// # Errors
    ///
    /// `Retryable` where it is missing or hidden; another failure where the broker cannot be asked.
    fn look_up(
        _sink: &Self::Sink,
        _destination: &str,
    ) -> impl Future<Output = Result<(), PublishError>> + Send {
        std::future::ready(Ok(()))
    }
}

/// Why a table is not a sink's, with the path of the wrong key below the table.
pub type ReadError = serde_path_to_error::Error<toml::de::Error>;

impl ConfiguredSink {
    /// Reads the keys of a kind, and those of every kind.
    ///
    /// # Errors
    ///
    /// The first key that is wrong.
    pub fn read(kind: &str, mut table: Table) -> Result<Self, ReadError> {
        table.remove("kind");
        let (delivery, own): (Table, Table) =
            table.into_iter().partition(|(key, _)| DELIVERY_KEYS.contains(&key.as_str()));
        Ok(Self {
            kind: KindConfig::read(kind, own)?,
            delivery: serde_path_to_error::deserialize(Value::Table(delivery))?,
        })
    }

    /// Checks every rule of the sink; the keys of `rules` are below `sinks`.
    pub fn validate(&self, name: &str, rules: &mut Rules) {
        rules.within(&quoted(name), |rules| self.kind.validate(name, &self.delivery, rules));
    }

    /// How the router addresses records to this sink.
    pub fn rules(&self) -> SinkRules {
        let DefaultAddress { destination, key, source } = self.kind.address();
        SinkRules { destination, key, allow: self.delivery.allow.clone(), source }
    }

    /// The same sink for `postrider check`: it creates nothing, and waits no longer than `patience`.
    pub fn for_check(&self, patience: Duration) -> Self {
        let kind = self.kind.clone().without_declarations();
        let timeout = patience.min(self.delivery.timeout);
        Self { kind, delivery: DeliveryConfig { timeout, ..self.delivery.clone() } }
    }
}

impl<'de> Deserialize<'de> for ConfiguredSink {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let table = Table::deserialize(input)?;
        let kind = table.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        Self::read(&kind, table).map_err(D::Error::custom)
    }
}

impl JsonSchema for ConfiguredSink {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Sink".into()
    }

    /// One closed object per kind, so that editors propose the keys of the kind alone.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let delivery = properties(&DeliveryConfig::json_schema(generator));
        let kinds = KindConfig::schemas(generator).into_iter().map(|(kind, schema)| {
            let mut keys = serde_json::Map::new();
            let description = "The kind of broker. Required.";
            let constant = serde_json::json!({ "const": kind, "description": description });
            keys.insert("kind".to_owned(), constant);
            keys.extend(properties(&schema));
            keys.extend(delivery.clone());
            let mut required = vec![Value::from("kind").as_str().map(str::to_owned)];
            required.extend(
                schema
                    .get("required")
                    .and_then(|it| it.as_array())
                    .into_iter()
                    .flatten()
                    .map(|key| key.as_str().map(str::to_owned)),
            );
            serde_json::json!({
                "type": "object",
                "description": schema.get("description"),
                "properties": keys,
                "required": required,
                "additionalProperties": false,
            })
        });
        let kinds: Vec<serde_json::Value> = kinds.collect();
        schemars::json_schema!({ "oneOf": kinds })
    }
}

fn properties(schema: &Schema) -> serde_json::Map<String, serde_json::Value> {
    schema.get("properties").and_then(|it| it.as_object()).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_keys_are_the_fields_of_the_type() {
        let table = Table::try_from(DeliveryConfig::default()).unwrap();

        assert_eq!(table.keys().map(String::as_str).collect::<Vec<_>>().len(), DELIVERY_KEYS.len());
        assert!(DELIVERY_KEYS.iter().all(|key| table.contains_key(*key)));
    }
}
