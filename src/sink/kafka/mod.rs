//! Kafka, through librdkafka's idempotent producer.
//!
//! | module | what it does |
//! |---|---|
//! | `properties` | what the client is told: our defaults, the operator's own, and what must not be |
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
mod gathering;
mod link;
mod partitions;
mod properties;
mod remedy;
mod rendering;
mod report;
mod statistics;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

#[cfg(test)]
pub(crate) use properties::{RESERVED, Reserved};
pub use properties::{WrongProperties, WrongProperty, wrong_properties};

use crate::config::properties::Properties;
use crate::config::tree::Topic;
use crate::ids::SinkName;
use crate::sink::cloud_events::CloudEvents;
use crate::sink::kafka::gathering::Gathering;
use crate::sink::kafka::link::Link;
use crate::sink::kafka::partitions::Partitions;
use crate::sink::kafka::statistics::KafkaMetrics;
use crate::sink::slot::Slot;
use crate::sink::{Address, Message, PublishError, PublishFailure, Sink, SinkDown};

/// What an operator decides about a Kafka sink.
#[derive(Clone, Debug)]
pub struct KafkaSettings {
    /// The sink's name.
    pub name: SinkName,
    /// Where to begin: `host:port`, several with commas between.
    pub brokers: String,
    /// For librdkafka, over our own defaults: TLS, SASL, limits, compression.
    pub properties: Properties,
    /// Limit of one publish, and of one connection attempt.
    pub timeout: Duration,
    /// Topics to make where they are absent.
    pub topics: Vec<Topic>,
    /// Whether and how messages are CloudEvents.
    pub cloud_events: Option<CloudEvents>,
    /// Whether records may wait some milliseconds for company while many lanes have some. Not with
    /// `key_window` above 1: the order of two unconfirmed records would be lost. An own `linger.ms`
    /// wins.
    pub gathers: bool,
}

impl KafkaSettings {
    /// The defaults of the configuration.
    pub fn new(name: &str, brokers: &str) -> Self {
        Self {
            name: name.into(),
            brokers: brokers.to_owned(),
            properties: Properties::default(),
            timeout: Duration::from_secs(10),
            topics: Vec::new(),
            cloud_events: None,
            gathers: true,
        }
    }
}

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
        let gathers = settings.gathers && !properties::sets_linger(&settings.properties);
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

impl Sink for Kafka {
    async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let until = Instant::now() + self.settings.timeout;
        let Some(link) = self.link.link() else {
            return Err(PublishError::new(PublishFailure::SinkDown, "not connected"));
        };
        if let Some(down) = link.trouble() {
            return Err(PublishError::new(PublishFailure::SinkDown, down));
        }
        let (cloud_events, is_urgent) = (self.settings.cloud_events.as_ref(), message.is_urgent);
        let rendered = rendering::render(message, cloud_events, self.largest)?;
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
        Self {
            settings: KafkaSettings { topics: Vec::new(), ..self.settings.clone() },
            largest: self.largest,
            partitions: self.partitions.clone(),
            gathering: None,
            link: Slot::default(),
            opening: Mutex::new(()),
            metrics: None,
        }
    }
}
