//! What an operator decides about a Kafka sink.

use std::time::Duration;

use postrider_outbox::ids::SinkName;
use postrider_settings::properties::Properties;

use crate::cloud_events::CloudEvents;
use crate::declare::Topic;

/// What an operator decides about a Kafka sink.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// The sink's name.
    pub name: SinkName,
    /// Where to begin: `host:port`, several with commas between.
    pub brokers: String,
    /// For librdkafka, over our own defaults: TLS, SASL, limits, compression.
    pub properties: Properties,
    /// Limit of one publish, and of one connection attempt.
    pub timeout: Duration,
    /// Topics to make where they are absent.
    pub topics: Vec<Topic>,
    /// Whether and how messages are CloudEvents.
    pub cloud_events: Option<CloudEvents>,
    /// Whether records may wait some milliseconds for company while many lanes have some. Not with
    /// `key_window` above 1: the order of two unconfirmed records would be lost. An own `linger.ms`
    /// wins.
    pub gathers: bool,
}

impl KafkaSettings {
    /// The defaults of the configuration.
    pub fn new(name: &str, brokers: &str) -> Self {
        Self {
            name: name.into(),
            brokers: brokers.to_owned(),
            properties: Properties::default(),
            timeout: Duration::from_secs(10),
            topics: Vec::new(),
            cloud_events: None,
            gathers: true,
        }
    }
}
