//! A table `[sinks.NAME]`: the keys of every kind of sink and those of its own.

use std::time::Duration;

use postrider_outbox::ids::SinkName;
use postrider_relay::routing::SinkRules;
use postrider_settings::{Rules, quoted};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use toml::{Table, Value};

use crate::config::{DeliveryConfig, ReadError};
use crate::registry::{AnySink, KindConfig};

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

/// The names of the keys of [`DeliveryConfig`].
const DELIVERY_KEYS: [&str; 3] = ["timeout", "key_window", "allowed_destinations"];

impl ConfiguredSink {
    /// Reads a table of this kind.
    ///
    /// # Errors
    ///
    /// The first wrong key.
    pub fn read(kind: &str, mut table: Table) -> Result<Self, ReadError> {
        table.remove("kind");
        let (delivery, own): (Table, Table) =
            table.into_iter().partition(|(key, _)| DELIVERY_KEYS.contains(&key.as_str()));
        Ok(Self {
            kind: KindConfig::read(kind, own)?,
            delivery: serde_path_to_error::deserialize(Value::Table(delivery))?,
        })
    }

    /// Builds the sink, which connects at its first probe.
    ///
    /// # Errors
    ///
    /// What is wrong, without secrets.
    pub fn build(&self, name: &SinkName) -> Result<AnySink, String> {
        self.kind.clone().build(name.clone(), self.delivery.clone())
    }

    /// Checks every rule of the sink, whose table `rules` takes to be below `sinks`.
    pub fn validate(&self, name: &str, rules: &mut Rules) {
        rules.within(&quoted(name), |rules| self.kind.validate(name, &self.delivery, rules));
    }

    /// Returns how the router addresses records to this sink.
    pub fn rules(&self) -> SinkRules {
        self.kind.routing_rules(self.delivery.allowed_destinations.clone())
    }

    /// Returns the same sink for `postrider check`: it creates nothing, and waits no longer than `limit`.
    pub fn for_check(&self, limit: Duration) -> Self {
        let kind = self.kind.clone().without_declarations();
        let timeout = limit.min(self.delivery.timeout);
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

    /// One closed object per kind, so that editors propose only the keys of the kind.
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let delivery = properties(&DeliveryConfig::json_schema(generator));
        let kinds = KindConfig::schemas(generator).into_iter().map(|(kind, schema)| {
            let mut keys = serde_json::Map::new();
            let description = "The kind of broker. Required.";
            let constant = serde_json::json!({ "const": kind, "description": description });
            keys.insert("kind".to_owned(), constant);
            keys.extend(properties(&schema));
            keys.extend(delivery.clone());
            let own = schema.get("required").and_then(|it| it.as_array()).cloned();
            let required = [vec!["kind".into()], own.unwrap_or_default()].concat();
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

        assert_eq!(table.len(), DELIVERY_KEYS.len());
        assert!(DELIVERY_KEYS.iter().all(|key| table.contains_key(*key)));
    }
}
