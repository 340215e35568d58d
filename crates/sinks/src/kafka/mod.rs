//! Kafka, through librdkafka's idempotent producer.
//!
//! | module | what it does |
//! |---|---|
//! | `properties` | the client's settings: our defaults, the operator's, and the forbidden ones |
//! | `rendering` | a message as a Kafka record; refuses what the protocol can't carry |
//! | `partitions` | which partition a record goes to, so that each fails by itself |
//! | `link` | the producers in use: opened, watched, given up |
//! | `gathering` | when records wait for company |
//! | `client` | the producer itself, with its callbacks |
//! | [`alive`] | clients that have not ended yet, for the end of the process |
//! | `remedy` | what an operator can do about librdkafka's words |
//! | `topics` | look-up of topics before the first record goes to them, and their creation |
//! | `report` | what a delivery report means for its record |
//! | `statistics` | librdkafka's own figures as metrics |
//!
//! librdkafka reconnects and retries by itself, within the sink's timeout. A record that it gives
//! up after that is the relay's to repeat; its neighbours are not disturbed. A producer that lost
//! its brokers or met a fatal error is given up with all that is in it, and the next probe makes
//! another.

pub mod alive;
mod client;
pub mod config;
mod gathering;
mod link;
mod partitions;
mod properties;
mod remedy;
mod rendering;
mod report;
pub mod statistics;
mod topics;

use std::sync::Arc;

use postrider_relay::sink::{Address, Message, PublishError, PublishFailure, Sink, SinkDown};
use postrider_settings::Rules;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::config::{ConnectionHelp, DefaultAddress, SinkConfig, SinkSettings, require_name};
use crate::kafka::config::DeclaredTopics;
pub use crate::kafka::config::{KafkaConfig, KafkaSettings};
use crate::kafka::gathering::Gathering;
use crate::kafka::link::Link;
use crate::kafka::partitions::Partitions;
pub use crate::kafka::properties::{RESERVED, Reserved, WrongProperties, WrongProperty};
use crate::kafka::statistics::KafkaMetrics;
use crate::slot::Slot;

/// A Kafka cluster.
#[derive(Debug)]
pub struct Kafka {
    settings: KafkaSettings,
    /// In bytes.
    largest: usize,
    partitions: Arc<Partitions>,
    /// `None` where records never wait for company.
    gathering: Option<Gathering>,
    /// The link in use; `None` before the first probe and after [`close`](Sink::close).
    link: Slot<Link>,
    /// Held while a link is being opened.
    opening: Mutex<()>,
    /// `None` for an isolated sink: the series are those of the sink's first producer.
    metrics: Option<Arc<KafkaMetrics>>,
}

impl Kafka {
    /// A sink that connects at its first probe.
    ///
    /// # Errors
    ///
    /// [`WrongProperties`]: those that librdkafka does not know or accept, or that would break what
    /// Postrider promises. Nothing is connected to.
    pub fn new(settings: KafkaSettings) -> Result<Self, WrongProperties> {
        let wrong = properties::refused(&settings);
        if !wrong.is_empty() {
            return Err(WrongProperties(wrong));
        }
        let metrics = Some(Arc::new(KafkaMetrics::new(settings.name.as_str())));
        let largest = properties::largest(&settings);
        let partitions = Arc::new(Partitions::new(&settings));
        // With several unconfirmed records of a key, two producers would lose their order.
        let gathers =
            settings.delivery.key_window == 1 && !properties::sets_linger(&settings.own.properties);
        let gathering = gathers.then(Gathering::default);
        let (link, opening) = (Slot::default(), Mutex::new(()));
        Ok(Self { settings, largest, partitions, gathering, link, opening, metrics })
    }

    /// Whether there is such a topic. A producer's look-up makes it where the broker makes topics
    /// by itself; this one never does.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`] where it is missing or may not be seen, else it could not be asked for.
    pub async fn look_up(&self, topic: &str) -> Result<(), PublishError> {
        topics::exists(&self.settings, topic).await
    }
}

impl SinkConfig for KafkaConfig {
    type Sink = Kafka;

    const DESTINATION: Option<&'static str> = Some("topic");

    const CONNECTION_HELP: ConnectionHelp = ConnectionHelp {
        keys: "brokers, properties",
        remedy: "start the broker, or change the addresses",
    };

    fn validate(settings: &SinkSettings<Self>, rules: &mut Rules) {
        let own = &settings.own;
        match &own.brokers {
            None => {
                rules.wrong("brokers", "is not set; write it as host:9092, or a list of such");
                return;
            }
            Some(brokers) if brokers.joined().trim_matches([',', ' ']).is_empty() => {
                rules.wrong("brokers", "is empty; write it as host:9092, or a list of such");
                return;
            }
            Some(_) => {}
        }
        for topic in &own.declare.topics {
            require_name(&topic.name, "declare.topics", rules);
        }
        if own.password_file.is_some() {
            rules.require(own.username.is_some(), "username", "is not set, and password_file is");
        }
        let before = rules.violations().len();
        if let Some(tls) = &own.tls {
            rules.within("tls", |rules| tls.validate(rules));
        }
        match own.connection() {
            Ok(connection) => {
                for (name, _) in connection.iter() {
                    let is_set = own.properties.iter().any(|(set, _)| set == name);
                    let detail =
                        "is set by username, password_file or tls too; keep one of the two";
                    rules.require(
                        !is_set,
                        format!("properties.{}", postrider_settings::quoted(name)),
                        detail,
                    );
                }
            }
            Err(detail) => rules.wrong("password_file", detail),
        }
        // librdkafka would refuse the files of `tls` once more.
        if rules.violations().len() == before || own.tls.is_none() {
            for property in properties::wrong_properties(settings) {
                rules.wrong(&property.key, property.detail);
            }
        }
    }

    fn address(&self) -> DefaultAddress {
        // Without a key of the route, the record's own key is Kafka's.
        let source = self.cloudevents.then(|| self.cloudevents_source.clone());
        DefaultAddress { destination: self.topic.clone(), key: None, source }
    }

    fn declared(&self) -> Vec<&str> {
        self.declare.topics.iter().map(|topic| topic.name.as_str()).collect()
    }

    fn without_declarations(self) -> Self {
        Self { declare: DeclaredTopics::default(), ..self }
    }

    fn build(settings: SinkSettings<Self>) -> Result<Kafka, String> {
        Kafka::new(settings).map_err(|error| error.to_string())
    }

    async fn look_up(sink: &Kafka, topic: &str) -> Result<(), PublishError> {
        sink.look_up(topic).await
    }
}

impl Sink for Kafka {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let until = Instant::now() + self.settings.delivery.timeout;
        let Some(link) = self.link.link() else {
            return Err(PublishError::new(PublishFailure::SinkDown, "not connected"));
        };
        if let Some(down) = link.trouble() {
            return Err(PublishError::new(PublishFailure::SinkDown, down));
        }
        let own = &self.settings.own;
        let prefix = own.cloudevents.then_some(own.cloudevents_prefix.as_str());
        let is_urgent = message.is_urgent;
        let rendered = rendering::render(message, prefix, self.largest)?;
        let gathering = self.gathering.as_ref().filter(|one| !is_urgent && one.is_on());
        link.publish(&rendered, gathering, until).await
    }

    async fn probe(&self) -> Result<(), SinkDown> {
        let _opening = self.opening.lock().await;
        if let Some(link) = self.link.link() {
            if link.trouble().is_none() && link.answers().await.is_ok() {
                return Ok(());
            }
            self.link.take();
            link.retire(SinkDown::new("it did not answer a probe"));
            self.link.emptied(link).await;
        }
        let link =
            Link::open(&self.settings, self.metrics.clone(), self.partitions.clone()).await?;
        self.link.put(link);
        Ok(())
    }

    async fn lost(&self) -> SinkDown {
        self.link.lost().await
    }

    async fn close(&self) {
        if let Some(link) = self.link.take() {
            link.retire(SinkDown::new("closed"));
        }
    }

    /// The topic and the partition, which has a leader and replicas of its own.
    fn destination(&self, message: &Message) -> Address {
        let topic = &message.address.destination;
        let part = self.partitions.part(topic, rendering::key(message));
        Address { destination: topic.clone(), key: part }
    }

    fn expect(&self, lanes: usize) {
        if let Some(gathering) = &self.gathering {
            gathering.expect(lanes);
        }
    }

    fn isolated(&self) -> Self {
        let own = self.settings.own.clone().without_declarations();
        Self {
            settings: KafkaSettings { own, ..self.settings.clone() },
            largest: self.largest,
            partitions: self.partitions.clone(),
            gathering: None,
            link: Slot::default(),
            opening: Mutex::new(()),
            metrics: None,
        }
    }
}
