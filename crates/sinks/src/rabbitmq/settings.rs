//! What an operator decides about a RabbitMQ sink.

use std::time::Duration;

use postrider_outbox::ids::SinkName;
use postrider_settings::secret::SecretUri;

use crate::cloud_events::CloudEvents;
use crate::declare::Declare;

/// What an operator decides about a RabbitMQ sink.
#[derive(Clone, Debug)]
pub struct RabbitMqSettings {
    /// The sink's name; brokers show it among their connections.
    pub name: SinkName,
    /// `amqp://user:password@host:5672/vhost`, or `amqps`, verified against the system's
    /// certificates or those in `SSL_CERT_FILE`.
    pub uri: SecretUri,
    /// Whether a message that no queue takes is a failure.
    pub mandatory: bool,
    /// Limit of one publish, and of one connection attempt.
    pub timeout: Duration,
    /// Exchanges, queues and bindings to make where they are absent.
    pub declare: Declare,
    /// Whether and how messages are CloudEvents.
    pub cloud_events: Option<CloudEvents>,
    /// Whether the sink may open another connection in place of one on which the broker says nothing.
    /// Not where a key has several messages under way: they keep their order on one connection.
    pub replaces: bool,
}

impl RabbitMqSettings {
    /// The defaults of the configuration.
    pub fn new(name: &str, uri: &str) -> Self {
        Self {
            name: name.into(),
            uri: uri.into(),
            mandatory: true,
            timeout: Duration::from_secs(10),
            declare: Declare::default(),
            cloud_events: None,
            replaces: true,
        }
    }
}
