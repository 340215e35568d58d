//! The properties of librdkafka: Postrider's defaults, overridden by the operator's.

use std::fmt;
use std::time::Duration;

use postrider_settings::properties::{HIDDEN, Properties};
use postrider_settings::quoted;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseProducer;

use crate::kafka::batching::LINGER;
use crate::kafka::config::{KafkaSettings, OAUTHBEARER};

/// Other names that librdkafka accepts, and the name of the property.
const ALIASES: [(&str, &str); 8] = [
    ("metadata.broker.list", "bootstrap.servers"),
    ("request.required.acks", "acks"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("compression.codec", "compression.type"),
    ("message.send.max.retries", "retries"),
    ("max.in.flight.requests.per.connection", "max.in.flight"),
    ("sasl.mechanisms", "sasl.mechanism"),
];

/// The optional prefix of topic properties in librdkafka.
const TOPIC_PREFIX: &str = "topic.";

/// A property of librdkafka that an operator cannot set, or not to every value.
#[derive(Debug)]
pub struct Reserved {
    /// Its name.
    pub name: &'static str,
    /// The refused values.
    pub refused: Refused,
    /// The reason, as text for the operator.
    pub why: &'static str,
}

/// The refused values of a property. `Display` is for `docs/configuration.md`.
#[derive(Debug)]
pub enum Refused {
    /// Every value.
    All,
    /// Every value except these.
    AllBut(&'static [&'static str]),
    /// This value.
    One(&'static str),
    /// Every number above this.
    Above(f64),
    /// Values that another setting forbids, as text; [`limit_errors`] checks them.
    Where(&'static str),
}

impl Refused {
    /// Returns whether this value is refused whatever the other settings are. A text that is not a number is
    /// left to librdkafka.
    fn contains(&self, value: &str) -> bool {
        match self {
            Self::All => true,
            Self::AllBut(permitted) => !permitted.contains(&value),
            Self::One(refused) => *refused == value,
            Self::Above(limit) => value.parse::<f64>().is_ok_and(|number| number > *limit),
            Self::Where(_) => false,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("any"),
            Self::AllBut(permitted) => write!(f, "all but `{}`", permitted.join("`, `")),
            Self::One(refused) => write!(f, "`{refused}`"),
            Self::Above(limit) => write!(f, "above {limit}"),
            Self::Where(words) => f.write_str(words),
        }
    }
}

/// The properties that the relay's guarantees fix, and those that have a key of their own.
/// `docs/configuration.md` has this list.
pub const RESERVED: [Reserved; 22] = [
    Reserved {
        name: "bootstrap.servers",
        refused: Refused::All,
        why: "set sinks.<name>.brokers instead",
    },
    Reserved {
        name: "message.timeout.ms",
        refused: Refused::All,
        why: "set sinks.<name>.timeout instead: this follows it, 1 s shorter, or a quarter below 4 s",
    },
    Reserved {
        name: "acks",
        refused: Refused::AllBut(&["all", "-1"]),
        why: "must be all; with less, a confirmed record can be lost",
    },
    Reserved {
        name: "enable.idempotence",
        refused: Refused::AllBut(&["true"]),
        why: "must be true; without it, a retry can reorder or duplicate records",
    },
    Reserved {
        name: "enable.gapless.guarantee",
        refused: Refused::AllBut(&["false"]),
        why: "must be false; with it, one rejected record stops the producer for all records",
    },
    Reserved {
        name: "transactional.id",
        refused: Refused::All,
        why: "remove it; Postrider does not use Kafka transactions",
    },
    Reserved {
        name: "delivery.report.only.error",
        refused: Refused::AllBut(&["false"]),
        why: "must be false; with it, no record is ever confirmed, and each is sent repeatedly",
    },
    Reserved {
        name: "topic.blacklist",
        refused: Refused::All,
        why: "remove it; no record to such a topic is ever confirmed; limit destinations with \
              sinks.<name>.allowed_destinations",
    },
    Reserved {
        name: "retries",
        refused: Refused::One("0"),
        why: "must be at least 1, which idempotence requires",
    },
    Reserved {
        name: "max.in.flight",
        refused: Refused::Above(5.0),
        why: "must be at most 5, which idempotence requires",
    },
    Reserved {
        name: "queuing.strategy",
        refused: Refused::AllBut(&["fifo"]),
        why: "must be fifo, which idempotence requires; lifo reverses the order of records",
    },
    Reserved {
        name: "queue.buffering.backpressure.threshold",
        refused: Refused::Above(1.0),
        why: "must be 1, which idempotence requires",
    },
    Reserved {
        name: "partitioner",
        refused: Refused::One("random"),
        why: "must hash the key; records of one key in several partitions have no order",
    },
    Reserved {
        name: "api.version.request",
        refused: Refused::AllBut(&["true"]),
        why: "must be true; without the response, librdkafka cannot be idempotent",
    },
    Reserved {
        name: "socket.max.fails",
        refused: Refused::AllBut(&["1"]),
        why: "must be 1; a connection with a timed-out request must be closed, or later \
              responses are misread",
    },
    Reserved {
        name: "log.connection.close",
        refused: Refused::AllBut(&["true"]),
        why: "must be true; Postrider detects lost connections by it",
    },
    Reserved {
        name: "internal.termination.signal",
        refused: Refused::AllBut(&["0"]),
        why: "must be 0; otherwise librdkafka replaces the handler of that signal",
    },
    Reserved {
        name: "request.timeout.ms",
        refused: Refused::Where("at or above `message.timeout.ms`"),
        why: "must be below message.timeout.ms, which follows sinks.<name>.timeout; a request \
              without a response in time closes the connection of all records",
    },
    Reserved {
        name: "socket.timeout.ms",
        refused: Refused::Where("at or below `request.timeout.ms`"),
        why: "must be above request.timeout.ms; a request without a response in time closes the \
              connection of all records",
    },
    Reserved {
        name: "linger.ms",
        refused: Refused::Where("at or above `message.timeout.ms`"),
        why: "must be below message.timeout.ms, which follows sinks.<name>.timeout; otherwise \
              no record is sent in time",
    },
    Reserved {
        name: "topic.metadata.propagation.max.ms",
        refused: Refused::Where("at or above `sinks.NAME.timeout`"),
        why: "must be below sinks.<name>.timeout; otherwise a deleted topic looks like one that \
              does not confirm",
    },
    Reserved {
        name: "queue.buffering.max.kbytes",
        refused: Refused::Where("below `message.max.bytes`"),
        why: "must be at least message.max.bytes; otherwise a larger record waits forever",
    },
];

/// How long before the sink's timeout librdkafka gives a record up, at most: it checks once per second.
const MESSAGE_TIMEOUT_MARGIN: Duration = Duration::from_secs(1);

/// librdkafka's default for `message.max.bytes`.
const DEFAULT_MAX_MESSAGE_BYTES: usize = 1_000_000;

/// A property that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {detail}")]
pub struct InvalidProperty {
    /// The key within the sink's table.
    pub key: String,
    /// What is wrong, and what would be right; never the value of a secret.
    pub detail: String,
}

impl InvalidProperty {
    fn new(name: &str, detail: impl Into<String>) -> Self {
        Self { key: format!("properties.{}", quoted(name)), detail: detail.into() }
    }
}

/// All properties that cannot be used; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InvalidProperties(pub Vec<InvalidProperty>);

/// Returns all properties of a configuration that librdkafka refuses, that break a guarantee, or that
/// contradict the sink's timeout. Connects to nothing.
pub(super) fn invalid_properties(settings: &KafkaSettings) -> Vec<InvalidProperty> {
    let mut invalid = limit_errors(settings);
    for other in refused_properties(settings) {
        if !invalid.iter().any(|known| known.key == other.key) {
            invalid.push(other);
        }
    }
    invalid.sort_by_key(|invalid| invalid.key.replace('"', ""));
    invalid
}

/// Returns the properties that librdkafka refuses, or that break a guarantee. Connects to nothing.
pub(super) fn refused_properties(settings: &KafkaSettings) -> Vec<InvalidProperty> {
    let properties = &settings.own.properties;
    let mut config = client_config(settings);
    config.remove("bootstrap.servers");
    let mut refused = Vec::new();
    for (name, value) in properties.iter() {
        if let Err(detail) = check_property(name, value, properties) {
            refused.push(InvalidProperty::new(name, detail));
            config.remove(name);
        }
    }
    if settings.own.token_file.is_none()
        && let Some((name, OAUTHBEARER)) = find(properties, "sasl.mechanism")
    {
        let detail = "has no source of tokens here; set token_file, and remove this property";
        refused.push(InvalidProperty::new(name, detail));
        config.remove(name);
    }
    // Combinations and the named files are checked when a client is created, which reports one error.
    while let Err(error) = config.create::<BaseProducer>() {
        let detail = redacted(&error, properties);
        let set = properties.iter().map(|(name, _)| name);
        let named = set.filter(|name| {
            let is_named = detail.contains(name) || detail.contains(canonical(name));
            is_named && config.get(name).is_some()
        });
        let Some(name) = named.max_by_key(|name| name.len()) else {
            if refused.is_empty() {
                refused.push(InvalidProperty { key: "properties".into(), detail });
            }
            break;
        };
        refused.push(InvalidProperty::new(name, detail));
        config.remove(name);
    }
    refused
}

/// Checks one property by itself.
fn check_property(name: &str, value: &str, all: &Properties) -> Result<(), String> {
    // librdkafka skips it, so that the rules below would check another value than it uses.
    if value.starts_with(|first: char| first.is_ascii_whitespace()) {
        return Err("starts with white space, which librdkafka ignores; remove it".to_owned());
    }
    let reserved = RESERVED.iter().find(|reserved| reserved.name == canonical(name));
    if let Some(reserved) = reserved.filter(|reserved| reserved.refused.contains(value)) {
        return Err(reserved.why.to_owned());
    }
    let mut alone = ClientConfig::new();
    alone.set(name, value);
    alone.create_native_config().map(drop).map_err(|error| redacted(&error, all))
}

/// Checks the properties whose limits are other settings of the sink.
fn limit_errors(settings: &KafkaSettings) -> Vec<InvalidProperty> {
    let number = |canonical_name: &str| {
        let (name, value) = find(&settings.own.properties, canonical_name)?;
        Some((name, value.parse::<f64>().ok()?))
    };
    let message_timeout = message_timeout(settings).as_secs_f64() * 1e3;
    let request_timeout =
        number("request.timeout.ms").map_or(message_timeout / 2.0, |(_, millis)| millis);
    let max_message_bytes = max_message_bytes(settings) as f64;
    let is_beyond_limit = |reserved: &str, value: f64| match reserved {
        "request.timeout.ms" | "linger.ms" => value >= message_timeout,
        "socket.timeout.ms" => value <= request_timeout,
        "topic.metadata.propagation.max.ms" => {
            value >= settings.delivery.timeout.as_secs_f64() * 1e3
        }
        "queue.buffering.max.kbytes" => value * 1024.0 < max_message_bytes,
        _ => false,
    };
    let errors = RESERVED.iter().filter_map(|reserved| {
        let (name, value) = number(reserved.name)?;
        is_beyond_limit(reserved.name, value).then(|| InvalidProperty::new(name, reserved.why))
    });
    errors.collect()
}

/// Returns the one name of a property that has several.
fn canonical(name: &str) -> &str {
    let known = |name: &str| {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, of)| *of);
        alias.or_else(|| RESERVED.iter().map(|reserved| reserved.name).find(|known| *known == name))
    };
    let of_topic = || known(name.strip_prefix(TOPIC_PREFIX)?);
    known(name).or_else(of_topic).unwrap_or(name)
}

/// Finds a property of the operator's by its canonical name. Returns its name and value as written.
pub(super) fn find<'a>(
    properties: &'a Properties,
    canonical_name: &str,
) -> Option<(&'a str, &'a str)> {
    properties.iter().find(|(name, _)| canonical(name) == canonical_name)
}

/// Returns how long librdkafka tries one record.
fn message_timeout(settings: &KafkaSettings) -> Duration {
    settings.delivery.timeout - MESSAGE_TIMEOUT_MARGIN.min(settings.delivery.timeout / 4)
}

/// Returns the configuration of a producer.
pub(super) fn client_config(settings: &KafkaSettings) -> ClientConfig {
    let timeout = message_timeout(settings);
    // The broker answers before the record's time is up: a request without an answer ends the connection
    // of all records.
    let request_timeout = (timeout / 2).as_millis().max(1).to_string();
    let timeout = timeout.as_millis().to_string();
    // The topic was looked up before, so its removal is reported before the record's time is up.
    let unknown_after = (settings.delivery.timeout / 2).as_millis().to_string();
    let mut config = ClientConfig::new();
    for (name, value) in [
        ("bootstrap.servers", settings.own.bootstrap().as_str()),
        ("client.id", "postrider"),
        ("enable.idempotence", "true"),
        ("acks", "all"),
        ("message.timeout.ms", &timeout),
        ("request.timeout.ms", &request_timeout),
        // The next record of a key waits for the confirm of this one.
        ("linger.ms", "0"),
        ("compression.type", "lz4"),
        // As Java's clients do it, so that a key goes to the partition where its consumers expect it.
        ("partitioner", "murmur2_random"),
        ("topic.metadata.propagation.max.ms", &unknown_after),
        // After an outage the next attempt must come soon.
        ("reconnect.backoff.max.ms", "1000"),
        ("socket.keepalive.enable", "true"),
        // Without it the end of a connection is not reported at all.
        ("log.connection.close", "true"),
        ("statistics.interval.ms", "5000"),
    ] {
        config.set(name, value);
    }
    for (name, value) in settings.own.connection().iter().chain(settings.own.properties.iter()) {
        config.remove(canonical(name));
        config.set(name, value);
    }
    // The highest level at which the end of a connection is reported.
    config.set_log_level(RDKafkaLogLevel::Info);
    config
}

/// Returns the configuration of the producer that batches records.
pub(super) fn batching_config(settings: &KafkaSettings) -> ClientConfig {
    let mut config = client_config(settings);
    config.set("linger.ms", LINGER);
    config
}

/// Returns the limit of a record that the producer accepts: librdkafka's default, if none is set.
pub(super) fn max_message_bytes(settings: &KafkaSettings) -> usize {
    let set = find(&settings.own.properties, "message.max.bytes");
    // A text that is not a number was refused before.
    set.and_then(|(_, value)| value.parse().ok()).unwrap_or(DEFAULT_MAX_MESSAGE_BYTES)
}

/// Returns librdkafka's error text without the value of any secret.
fn redacted(error: &KafkaError, properties: &Properties) -> String {
    let text = match error {
        KafkaError::ClientConfig(_, text, _, _) | KafkaError::ClientCreation(text) => text.clone(),
        other => other.to_string(),
    };
    let secrets = properties.iter().filter(|(name, _)| Properties::is_secret(name));
    let text = secrets
        .filter(|(_, value)| !value.is_empty())
        .fold(text, |text, (_, value)| text.replace(value, HIDDEN));
    // Some texts end in a line end.
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::SinkSettings;
    use crate::kafka::config::KafkaConfig;

    #[test]
    fn mechanism_of_the_operator_replaces_plain_by_either_name() {
        for name in ["sasl.mechanism", "sasl.mechanisms"] {
            let mut own = KafkaConfig {
                username: Some("u".to_owned()),
                password_file: Some(PathBuf::from("/no/such/file")),
                ..KafkaConfig::at("h")
            };
            own.properties.set(name, "SCRAM-SHA-512");

            let config = client_config(&SinkSettings::new("k", own));

            let set = config.config_map();
            let of_mechanism = |key: &&str| canonical(key) == "sasl.mechanism";
            assert_eq!(set.keys().copied().filter(of_mechanism).collect::<Vec<_>>(), [name]);
            assert_eq!(set[name], "SCRAM-SHA-512");
        }
    }
}
