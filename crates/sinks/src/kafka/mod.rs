//! Kafka, through librdkafka's idempotent producer.
//!
//! | module | contents |
//! |---|---|
//! | [`config`] | the keys of the sink |
//! | `properties` | the properties of librdkafka: defaults, the operator's, and the reserved ones |
//! | `rendering` | a message as a Kafka record; refuses what the protocol cannot carry |
//! | `partitions` | the partition of a record, and its leader |
//! | `link` | the producers in use: opened, watched, retired |
//! | `batching` | when records wait for others |
//! | `client` | one producer with its callbacks |
//! | [`live_clients`] | the count of clients that have not ended, for the end of the process |
//! | `remedy` | remedies by the text of librdkafka's errors |
//! | `renewal` | another link in place of one that does not reach a topic |
//! | `outstanding` | the link of each key with unconfirmed records |
//! | `tokens` | bearer tokens from a file |
//! | `topics` | the look-up of topics before the first record goes to them, and their creation |
//! | `delivery_report` | the meaning of a delivery report for its record |
//! | [`statistics`] | librdkafka's own statistics as metrics |
//!
//! librdkafka reconnects and retries by itself, within the sink's timeout. The relay repeats a record that
//! librdkafka gives up after that; other records are not affected. A producer that lost its brokers or met a
//! fatal error is retired with all its records, and the next probe creates another.

mod batching;
mod client;
pub mod config;
mod delivery_report;
mod link;
pub mod live_clients;
mod outstanding;
mod partitions;
mod properties;
mod remedy;
mod rendering;
mod renewal;
pub mod statistics;
mod tokens;
mod topics;

use std::sync::Arc;

use postrider_relay::routing::SinkRules;
use postrider_relay::sink::{Address, Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_settings::secret::{check_hosts, read_file, read_password};
use postrider_settings::{Glob, Rules, quoted};
use tokio::time::Instant;
use tracing::info;

use crate::active_link::{ActiveLink, Link as _};
use crate::config::{ConnectionHelp, SinkConfig, SinkSettings, require_name};
use crate::kafka::batching::Batching;
use crate::kafka::config::DeclaredTopics;
pub use crate::kafka::config::{KafkaConfig, KafkaSettings};
use crate::kafka::link::Link;
use crate::kafka::outstanding::Outstanding;
use crate::kafka::partitions::Partitions;
pub use crate::kafka::properties::{InvalidProperties, InvalidProperty, RESERVED, Reserved};
use crate::kafka::renewal::Renewals;
use crate::kafka::statistics::KafkaMetrics;

/// A Kafka cluster.
#[derive(Debug)]
pub struct Kafka {
    settings: KafkaSettings,
    max_message_bytes: usize,
    partitions: Arc<Partitions>,
    /// `None` if records are never batched.
    batching: Option<Batching>,
    link: ActiveLink<Link>,
    /// `None` if a key has one unconfirmed record at most.
    outstanding: Option<Outstanding<Link>>,
    renewals: Renewals,
    /// `None` for an isolated sink: the series are those of the first one.
    metrics: Option<Arc<KafkaMetrics>>,
}

impl Kafka {
    /// Creates a sink that connects at its first probe.
    ///
    /// # Errors
    ///
    /// [`InvalidProperties`]: those that librdkafka refuses, or that would break a guarantee of Postrider.
    pub fn new(settings: KafkaSettings) -> Result<Self, InvalidProperties> {
        let refused = properties::refused_properties(&settings);
        if !refused.is_empty() {
            return Err(InvalidProperties(refused));
        }
        let sets_linger = properties::find(&settings.own.properties, "linger.ms").is_some();
        // With several unconfirmed records per key, two producers would not keep their order.
        let batches = settings.delivery.key_window == 1 && !sets_linger;
        Ok(Self {
            max_message_bytes: properties::max_message_bytes(&settings),
            partitions: Arc::new(Partitions::new(&settings)),
            batching: batches.then(Batching::default),
            link: ActiveLink::default(),
            outstanding: (settings.delivery.key_window > 1).then(Outstanding::default),
            renewals: Renewals::default(),
            metrics: Some(Arc::new(KafkaMetrics::new(settings.name.as_str()))),
            settings,
        })
    }
}

impl SinkConfig for KafkaConfig {
    type Sink = Kafka;

    const DESTINATION: Option<&'static str> = Some("topic");

    /// librdkafka has a connection and pipes for each broker, twice after the first load.
    const MAX_DESCRIPTORS: u64 = 64;

    const CONNECTION_HELP: ConnectionHelp = ConnectionHelp {
        keys: "brokers, properties",
        remedy: "start the broker, or change the addresses",
    };

    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules) {
        let own = &settings.own;
        match &own.brokers {
            None => {
                rules.wrong(
                    "brokers",
                    "is not set; set it, for example to host:9092 or a list of addresses",
                );
                return;
            }
            Some(brokers) if brokers.joined().trim_matches([',', ' ']).is_empty() => {
                rules.wrong(
                    "brokers",
                    "is empty; set it, for example to host:9092 or a list of addresses",
                );
                return;
            }
            Some(brokers) => {
                if let Err(detail) = check_hosts(&brokers.joined()) {
                    rules.wrong("brokers", detail);
                    return;
                }
            }
        }
        for topic in &own.declare.topics {
            require_name(&topic.name, "declare.topics", rules);
        }
        if let Some(file) = &own.token_file {
            if let Err(detail) = read_file(file) {
                rules.wrong("token_file", detail);
            }
            let detail = "username is also set; remove one of the two";
            rules.require(own.username.is_none(), "token_file", detail);
            // rdkafka's client for it requests no token.
            let detail = "cannot be created with token_file; create the topics by other means";
            rules.require(own.declare.topics.is_empty(), "declare.topics", detail);
        }
        let password = read_password(own.username.as_deref(), own.password_file.as_deref(), rules);
        let mut readable = settings.clone();
        if password.is_none() && own.password_file.is_some() {
            // librdkafka would report the missing password again.
            (readable.own.username, readable.own.password_file) = (None, None);
        }
        let before = rules.violations().len();
        if let Some(tls) = &own.tls {
            rules.within("tls", |rules| tls.validate(rules));
        }
        for (name, _) in own.connection().iter() {
            let is_set = own.properties.iter().any(|(set, _)| set == name);
            let detail =
                "is also set by username, password_file, token_file or tls; remove one of the two";
            rules.require(!is_set, format!("properties.{}", quoted(name)), detail);
        }
        // librdkafka would refuse the files of `tls` again.
        if rules.violations().len() == before || own.tls.is_none() {
            for property in properties::invalid_properties(&readable) {
                rules.wrong(&property.key, property.detail);
            }
        }
    }

    fn routing_rules(&self, allowed_destinations: Vec<Glob>) -> SinkRules {
        let source = self.cloudevents.then(|| self.cloudevents_source.clone());
        SinkRules { destination: self.topic.clone(), key: None, allowed_destinations, source }
    }

    fn declares(&self, address: &Address) -> bool {
        self.declare.topics.iter().any(|topic| topic.name == address.destination)
    }

    fn without_declarations(self) -> Self {
        Self { declare: DeclaredTopics::default(), ..self }
    }

    fn build(settings: SinkSettings<Self>) -> Result<Kafka, String> {
        Kafka::new(settings).map_err(|error| error.to_string())
    }

    async fn look_up(sink: &Kafka, address: &Address) -> Result<(), PublishError> {
        topics::look_up(&sink.settings, &address.destination).await
    }
}

impl Sink for Kafka {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let until = Instant::now() + self.settings.delivery.timeout;
        let Some(link) = self.link.get() else {
            return Err(PublishError::new(PublishFailure::SinkDown, "not connected"));
        };
        link.check()?;
        let own = &self.settings.own;
        let event_prefix = own.cloudevents.then_some(own.cloudevents_prefix.as_str());
        let batching = self.batching.as_ref().filter(|it| !message.is_urgent && it.is_on());
        let key = message.key.clone().filter(|_| self.outstanding.is_some());
        let rendered = rendering::render(message, event_prefix, self.max_message_bytes)?;
        let of_key = self.outstanding.as_ref().zip(key);
        let of_key = of_key.map(|(outstanding, key)| outstanding.add(key, link.clone()));
        let link = of_key.as_ref().map_or(&link, |record| &record.link);
        let published = link.publish(rendered, batching, until).await;
        published.map_err(|error| match error.failure {
            // It says nothing about the link in use.
            PublishFailure::Unconfirmed
            | PublishFailure::Indeterminate
            | PublishFailure::SinkDown
                if link.is_replaced() =>
            {
                PublishError { failure: PublishFailure::Abandoned, ..error }
            }
            _ => error,
        })
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        let (metrics, partitions) = (self.metrics.clone(), self.partitions.clone());
        let open = Link::open(&self.settings, metrics, partitions);
        self.link.probe(self.settings.delivery.timeout, open).await
    }

    async fn lost(&self) -> SinkDown {
        self.link.lost().await
    }

    async fn close(&self) {
        // In this order: a link that is replaced meanwhile is in one of the two.
        let link = self.link.take();
        for link in self.renewals.replaced().into_iter().chain(link) {
            link.retire(SinkDown::new("closed"));
        }
    }

    fn is_ready(&self, message: &Message) -> bool {
        self.link.get().is_some_and(|link| link.knows(&message.address.destination))
    }

    /// librdkafka may keep the leader of a topic that was deleted and created again, for example.
    async fn renew(&self) {
        let settings = self.settings.without_declarations();
        let open = Link::open(&settings, self.metrics.clone(), self.partitions.clone());
        if self.renewals.renew(&self.link, open).await && self.metrics.is_some() {
            let sink = &self.settings.name;
            info!(%sink, "opened other producers, because those in use did not reach a topic that an isolated one reaches");
        }
    }

    /// Returns the topic and the partition, which has a leader and replicas of its own.
    fn destination(&self, message: &Message) -> Address {
        let topic = &message.address.destination;
        let part = self.partitions.part(topic, rendering::key(message));
        Address { destination: topic.clone(), key: part }
    }

    fn expect(&self, lanes: usize) {
        if let Some(batching) = &self.batching {
            batching.set_lanes(lanes);
        }
    }

    fn isolated(&self) -> Self {
        Self {
            settings: self.settings.without_declarations(),
            max_message_bytes: self.max_message_bytes,
            partitions: self.partitions.clone(),
            batching: None,
            link: ActiveLink::default(),
            outstanding: None,
            renewals: Renewals::default(),
            metrics: None,
        }
    }
}
