//! The configuration of a RabbitMQ sink.

use std::path::PathBuf;

use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use lapin::uri::AMQPUri;
use postrider_relay::routing::Template;
use postrider_settings::secret::{SecretUri, read_file};
use postrider_settings::{Rules, TlsConfig};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::config::{MAX_NAME_BYTES, SinkSettings, require_name};
use crate::rabbitmq::uri;

/// One sink of kind `rabbitmq`, as it is configured.
pub type RabbitMqSettings = SinkSettings<RabbitMqConfig>;

/// The keys of a `rabbitmq` sink. It publishes by AMQP 0-9-1 and waits for the broker's confirms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RabbitMqConfig {
    /// The URI of the broker; `amqps` is TLS. Required.
    #[schemars(required, example = &"amqps://user:password@host:5671/vhost")]
    pub uri: Option<SecretUri>,
    /// Template of the exchange; `""` is the default exchange. The destination of the record takes precedence, then that of the route.
    pub exchange: Template,
    /// Template of the routing key. The `key` of the route takes precedence.
    pub routing_key: Template,
    /// Whether a message that reaches no queue is a failure.
    pub mandatory: bool,
    /// The user, if the URI names none.
    #[schemars(example = &"postrider")]
    pub username: Option<String>,
    /// The file with the user's password, read each time that the sink connects.
    #[schemars(example = &"/run/secrets/rabbitmq-password")]
    pub password_file: Option<PathBuf>,
    /// The files of an `amqps` connection. The authorities of `ca_file` are trusted in addition to the system's.
    pub tls: Option<TlsConfig>,
    /// What the sink creates if it is missing.
    pub declare: DeclaredTopology,
    /// Whether messages are CloudEvents in binary mode.
    pub cloudevents: bool,
    /// Template of the CloudEvents source.
    #[schemars(length(min = 1))]
    pub cloudevents_source: Template,
    /// The prefix of the names of CloudEvents attributes.
    #[schemars(length(min = 1))]
    pub cloudevents_prefix: String,
}

impl Default for RabbitMqConfig {
    fn default() -> Self {
        Self {
            uri: None,
            exchange: Template::fixed(""),
            routing_key: Template::message_type(),
            mandatory: true,
            username: None,
            password_file: None,
            tls: None,
            declare: DeclaredTopology::default(),
            cloudevents: false,
            cloudevents_source: Template::fixed("postrider"),
            cloudevents_prefix: "cloudEvents_".into(),
        }
    }
}

/// What a `rabbitmq` sink creates if it is missing. It changes nothing that exists.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct DeclaredTopology {
    /// Durable exchanges, of type `topic` by default.
    #[schemars(example = [example_exchange()])]
    pub exchanges: Vec<Exchange>,
    /// Durable queues: `quorum` by default, `classic` or `stream`.
    #[schemars(example = [example_queue()])]
    pub queues: Vec<Queue>,
    /// Bindings. Their `routing_key` has RabbitMQ's own form: at a topic exchange `*` is one word between dots, `#` any number of words.
    #[schemars(example = [example_binding()])]
    pub bindings: Vec<Binding>,
}

/// A durable exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Exchange {
    /// The name.
    pub name: String,
    /// `direct`, `fanout`, `topic`, `headers`, or the type of a broker's plugin.
    #[serde(rename = "type", default = "Exchange::default_kind")]
    pub kind: String,
    /// The broker's own arguments, such as `alternate-exchange`.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>", extend("x-multiline" = true))]
    pub arguments: toml::Table,
}

impl Exchange {
    fn default_kind() -> String {
        "topic".into()
    }
}

/// A durable queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Queue {
    /// The name.
    pub name: String,
    /// The type.
    #[serde(rename = "type", default)]
    pub kind: QueueKind,
    /// The broker's own arguments, such as `x-delivery-limit`.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>", extend("x-multiline" = true))]
    pub arguments: toml::Table,
}

/// The type of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QueueKind {
    /// Replicated: a confirmed message survives the loss of a node.
    #[default]
    Quorum,
    /// On one node.
    Classic,
    /// An append-only log.
    Stream,
}

/// A binding of a queue to an exchange.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Binding {
    /// The name of the exchange.
    pub exchange: String,
    /// The name of the queue.
    pub queue: String,
    /// The pattern of routing keys.
    #[serde(default)]
    pub routing_key: String,
    /// The arguments of a binding to a `headers` exchange.
    #[serde(default, skip_serializing_if = "toml::Table::is_empty")]
    #[schemars(with = "serde_json::Map<String, serde_json::Value>", extend("x-multiline" = true))]
    pub arguments: toml::Table,
}

fn example_exchange() -> Exchange {
    let arguments = toml::Table::new();
    Exchange { name: "orders".to_owned(), kind: "topic".to_owned(), arguments }
}

fn example_queue() -> Queue {
    let arguments = [("x-delivery-limit".to_owned(), toml::Value::Integer(10))];
    let arguments = toml::Table::from_iter(arguments);
    Queue { name: "billing".to_owned(), kind: QueueKind::Quorum, arguments }
}

fn example_binding() -> Binding {
    Binding {
        exchange: "orders".to_owned(),
        queue: "billing".to_owned(),
        routing_key: "#".to_owned(),
        arguments: toml::Table::new(),
    }
}

impl RabbitMqConfig {
    /// Creates a configuration with this URI and defaults otherwise.
    pub fn at(uri: &str) -> Self {
        Self { uri: Some(uri.into()), ..Self::default() }
    }

    /// Returns the URI without secrets, for error texts.
    pub(super) fn redacted_uri(&self) -> String {
        self.uri.as_ref().map(SecretUri::redacted).unwrap_or_default()
    }

    /// Returns whether the URI names the vhost with the empty name, by a path of nothing but its slash.
    pub(super) fn names_empty_vhost(&self) -> bool {
        self.uri
            .as_ref()
            .is_some_and(|uri| uri::parse(uri.expose()).is_ok_and(|uri| uri.vhost.is_empty()))
    }

    /// Returns the address, vhost and login.
    ///
    /// # Errors
    ///
    /// The URI is invalid, or the password file cannot be read; without any secret.
    pub(super) fn parsed_uri(&self) -> Result<AMQPUri, String> {
        let uri = self
            .uri
            .as_ref()
            .ok_or("is not set; set it, for example to amqp://user:password@host:5672/vhost")?;
        uri.check(uri::parse)?;
        let mut uri = uri::parse(uri.expose()).map_err(|_| "invalid AMQP URI")?;
        if let Some(username) = &self.username {
            uri.authority.userinfo.username.clone_from(username);
        }
        if let Some(file) = &self.password_file {
            uri.authority.userinfo.password = read_file(file)?.expose().to_owned();
        }
        Ok(uri)
    }

    /// Reads the authorities and the client's certificate for TLS.
    pub(super) fn tls(&self) -> std::io::Result<OwnedTLSConfig> {
        let Some(tls) = &self.tls else { return Ok(OwnedTLSConfig::default()) };
        let identity = match (&tls.cert_file, &tls.key_file) {
            (Some(pem), Some(key)) => {
                Some(OwnedIdentity::PKCS8 { pem: std::fs::read(pem)?, key: std::fs::read(key)? })
            }
            _ => None,
        };
        let cert_chain = tls.ca_file.as_ref().map(std::fs::read_to_string).transpose()?;
        Ok(OwnedTLSConfig { identity, cert_chain })
    }

    /// Checks the declared names, so that invalid ones are reported before the first connection.
    pub(super) fn validate_declarations(&self, rules: &mut Rules) {
        let declare = &self.declare;
        let exchanges = declare.exchanges.iter().map(|exchange| ("exchanges", &exchange.name));
        let queues = declare.queues.iter().map(|queue| ("queues", &queue.name));
        let bound = declare.bindings.iter().flat_map(|it| [&it.queue, &it.exchange]);
        let bindings = bound.map(|name| ("bindings", name));
        for (list, name) in exchanges.chain(queues).chain(bindings) {
            require_name(name, list, rules);
        }
        let is_long = |binding: &Binding| binding.routing_key.len() > MAX_NAME_BYTES;
        let detail = format!("routing_key must have at most {MAX_NAME_BYTES} bytes; shorten it");
        rules.require(!declare.bindings.iter().any(is_long), "bindings", detail);
    }
}
