//! The properties of librdkafka: our defaults, overridden by the operator's.

use std::fmt;
use std::time::Duration;

use postrider_settings::properties::{HIDDEN, Properties};
use postrider_settings::quoted;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::BaseProducer;

use crate::kafka::config::KafkaSettings;
use crate::kafka::gathering::LINGER;

/// Names that librdkafka takes for the same property.
const ALIASES: [(&str, &str); 7] = [
    ("metadata.broker.list", "bootstrap.servers"),
    ("request.required.acks", "acks"),
    ("delivery.timeout.ms", "message.timeout.ms"),
    ("queue.buffering.max.ms", "linger.ms"),
    ("compression.codec", "compression.type"),
    ("message.send.max.retries", "retries"),
    ("max.in.flight.requests.per.connection", "max.in.flight"),
];

/// Properties of topics, which librdkafka takes with this in front too.
const OF_TOPIC: &str = "topic.";

/// A property of librdkafka that an operator cannot set, or not to any value.
#[derive(Debug)]
pub struct Reserved {
    /// Its name.
    pub name: &'static str,
    /// Which values of it are refused.
    pub refused: Refused,
    /// The reason, in words.
    pub why: &'static str,
}

/// Which values of a property are refused. `Display` is for `docs/configuration.md`.
#[derive(Debug)]
pub enum Refused {
    /// Each.
    All,
    /// Each but these.
    AllBut(&'static [&'static str]),
    /// This one.
    One(&'static str),
    /// Each number above this.
    Above(f64),
    /// Where another setting forbids it, in words; [`limits`] judges it.
    Where(&'static str),
}

impl Refused {
    /// Whether this value is refused by itself. What is no number, librdkafka refuses.
    fn has(&self, value: &str) -> bool {
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

/// What the relay's promises fix, and what has a key of its own. `docs/configuration.md` has this list.
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
        why: "must be all: with less, a confirmed record can be lost",
    },
    Reserved {
        name: "enable.idempotence",
        refused: Refused::AllBut(&["true"]),
        why: "must be true: without it, a retry can reorder or duplicate records",
    },
    Reserved {
        name: "enable.gapless.guarantee",
        refused: Refused::AllBut(&["false"]),
        why: "must be false: with it, one refused record ends the producer for all records",
    },
    Reserved {
        name: "transactional.id",
        refused: Refused::All,
        why: "leave it out: Postrider does not use transactions of Kafka",
    },
    Reserved {
        name: "delivery.report.only.error",
        refused: Refused::AllBut(&["false"]),
        why: "must be false: with it, no record is ever confirmed, and each is sent again and again",
    },
    Reserved {
        name: "topic.blacklist",
        refused: Refused::All,
        why: "leave it out: no record to such a topic is ever confirmed; sinks.<name>.allow limits \
              destinations",
    },
    Reserved {
        name: "retries",
        refused: Refused::One("0"),
        why: "must be at least 1: idempotence requires it",
    },
    Reserved {
        name: "max.in.flight",
        refused: Refused::Above(5.0),
        why: "must be at most 5: idempotence requires it",
    },
    Reserved {
        name: "queuing.strategy",
        refused: Refused::AllBut(&["fifo"]),
        why: "must be fifo: idempotence requires it, and lifo reverses the order of records",
    },
    Reserved {
        name: "queue.buffering.backpressure.threshold",
        refused: Refused::Above(1.0),
        why: "must be 1: idempotence requires it",
    },
    Reserved {
        name: "partitioner",
        refused: Refused::One("random"),
        why: "must hash the key: records of one key in several partitions have no order",
    },
    Reserved {
        name: "api.version.request",
        refused: Refused::AllBut(&["true"]),
        why: "must be true: without the answer, librdkafka cannot be idempotent",
    },
    Reserved {
        name: "socket.max.fails",
        refused: Refused::AllBut(&["1"]),
        why: "must be 1: a connection with a request that timed out must end, or later answers are \
              misread",
    },
    Reserved {
        name: "log.connection.close",
        refused: Refused::AllBut(&["true"]),
        why: "must be true: Postrider learns of lost connections by it",
    },
    Reserved {
        name: "internal.termination.signal",
        refused: Refused::AllBut(&["0"]),
        why: "must be 0: librdkafka would replace the handler of that signal",
    },
    Reserved {
        name: "request.timeout.ms",
        refused: Refused::Where("at or above `message.timeout.ms`"),
        why: "must be below message.timeout.ms, which follows sinks.<name>.timeout: a request without \
              an answer in time ends the connection of all records",
    },
    Reserved {
        name: "socket.timeout.ms",
        refused: Refused::Where("at or below `request.timeout.ms`"),
        why: "must be above request.timeout.ms: a request without an answer in time ends the \
              connection of all records",
    },
    Reserved {
        name: "linger.ms",
        refused: Refused::Where("at or above `message.timeout.ms`"),
        why: "must be below message.timeout.ms, which follows sinks.<name>.timeout: no record would \
              be sent in time",
    },
    Reserved {
        name: "topic.metadata.propagation.max.ms",
        refused: Refused::Where("at or above `sinks.NAME.timeout`"),
        why: "must be below sinks.<name>.timeout: a topic that is gone would look like one that does \
              not confirm",
    },
    Reserved {
        name: "queue.buffering.max.kbytes",
        refused: Refused::Where("below `message.max.bytes`"),
        why: "must hold a record of message.max.bytes: a larger one would wait for room for ever",
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
        Self { key: format!("properties.{}", quoted(name)), detail: detail.into() }
    }
}

/// All properties that can't be used; at least one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct WrongProperties(pub Vec<WrongProperty>);

/// All properties of a configuration that librdkafka doesn't take, that break a promise, or that do
/// not go together with the sink's timeout; connects to nothing.
pub(super) fn wrong_properties(settings: &KafkaSettings) -> Vec<WrongProperty> {
    let mut wrong = limits(settings);
    for other in refused(settings) {
        if !wrong.iter().any(|known| known.key == other.key) {
            wrong.push(other);
        }
    }
    wrong.sort_by_key(|wrong| wrong.key.replace('"', ""));
    wrong
}

/// The properties that librdkafka doesn't take, or that break a promise; connects to nothing.
pub(super) fn refused(settings: &KafkaSettings) -> Vec<WrongProperty> {
    let mut config = client_config(settings);
    config.remove("bootstrap.servers");
    let mut wrong = Vec::new();
    for (name, value) in settings.own.properties.iter() {
        if let Err(detail) = alone(name, value, &settings.own.properties) {
            wrong.push(WrongProperty::of(name, detail));
            config.remove(name);
        }
    }
    // What goes together, and the files that are named, it judges when it makes a client: one
    // after the other.
    while let Err(error) = config.create::<BaseProducer>() {
        let detail = words(&error, &settings.own.properties);
        let named = settings.own.properties.iter().map(|(name, _)| name);
        let named = named.filter(|name| config.get(name).is_some() && names(&detail, name));
        let Some(name) = named.max_by_key(|name| name.len()) else {
            if wrong.is_empty() {
                wrong.push(WrongProperty { key: "properties".into(), detail });
            }
            break;
        };
        wrong.push(WrongProperty::of(name, detail));
        config.remove(name);
    }
    wrong
}

/// Whether librdkafka's words name a property, by any of its names.
fn names(words: &str, name: &str) -> bool {
    words.contains(name) || words.contains(canonical(name))
}

/// Judges one property by itself.
fn alone(name: &str, value: &str, all: &Properties) -> Result<(), String> {
    let known = RESERVED.iter().find(|reserved| reserved.name == canonical(name));
    if let Some(reserved) = known.filter(|reserved| reserved.refused.has(value)) {
        return Err(reserved.why.to_owned());
    }
    let mut alone = ClientConfig::new();
    alone.set(name, value);
    match alone.create_native_config() {
        Ok(_) => Ok(()),
        Err(error) => Err(words(&error, all)),
    }
}

/// The properties whose limits are other settings of the sink.
fn limits(settings: &KafkaSettings) -> Vec<WrongProperty> {
    let own = |wanted: &str| {
        let mut set = settings.own.properties.iter();
        let (name, value) = set.find(|(name, _)| canonical(name) == wanted)?;
        Some((name, value.parse::<f64>().ok()?))
    };
    let message_timeout = message_timeout(settings).as_secs_f64() * 1e3;
    let request_timeout =
        own("request.timeout.ms").map_or(message_timeout / 2.0, |(_, millis)| millis);
    let largest = largest(settings) as f64;
    let is_beyond = |reserved: &str, value: f64| match reserved {
        "request.timeout.ms" | "linger.ms" => value >= message_timeout,
        "socket.timeout.ms" => value <= request_timeout,
        "topic.metadata.propagation.max.ms" => {
            value >= settings.delivery.timeout.as_secs_f64() * 1e3
        }
        "queue.buffering.max.kbytes" => value * 1024.0 < largest,
        _ => false,
    };
    let beyond = RESERVED.iter().filter_map(|reserved| {
        let (name, value) = own(reserved.name)?;
        is_beyond(reserved.name, value).then(|| WrongProperty::of(name, reserved.why))
    });
    beyond.collect()
}

/// The one name for a property of several.
pub(super) fn canonical(name: &str) -> &str {
    let known = |name: &str| {
        let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, of)| *of);
        alias.or_else(|| RESERVED.iter().map(|reserved| reserved.name).find(|known| *known == name))
    };
    let of_topic = || known(name.strip_prefix(OF_TOPIC)?);
    known(name).or_else(of_topic).unwrap_or(name)
}

/// How long librdkafka tries one record.
fn message_timeout(settings: &KafkaSettings) -> Duration {
    settings.delivery.timeout - EARLIER.min(settings.delivery.timeout / 4)
}

/// The whole configuration of a producer.
pub(super) fn client_config(settings: &KafkaSettings) -> ClientConfig {
    let timeout = message_timeout(settings);
    // The broker answers before the record's time is up: a request without an answer would cost
    // its neighbours the connection.
    let request_timeout = (timeout / 2).as_millis().max(1).to_string();
    let timeout = timeout.as_millis().to_string();
    // A topic was looked up before: sooner than the record's own end its disappearance shows.
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
    // A password file that cannot be read was reported before.
    let connection = settings.own.connection().unwrap_or_default();
    for (name, value) in connection.iter().chain(settings.own.properties.iter()) {
        config.remove(canonical(name));
        config.set(name, value);
    }
    // Lower than that the end of a connection is not told.
    config.set_log_level(RDKafkaLogLevel::Info);
    config
}

/// The configuration of the producer that lets records wait for company.
pub(super) fn gathering_config(settings: &KafkaSettings) -> ClientConfig {
    let mut config = client_config(settings);
    config.set("linger.ms", LINGER);
    config
}

/// Whether the operator's own properties say how long records wait for company.
pub(super) fn sets_linger(properties: &Properties) -> bool {
    properties.iter().any(|(name, _)| canonical(name) == "linger.ms")
}

/// The largest record that the producer takes, in bytes: librdkafka's own limit by default.
pub(super) fn largest(settings: &KafkaSettings) -> usize {
    let set = settings.own.properties.iter().find(|(name, _)| *name == "message.max.bytes");
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
    let words = secrets
        .filter(|(_, value)| !value.is_empty())
        .fold(words, |words, (_, value)| words.replace(value, HIDDEN));
    // Some end in a line end, which an error on one line shows.
    words.trim().to_owned()
}
