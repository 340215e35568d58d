//! What librdkafka is told: our defaults, and over them the operator's own.

use std::time::Duration;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseProducer;

use crate::config::properties::{HIDDEN, Properties};
use crate::sink::kafka::KafkaSettings;

/// Names that librdkafka takes for the same property.
const ALIASES: [(&str, &str); 6] = [
    ("metadata.broker.list", "bootstrap.servers"),
    ("request.required.acks", "acks"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("compression.codec", "compression.type"),
    ("topic.partitioner", "partitioner"),
];

/// The names of the property that decides the partition of a key.
pub(super) const PARTITIONER: [&str; 2] = ["partitioner", "topic.partitioner"];

/// A property of librdkafka that an operator cannot set, or not to any value.
#[derive(Debug)]
pub(crate) struct Reserved {
    pub(crate) name: &'static str,
    /// The values that it may have all the same.
    pub(crate) permitted: &'static [&'static str],
    pub(crate) why: &'static str,
}

/// What the relay's promises fix, and what has a key of its own. `docs/configuration.md` has this list.
pub(crate) const RESERVED: [Reserved; 5] = [
    Reserved { name: "bootstrap.servers", permitted: &[], why: "set sinks.<name>.brokers instead" },
    Reserved {
        name: "message.timeout.ms",
        permitted: &[],
        why: "set sinks.<name>.timeout instead: it ends a little later, so that one record's end \
              does not end the producer",
    },
    Reserved {
        name: "acks",
        permitted: &["all", "-1"],
        why: "must be all: with less, a confirmed record can be lost",
    },
    Reserved {
        name: "enable.idempotence",
        permitted: &["true"],
        why: "must be true: without it, a retry can reorder or duplicate records",
    },
    Reserved {
        name: "transactional.id",
        permitted: &[],
        why: "leave it out: Postrider does not use transactions of Kafka",
    },
];

/// How long before the sink's timeout librdkafka gives a record up, at most: it looks once in a
/// second.
const EARLIER: Duration = Duration::from_secs(1);

/// librdkafka's default for `message.max.bytes`.
const LARGEST: usize = 1_000_000;

/// A property that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {detail}")]
pub struct WrongProperty {
    /// The key within the sink's table.
    pub key: String,
    /// What is wrong, and what would be right; never a secret's value.
    pub detail: String,
}

impl WrongProperty {
    fn of(name: &str, detail: impl Into<String>) -> Self {
        Self { key: format!("properties.{name:?}"), detail: detail.into() }
    }
}

/// Whether librdkafka takes the settings; connects to nothing.
///
/// # Errors
///
/// The first property that it doesn't take, or that breaks a promise.
pub(super) fn check(settings: &KafkaSettings) -> Result<(), WrongProperty> {
    for (name, value) in settings.properties.iter() {
        promised(name, value)?;
        let mut alone = ClientConfig::new();
        alone.set(name, value);
        if let Err(error) = alone.create_native_config() {
            return Err(WrongProperty::of(name, words(&error, &settings.properties)));
        }
    }
    // What goes together, and the files that are named, it judges when it makes a client.
    let mut config = client_config(settings);
    config.remove("bootstrap.servers");
    match config.create::<BaseProducer>() {
        Ok(_) => Ok(()),
        Err(error) => {
            let detail = words(&error, &settings.properties);
            let named = settings.properties.iter().find(|(name, _)| detail.contains(name));
            Err(match named {
                Some((name, _)) => WrongProperty::of(name, detail),
                None => WrongProperty { key: "properties".into(), detail },
            })
        }
    }
}

/// What must be so for the relay to keep its promises, or has a key of its own.
fn promised(name: &str, value: &str) -> Result<(), WrongProperty> {
    let canonical = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, of)| *of);
    match RESERVED.iter().find(|reserved| reserved.name == canonical) {
        Some(reserved) if !reserved.permitted.contains(&value) => {
            Err(WrongProperty::of(name, reserved.why))
        }
        _ => Ok(()),
    }
}

/// The whole configuration of a producer.
pub(super) fn client_config(settings: &KafkaSettings) -> ClientConfig {
    let timeout = settings.timeout - EARLIER.min(settings.timeout / 4);
    // The broker answers before the record's time is up: a request without an answer would cost
    // its neighbours the connection.
    let request_timeout = (timeout / 2).as_millis().max(1).to_string();
    let timeout = timeout.as_millis().to_string();
    // A topic was looked up before: sooner than the record's own end its disappearance shows.
    let unknown_after = (settings.timeout / 2).as_millis().to_string();
    let mut config = ClientConfig::new();
    for (name, value) in [
        ("bootstrap.servers", settings.brokers.as_str()),
        ("client.id", "postrider"),
        ("enable.idempotence", "true"),
        ("acks", "all"),
        ("message.timeout.ms", &timeout),
        ("request.timeout.ms", &request_timeout),
        // Each lane waits for its confirm: a record that waits for company waits in vain.
        ("linger.ms", "0"),
        ("compression.type", "lz4"),
        // As Java's clients do it, so that a key lands where its consumers expect it.
        ("partitioner", "murmur2_random"),
        ("topic.metadata.propagation.max.ms", &unknown_after),
        // After an outage the next try is not to be long in coming.
        ("reconnect.backoff.max.ms", "1000"),
        ("socket.keepalive.enable", "true"),
        // Not for the log: without it the end of a connection is told to nobody.
        ("log.connection.close", "true"),
        ("statistics.interval.ms", "5000"),
    ] {
        config.set(name, value);
    }
    for (name, value) in settings.properties.iter() {
        if let Some((_, of)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
            config.remove(of);
        }
        config.set(name, value);
    }
    // Lower than that the end of a connection is not told.
    config.set_log_level(RDKafkaLogLevel::Info);
    config
}

/// The largest record that the producer takes, in bytes: librdkafka's own limit by default.
pub(super) fn largest(settings: &KafkaSettings) -> usize {
    let set = settings.properties.iter().find(|(name, _)| *name == "message.max.bytes");
    // What is no number was refused before.
    set.and_then(|(_, value)| value.parse().ok()).unwrap_or(LARGEST)
}

/// librdkafka's words, without the value of any secret.
fn words(error: &KafkaError, properties: &Properties) -> String {
    let words = match error {
        KafkaError::ClientConfig(_, words, _, _) | KafkaError::ClientCreation(words) => {
            words.clone()
        }
        other => other.to_string(),
    };
    let secrets = properties.iter().filter(|(name, _)| Properties::is_secret(name));
    secrets
        .filter(|(_, value)| !value.is_empty())
        .fold(words, |words, (_, value)| words.replace(value, HIDDEN))
}
