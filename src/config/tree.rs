//! The tree of settings (contract, section 5), each with its default.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_settings::properties::Properties;
use postrider_settings::secret::SecretUri;
use postrider_settings::units::{duration, size};
use serde::{Deserialize, Serialize};

use crate::config::token::Token;
use crate::context::RequestIds;
use crate::schema::options::DEFAULT_RETENTION;
use crate::schema::{SchemaOptions, Validator};
use crate::sink::declare::Declare;

/// Everything that can be configured. `config/postrider.toml` shows it at its defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where MongoDB is.
    pub mongo: Mongo,
    /// URIs by name; `mongo.source` picks one where neither `mongo.uri` nor a source has it.
    pub connection_strings: BTreeMap<String, SecretUri>,
    /// This instance.
    pub instance: Instance,
    /// The outbox's collections.
    pub outbox: Outbox,
    /// Taking, publishing and settling.
    pub relay: Relay,
    /// Which partitions are this instance's.
    pub partitions: Partitions,
    /// The brokers, by name.
    pub sinks: BTreeMap<String, Sink>,
    /// Which record goes where; the first match wins.
    pub routes: Vec<Route>,
    /// Liveness, readiness and metrics.
    pub ops: Ops,
    /// Logs on stderr.
    pub log: Log,
    /// The append path.
    pub events: Events,
    /// Snapshots of aggregates.
    pub snapshots: Database,
    /// Prepare keys.
    pub prepare: Database,
    /// The HTTP API.
    pub api: Api,
}

/// Where MongoDB is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mongo {
    /// The URI. Without it: `mongo.sources.<source>.uri`, then `connection_strings.<source>`.
    pub uri: Option<SecretUri>,
    /// Which of the named sources or connection strings is meant.
    pub source: String,
    /// Named sources.
    pub sources: BTreeMap<String, Source>,
    /// The database; without it the one in the URI.
    pub database: Option<String>,
}

impl Default for Mongo {
    fn default() -> Self {
        Self { uri: None, source: "mongo".into(), sources: BTreeMap::new(), database: None }
    }
}

/// A named source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Its URI.
    pub uri: SecretUri,
}

/// This instance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Instance {
    /// A name that no other living instance of the outbox has: one that comes back under it takes its
    /// predecessor's place at once. Without it: the host's name and the path of the configuration.
    pub name: Option<String>,
}

/// The outbox's collections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Outbox {
    /// The database; without it `mongo.database`.
    pub database: Option<String>,
    /// Goes in front of the four collection names: letters, digits, `_`, `.`, `-`.
    pub collection_prefix: String,
    /// Whether `run` creates what is missing of the schema; false: it only verifies.
    pub auto_init_schema: bool,
    /// What happens to a wrong record at its insertion, where Postrider creates the collection.
    pub validator: Validator,
    /// How long a delivered record stays; `"0s"` deletes on delivery.
    #[serde(with = "duration")]
    pub retention: Duration,
}

impl Outbox {
    /// What the schema depends on.
    pub fn schema_options(&self) -> SchemaOptions {
        SchemaOptions { retention: self.retention, validator: self.validator }
    }
}

impl Default for Outbox {
    fn default() -> Self {
        Self {
            database: None,
            collection_prefix: String::new(),
            auto_init_schema: true,
            validator: Validator::Error,
            retention: DEFAULT_RETENTION,
        }
    }
}

/// Taking, publishing and settling.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Relay {
    /// Whether this process relays.
    pub enabled: bool,
    /// Records that one take reads at most.
    pub batch_size: usize,
    /// Bytes of records in memory, in flight or being read, beyond which no more is read. Beside them
    /// there may be what the change stream says until it is taken, 10 MB at most.
    #[serde(with = "size")]
    pub batch_bytes: u64,
    /// The longest wait between two looks at an idle outbox.
    #[serde(with = "duration")]
    pub poll_interval: Duration,
    /// Whether a change stream brings the records; without it the relay only polls.
    pub follow: bool,
    /// Length of a lease: what a key in flight waits after a crash.
    #[serde(with = "duration")]
    pub lease: Duration,
    /// Deliveries in all; the last failure makes a record dead.
    pub max_attempts: u64,
    /// Whether records of a key go one after the other.
    pub ordering: Ordering,
    /// Whether a dead record lets its key go on.
    pub on_dead: OnDead,
    /// Waits after charged failures.
    pub backoff: Backoff,
    /// How long a stop may take.
    #[serde(with = "duration")]
    pub shutdown_timeout: Duration,
    /// The longest pause between two probes of a sink that is down.
    #[serde(with = "duration")]
    pub probe_max: Duration,
    /// How often everything pending is compared with what the change stream has brought.
    #[serde(with = "duration")]
    pub audit_interval: Duration,
    /// The sink of what no route matches; without it the only sink.
    pub default_sink: Option<String>,
    /// Where a copy of each dead record is sent.
    pub dead_letter: Option<DeadLetter>,
}

impl Default for Relay {
    fn default() -> Self {
        Self {
            enabled: true,
            // Where one command per batch costs little per record, and a crash leaves little leased.
            batch_size: 500,
            batch_bytes: 16 << 20,
            poll_interval: Duration::from_secs(1),
            follow: true,
            // Three publish timeouts.
            lease: Duration::from_secs(30),
            // With the default backoff about 8 minutes of failures: nine waits, the last of 256 s.
            max_attempts: 10,
            ordering: Ordering::Key,
            on_dead: OnDead::Skip,
            backoff: Backoff::default(),
            // Below the 30 s that Kubernetes grants by default.
            shutdown_timeout: Duration::from_secs(25),
            probe_max: Duration::from_secs(5),
            audit_interval: Duration::from_secs(60),
            default_sink: None,
            dead_letter: None,
        }
    }
}

/// Whether records of a key go one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ordering {
    /// They do.
    Key,
    /// They don't.
    None,
}

/// What a dead record does to its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDead {
    /// Its key goes on.
    Skip,
    /// It holds its key until it is requeued or discarded.
    Block,
}

/// Waits after charged failures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backoff {
    /// Course of the waits.
    pub kind: BackoffKind,
    /// The first wait.
    #[serde(with = "duration")]
    pub initial: Duration,
    /// Growth of the exponential course.
    pub factor: f64,
    /// The longest wait, before jitter.
    #[serde(with = "duration")]
    pub max: Duration,
    /// Share by which a wait is shortened or lengthened at random.
    pub jitter: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            kind: BackoffKind::Exponential,
            initial: Duration::from_secs(1),
            factor: 2.0,
            max: Duration::from_secs(300),
            jitter: 0.2,
        }
    }
}

/// Course of the waits after the n-th charged attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackoffKind {
    /// Always `initial`.
    Fixed,
    /// `initial · n`.
    Linear,
    /// `initial · factor^(n-1)`.
    Exponential,
}

/// Where dead records are also sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeadLetter {
    /// The sink.
    pub sink: String,
    /// Template of the exchange or topic.
    pub destination: String,
}

/// Which partitions are this instance's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Partitions {
    /// Interval of heartbeats; one that a majority does not acknowledge stops the taking.
    #[serde(with = "duration")]
    pub heartbeat: Duration,
    /// Age at which a heartbeat is stale: peers take the partitions of its instance.
    #[serde(with = "duration")]
    pub stale_after: Duration,
    /// How often an instance that has more than its share lets go of the rest.
    #[serde(with = "duration")]
    pub rebalance: Duration,
    /// Fixed partitions such as `"0-127"` or `"3,7-9"`; without it they are divided among all instances.
    #[serde(rename = "static")]
    pub fixed: Option<String>,
}

impl Default for Partitions {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_secs(3),
            stale_after: Duration::from_secs(12),
            rebalance: Duration::from_secs(3),
            fixed: None,
        }
    }
}

/// One broker. Which keys apply depends on `kind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sink {
    /// What it is.
    pub kind: SinkKind,
    /// rabbitmq: `amqp://user:password@host:5672/vhost` or `amqps://…`.
    #[serde(default)]
    pub uri: Option<SecretUri>,
    /// rabbitmq: template of the exchange; `""` is the default exchange.
    #[serde(default)]
    pub exchange: Option<String>,
    /// rabbitmq: template of the routing key; `{type}` without it.
    #[serde(default)]
    pub routing_key: Option<String>,
    /// rabbitmq: whether a message that no queue takes is a failure; true without it.
    #[serde(default)]
    pub mandatory: Option<bool>,
    /// What is to be made where it is absent: exchanges, queues and bindings, or topics.
    #[serde(default)]
    pub declare: Option<Declare>,
    /// kafka: where to begin, `host:9092` or several of them.
    #[serde(default)]
    pub brokers: Option<Brokers>,
    /// kafka: template of the topic; `{type}` without it.
    #[serde(default)]
    pub topic: Option<String>,
    /// kafka: what librdkafka is told beside.
    #[serde(default)]
    pub properties: Option<Properties>,
    /// Whether messages are CloudEvents in binary mode.
    #[serde(default)]
    pub cloudevents: bool,
    /// Template of the CloudEvents source; `postrider` without it.
    #[serde(default)]
    pub cloudevents_source: Option<String>,
    /// In front of the names of CloudEvents attributes; without it `cloudEvents_` for RabbitMQ,
    /// `ce_` for Kafka.
    #[serde(default)]
    pub cloudevents_prefix: Option<String>,
    /// How long a publish may take; below `relay.lease`.
    #[serde(with = "duration", default = "Sink::default_timeout")]
    pub timeout: Duration,
    /// Unconfirmed messages per key; above 1 a failure lets those behind it go first.
    #[serde(default = "Sink::default_key_window")]
    pub key_window: usize,
    /// Globs of the destinations that a record may name itself.
    #[serde(default = "Sink::default_allow")]
    pub allow: Vec<String>,
}

impl Sink {
    fn default_timeout() -> Duration {
        Duration::from_secs(10)
    }

    fn default_key_window() -> usize {
        1
    }

    fn default_allow() -> Vec<String> {
        vec!["*".into()]
    }
}

/// Kafka's addresses to begin with, as a text with commas or as a list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Brokers {
    /// `"one:9092,two:9092"`.
    Text(String),
    /// `["one:9092", "two:9092"]`.
    List(Vec<String>),
}

impl Brokers {
    /// All of them, with commas between.
    pub fn joined(&self) -> String {
        match self {
            Self::Text(text) => text.trim().to_owned(),
            Self::List(list) => list.join(","),
        }
    }
}

/// What a sink is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SinkKind {
    /// RabbitMQ, by AMQP 0-9-1.
    Rabbitmq,
    /// Kafka, by `librdkafka`.
    Kafka,
    /// One JSON object per line on standard output.
    Stdout,
}

/// Which record goes where.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Route {
    /// Glob of the types it is for; without it all.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The sink; without it `relay.default_sink`.
    pub sink: Option<String>,
    /// Template of exchange or topic.
    pub destination: Option<String>,
    /// Template of routing key or record key.
    pub key: Option<String>,
    /// Templates of headers to add; a record's own win.
    pub headers: BTreeMap<String, String>,
}

/// Liveness, readiness and metrics.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ops {
    /// Address of `/livez`, `/readyz`, `/metrics`; port 0 takes a free one.
    pub listen: String,
}

impl Default for Ops {
    fn default() -> Self {
        Self { listen: "127.0.0.1:9464".into() }
    }
}

/// Logs on stderr.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// Text, JSON, or text on a terminal and JSON elsewhere.
    pub format: LogFormat,
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `postrider=debug,info`.
    pub level: String,
}

impl Default for Log {
    fn default() -> Self {
        Self { format: LogFormat::Auto, level: "info".into() }
    }
}

/// Form of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, else JSON.
    Auto,
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// The append path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Events {
    /// Whether the API of this process hosts it; no effect without `api.enabled`.
    pub enabled: bool,
    /// The bounded context: one per database.
    pub context: String,
    /// Its database; without it `mongo.database`.
    pub database: Option<String>,
    /// Within what a request id is unique; `"global"` is for collections that are not sharded.
    pub request_id_unique: RequestIds,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            enabled: true,
            context: "default".into(),
            database: None,
            request_id_unique: RequestIds::Aggregate,
        }
    }
}

/// A part with a database of its own.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Database {
    /// The database; without it `mongo.database`.
    pub database: Option<String>,
}

/// The HTTP API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Api {
    /// Whether this process hosts it.
    pub enabled: bool,
    /// Its address.
    pub listen: String,
    /// Who may use it; none: everybody who reaches it.
    pub tokens: Vec<Token>,
    /// The largest request body.
    #[serde(with = "size")]
    pub max_body: u64,
    /// Connections at a time; more wait to be accepted.
    pub max_connections: usize,
    /// Requests at a time; more are answered with 503.
    pub max_concurrent: usize,
    /// What a request may take, until its answer begins.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// Whether it may listen beyond loopback without tokens, and answer any `Host`.
    pub allow_unauthenticated: bool,
    /// TLS; without it plain HTTP.
    pub tls: Tls,
}

impl Default for Api {
    fn default() -> Self {
        Self {
            enabled: false,
            listen: "127.0.0.1:8080".into(),
            tokens: Vec::new(),
            max_body: 1 << 20,
            max_connections: 1024,
            // Of bodies of 1 MiB as many as a small container holds.
            max_concurrent: 256,
            // Longer than an election of MongoDB's takes.
            timeout: Duration::from_secs(30),
            allow_unauthenticated: false,
            tls: Tls::default(),
        }
    }
}

/// A server's certificate; read anew when a file changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The chain in PEM, the server's own first.
    pub cert_file: Option<String>,
    /// The private key in PEM.
    pub key_file: Option<String>,
}
