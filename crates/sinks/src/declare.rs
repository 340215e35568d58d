//! What a sink creates at its broker where it is absent.

use postrider_settings::properties::Properties;
use serde::{Deserialize, Serialize};

/// What a sink makes where it is absent, and never alters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Declare {
    /// rabbitmq.
    pub exchanges: Vec<Exchange>,
    /// rabbitmq.
    pub queues: Vec<Queue>,
    /// rabbitmq.
    pub bindings: Vec<Binding>,
    /// kafka.
    pub topics: Vec<Topic>,
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// Its name.
    pub name: String,
    /// `direct`, `fanout`, `topic`, `headers`, or what a plugin of the broker brings.
    #[serde(rename = "type", default = "Exchange::default_kind")]
    pub kind: String,
    /// As the broker knows them, such as `alternate-exchange`.
    #[serde(default)]
    pub arguments: toml::Table,
}

impl Exchange {
    fn default_kind() -> String {
        "topic".into()
    }
}

/// A durable queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// `quorum`, `classic` or `stream`.
    #[serde(rename = "type", default)]
    pub kind: QueueKind,
    /// As the broker knows them, such as `x-delivery-limit`.
    #[serde(default)]
    pub arguments: toml::Table,
}

/// What a queue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// Replicated: what a confirm from it means outlives a node.
    #[default]
    Quorum,
    /// On one node.
    Classic,
    /// A log.
    Stream,
}

/// A binding of a queue to an exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// From where.
    pub exchange: String,
    /// To where.
    pub queue: String,
    /// Which messages.
    #[serde(default)]
    pub routing_key: String,
    /// For `headers` exchanges.
    #[serde(default)]
    pub arguments: toml::Table,
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// Its name.
    pub name: String,
    /// Partitions; without it what the broker makes by default.
    #[serde(default)]
    pub partitions: Option<i32>,
    /// Replicas of each; without it what the broker makes by default.
    #[serde(default)]
    pub replication: Option<i32>,
    /// As the broker knows them, such as `"retention.ms"`.
    #[serde(default)]
    pub properties: Properties,
}
