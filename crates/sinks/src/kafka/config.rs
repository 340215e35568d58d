//! The configuration of a Kafka sink.

use std::path::PathBuf;

use postrider_relay::routing::Template;
use postrider_settings::TlsConfig;
use postrider_settings::properties::Properties;
use postrider_settings::secret::{SecretText, read_file};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::SinkSettings;
use crate::kafka::tokens::Tokens;

/// The SASL mechanism of bearer tokens.
pub(super) const OAUTHBEARER: &str = "OAUTHBEARER";

/// One sink of kind `kafka`, as it is configured.
pub type KafkaSettings = SinkSettings<KafkaConfig>;

/// The keys of a `kafka` sink. It publishes with librdkafka's idempotent producer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaConfig {
    /// The brokers to connect to first: `host:9092`, several with commas, or a list. Required.
    #[schemars(required, example = ["one:9092", "two:9092"])]
    pub brokers: Option<Brokers>,
    /// Template of the topic. The destination of the record takes precedence, then that of the route.
    pub topic: Template,
    /// Properties of librdkafka. Postrider's defaults: `compression.type` = `lz4`, `linger.ms` = 0 (5 under load), `partitioner` = `murmur2_random` (as Java's clients). `acks` = `all` and `enable.idempotence` = `true` are fixed. A record that has more than `message.max.bytes` (1000000) with its key and headers, uncompressed, becomes dead; so does a record above the limit of the topic, `max.message.bytes`. For records of up to 16 MiB set both to 17825792; the defaults of a broker's other limits are enough.
    #[schemars(example = example_properties())]
    pub properties: Properties,
    /// The user to log in with SASL. Without `sasl.mechanism` among the properties, the mechanism is `PLAIN`.
    #[schemars(example = &"postrider")]
    pub username: Option<String>,
    /// The file with the user's password, read each time that the sink connects.
    #[schemars(example = &"/run/secrets/kafka-password")]
    pub password_file: Option<PathBuf>,
    /// The file with a bearer token for SASL OAUTHBEARER, in place of user and password. It is read each time that the sink connects, and before the token expires (`exp` of a JSON Web Token; every 5 minutes for others).
    #[schemars(example = &"/run/secrets/kafka-token")]
    pub token_file: Option<PathBuf>,
    /// TLS to the brokers. An empty table trusts the system's authorities.
    pub tls: Option<TlsConfig>,
    /// The topics that the sink creates if they are missing.
    pub declare: DeclaredTopics,
    /// Whether messages are CloudEvents in binary mode.
    pub cloudevents: bool,
    /// Template of the CloudEvents source.
    #[schemars(length(min = 1))]
    pub cloudevents_source: Template,
    /// The prefix of the names of CloudEvents attributes.
    #[schemars(length(min = 1))]
    pub cloudevents_prefix: String,
}

impl Default for KafkaConfig {
    fn default() -> Self {
        Self {
            brokers: None,
            topic: Template::message_type(),
            properties: Properties::default(),
            username: None,
            password_file: None,
            token_file: None,
            tls: None,
            declare: DeclaredTopics::default(),
            cloudevents: false,
            cloudevents_source: Template::fixed("postrider"),
            cloudevents_prefix: "ce_".into(),
        }
    }
}

fn example_properties() -> Properties {
    Properties::from([("compression.type", "zstd")])
}

/// The brokers to connect to first, as a text with commas or as a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Brokers {
    /// `"one:9092,two:9092"`.
    Text(String),
    /// `["one:9092", "two:9092"]`.
    List(Vec<String>),
}

impl Brokers {
    /// Returns all of them, separated by commas.
    pub fn joined(&self) -> String {
        match self {
            Self::Text(text) => text.trim().to_owned(),
            Self::List(list) => list.join(","),
        }
    }
}

/// What a `kafka` sink creates if it is missing. It changes nothing that exists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeclaredTopics {
    /// Topics. `partitions` and `replication` are by default those of the broker.
    #[schemars(example = [example_topic()])]
    pub topics: Vec<Topic>,
}

fn example_topic() -> Topic {
    Topic {
        name: "orders".to_owned(),
        partitions: Some(12),
        replication: Some(3),
        properties: Properties::from([("min.insync.replicas", "2")]),
    }
}

/// A topic.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Topic {
    /// The name.
    pub name: String,
    /// The number of partitions. By default: that of the broker.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub partitions: Option<i32>,
    /// The number of replicas of each partition. By default: that of the broker.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub replication: Option<i32>,
    /// The topic's properties, such as `"retention.ms"`.
    #[serde(default)]
    pub properties: Properties,
}

impl KafkaConfig {
    /// Creates a configuration with these brokers and defaults otherwise.
    pub fn at(brokers: &str) -> Self {
        Self { brokers: Some(Brokers::Text(brokers.to_owned())), ..Self::default() }
    }

    /// Returns the brokers, separated by commas.
    pub(super) fn bootstrap(&self) -> String {
        self.brokers.as_ref().map(Brokers::joined).unwrap_or_default()
    }

    /// Returns the source of the tokens to log in with.
    pub(super) fn tokens(&self) -> Tokens {
        Tokens::in_file(self.token_file.as_deref())
    }

    /// Returns the properties that `username`, `password_file`, `token_file` and `tls` stand for.
    pub(super) fn connection(&self) -> Properties {
        let mut properties = Properties::default();
        let has_login = self.username.is_some() || self.token_file.is_some();
        let protocol = match (has_login, self.tls.is_some()) {
            (false, false) => return properties,
            (false, true) => "ssl",
            (true, false) => "sasl_plaintext",
            (true, true) => "sasl_ssl",
        };
        properties.set("security.protocol", protocol);
        if self.token_file.is_some() {
            properties.set("sasl.mechanism", OAUTHBEARER);
        } else if let Some(username) = &self.username {
            if !self.properties.iter().any(|(name, _)| name == "sasl.mechanism") {
                properties.set("sasl.mechanism", "PLAIN");
            }
            properties.set("sasl.username", username);
        }
        if let Some(file) = &self.password_file {
            // `validate` reports a file that cannot be read.
            let password = read_file(file).ok();
            properties.set("sasl.password", password.as_ref().map_or("", SecretText::expose));
        }
        let tls = self.tls.clone().unwrap_or_default();
        for (name, file) in [
            ("ssl.ca.location", tls.ca_file),
            ("ssl.certificate.location", tls.cert_file),
            ("ssl.key.location", tls.key_file),
        ] {
            if let Some(file) = file {
                properties.set(name, &file.to_string_lossy());
            }
        }
        properties
    }
}
