//! RabbitMQ, by AMQP 0-9-1 through `lapin`.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the keys of the sink |
//! | `uri` | the URI of a broker |
//! | `rendering` | a message as AMQP properties; refuses what the protocol cannot carry |
//! | `delivery` | the way of a message: look-up, publish, confirm |
//! | `connection` | a connection of `lapin`, and the end of an attempt to open one |
//! | `link`, `link_state` | a connection that publishes: opened, watched, retired |
//! | `control_connection` | the connection for what may close a channel |
//! | [`metrics`] | the metrics of a sink |
//! | `exchanges` | the passive look-up of exchanges |
//! | `topology` | the creation of the declared exchanges, queues and bindings |
//! | `publisher` | the task that publishes on a channel and collects its confirms |
//! | `return_matcher` | the messages that came back: `lapin` may assign a return to another message |
//! | `broker_error` | the meaning of an error with which the broker closed a channel or connection |
//! | `refused_targets` | the targets that the broker has refused: nothing is sent to them for a while |
//! | `trial_channel` | a channel, on the control connection, for one message with a routing key that was forbidden |
//! | `replacement`, `replaced_links` | another link in place of one on which the broker does not answer |
//!
//! `lapin` can recover connections by itself. That is off: it would publish on a channel
//! whose confirms restart at 1, and the relay must know that the old ones are lost.

mod broker_error;
pub mod config;
mod connection;
mod control_connection;
mod delivery;
mod exchanges;
mod link;
mod link_state;
pub mod metrics;
mod publisher;
mod refused_targets;
mod rendering;
mod replaced_links;
mod replacement;
mod return_matcher;
mod topology;
mod trial_channel;
mod uri;

use std::sync::Arc;

use lapin::uri::AMQPScheme;
use parking_lot::Mutex;
use postrider_relay::routing::SinkRules;
use postrider_relay::sink::{Address, Message, PublishError, Sink, SinkDown};
use postrider_settings::secret::read_password;
use postrider_settings::{Glob, Rules};
use tokio::time::Instant;

use crate::active_link::{ActiveLink, Link as _};
use crate::config::{ConnectionHelp, SinkConfig, SinkSettings};
use crate::rabbitmq::config::DeclaredTopology;
pub use crate::rabbitmq::config::{RabbitMqConfig, RabbitMqSettings};
use crate::rabbitmq::control_connection::ControlConnection;
use crate::rabbitmq::link::Link;
use crate::rabbitmq::metrics::RabbitMqMetrics;
use crate::rabbitmq::refused_targets::RefusedTargets;
use crate::rabbitmq::replaced_links::ReplacedLinks;

/// A RabbitMQ broker, or cluster, behind one URI.
#[derive(Debug)]
pub struct RabbitMq {
    settings: RabbitMqSettings,
    /// Whether it publishes messages that may close a connection, for another sink with the same control
    /// connection.
    is_isolated: bool,
    link: ActiveLink<Link>,
    control: Arc<ControlConnection>,
    replaced_links: Mutex<ReplacedLinks>,
    refused: Arc<RefusedTargets>,
    metrics: Arc<RabbitMqMetrics>,
}

impl RabbitMq {
    /// Creates a sink that connects at its first probe.
    ///
    /// # Errors
    ///
    /// The URI is invalid, or the password file cannot be read, without any secret; or the process has too few
    /// file descriptors.
    pub fn new(settings: RabbitMqSettings) -> Result<Self, String> {
        settings.own.parsed_uri()?;
        connection::start_runtime_of_streams()?;
        let metrics = RabbitMqMetrics::new(settings.name.as_str());
        let control = ControlConnection::new(settings.clone());
        Ok(Self::with(settings, false, control, Arc::default(), metrics))
    }

    fn with(
        settings: RabbitMqSettings,
        is_isolated: bool,
        control: Arc<ControlConnection>,
        refused: Arc<RefusedTargets>,
        metrics: Arc<RabbitMqMetrics>,
    ) -> Self {
        Self {
            settings,
            is_isolated,
            link: ActiveLink::default(),
            control,
            replaced_links: Mutex::default(),
            refused,
            metrics,
        }
    }
}

impl SinkConfig for RabbitMqConfig {
    type Sink = RabbitMq;

    const DESTINATION: Option<&'static str> = Some("exchange");

    /// Seven connections, and three attempts at two of them, each with two descriptors.
    const MAX_DESCRIPTORS: u64 = 20;

    const CONNECTION_HELP: ConnectionHelp = ConnectionHelp {
        keys: "uri",
        remedy: "start the broker, or change host, port or scheme (amqp, amqps for TLS) of the URI",
    };

    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules) {
        let own = &settings.own;
        rules.within("declare", |rules| own.validate_declarations(rules));
        let Some(uri) = &own.uri else {
            rules.wrong(
                "uri",
                "is not set; set it, for example to amqp://user:password@host:5672/vhost",
            );
            return;
        };
        if let Err(error) = uri.check(uri::parse) {
            rules.wrong(
                "uri",
                format!(
                    "invalid AMQP URI: {error}; write it as \
                     amqp://user:password@host:5672/vhost"
                ),
            );
            return;
        }
        if own.username.is_some() {
            let detail = "the URI also sets a user; remove one of the two";
            rules.require(!uri.expose().contains('@'), "username", detail);
        }
        read_password(own.username.as_deref(), own.password_file.as_deref(), rules);
        if let Some(tls) = &own.tls {
            rules.within("tls", |rules| tls.validate(rules));
            let scheme = uri::parse(uri.expose()).map(|uri| uri.scheme);
            let detail = "requires a URI with TLS; start it with amqps://";
            rules.require(scheme == Ok(AMQPScheme::AMQPS), "tls", detail);
        }
    }

    /// Warns about each routing key that matches only itself at a topic exchange: `*` is a word in AMQP,
    /// not a glob.
    fn warnings(&self) -> Vec<String> {
        let is_topic = |name: &str| {
            self.declare.exchanges.iter().any(|it| it.name == name && it.kind == "topic")
        };
        let at_topics = self.declare.bindings.iter().filter(|it| is_topic(&it.exchange));
        let literal = at_topics.map(|it| &it.routing_key).filter(|key| resembles_glob(key));
        let warnings = literal.map(|key| {
            format!(
                "declare.bindings: routing_key = {key:?}: matches only itself: at a topic \
                 exchange * stands for one whole word between dots, and # for any number of \
                 words"
            )
        });
        warnings.collect()
    }

    fn routing_rules(&self, allowed_destinations: Vec<Glob>) -> SinkRules {
        let source = self.cloudevents.then(|| self.cloudevents_source.clone());
        let (destination, key) = (self.exchange.clone(), Some(self.routing_key.clone()));
        SinkRules { destination, key, allowed_destinations, source }
    }

    fn declares(&self, address: &Address) -> bool {
        match (address.destination.as_str(), &address.key) {
            ("", Some(queue)) => self.declare.queues.iter().any(|it| it.name == *queue),
            (exchange, _) => self.declare.exchanges.iter().any(|it| it.name == exchange),
        }
    }

    fn without_declarations(self) -> Self {
        Self { declare: DeclaredTopology::default(), ..self }
    }

    fn build(settings: SinkSettings<Self>) -> Result<RabbitMq, String> {
        RabbitMq::new(settings)
    }

    async fn look_up(sink: &RabbitMq, address: &Address) -> Result<(), PublishError> {
        let link = sink.usable_link()?;
        let limit = sink.settings.delivery.timeout;
        let target = rendering::target(address.clone())?;
        let looking_up = async {
            match (target.exchange.as_str(), &address.key) {
                ("", Some(_)) => sink.control.look_up_queue(target.routing_key).await,
                _ => link.look_up(&target.exchange).await,
            }
        };
        let looked_up = tokio::time::timeout(limit, looking_up).await;
        looked_up.map_err(|_| SinkDown::new(format!("no response within {limit:?}")))?
    }
}

/// Returns whether `*` or `#` is part of a longer word.
fn resembles_glob(routing_key: &str) -> bool {
    routing_key.split('.').any(|word| word.len() > 1 && word.contains(['*', '#']))
}

impl Sink for RabbitMq {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let until = Instant::now() + self.settings.delivery.timeout;
        let frame_max = self.usable_link()?.frame_max();
        let own = &self.settings.own;
        let event_prefix = own.cloudevents.then_some(own.cloudevents_prefix.as_str());
        let rendered = rendering::render(message, event_prefix, frame_max)?;
        self.deliver(rendered, until).await
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        let open = Link::open(&self.settings, &self.control, &self.refused, &self.metrics);
        self.link.probe(self.settings.delivery.timeout, open).await
    }

    async fn lost(&self) -> SinkDown {
        self.link.lost().await
    }

    async fn close(&self) {
        let (replaced, link) = {
            let replaced_links = self.replaced_links.lock();
            (replaced_links.links(), self.link.take())
        };
        replaced.iter().for_each(|link| link.retire(SinkDown::new("closed")));
        let limit = self.settings.delivery.timeout;
        let closing = async {
            if let Some(link) = link {
                link.close(limit).await;
            }
        };
        let closing_control = async {
            if !self.is_isolated {
                self.control.close(limit).await;
            }
        };
        tokio::join!(closing, closing_control);
    }

    fn is_ready(&self, message: &Message) -> bool {
        let Ok(target) = rendering::target(message.address.clone()) else { return false };
        let is_known = |link: Arc<Link>| link.knows(&target.exchange);
        self.link.get().is_some_and(is_known) && self.refused.is_allowed(&target)
    }

    fn replaced_at(&self) -> Option<std::time::Instant> {
        self.replaced_links.lock().unresponsive_replaced_at
    }

    fn isolated(&self) -> Self {
        let settings = self.settings.without_declarations();
        let (control, refused) = (self.control.clone(), self.refused.clone());
        Self::with(settings, true, control, refused, self.metrics.clone())
    }
}
