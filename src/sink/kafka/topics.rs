//! Which topics there are, and making those that an operator declared.
//!
//! A record for a topic that is missing would stay in the producer's queue until its time is
//! up, and pass for a broker that does not answer. So each topic is looked up first.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::Metadata;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use tracing::info;

use crate::config::tree::Topic;
use crate::sink::kafka::KafkaSettings;
use crate::sink::kafka::alive::Alive;
use crate::sink::kafka::client::Client;
use crate::sink::kafka::properties;
use crate::sink::{PublishError, SinkDown, Verdict};

/// How long a topic that was refused is not asked for again: short beside the first backoff,
/// long enough that a thousand records for it cost one question.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// The broker's own default, for partitions and replicas.
const BROKERS_DEFAULT: i32 = -1;

/// The topics of one link.
#[derive(Debug)]
pub(super) struct Topics {
    client: Arc<Client>,
    known: Mutex<HashMap<String, Known>>,
    /// One question at a time: those who wait for it may have asked the same.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
enum Known {
    There,
    Refused { until: Instant, error: PublishError },
}

impl Topics {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self { client, known: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// Makes sure that there is a topic of this name.
    ///
    /// # Errors
    ///
    /// [`Verdict::Charge`] where there is none, or it may not be seen; [`Verdict::Down`] where no
    /// broker could be asked.
    pub(super) async fn look_up(
        &self,
        name: &str,
        until: tokio::time::Instant,
    ) -> Result<(), PublishError> {
        if let Some(known) = self.recall(name) {
            return known;
        }
        let Ok(_asking) = tokio::time::timeout_at(until, self.asking.lock()).await else {
            return Err(not_asked(name, "no broker answers"));
        };
        if let Some(known) = self.recall(name) {
            return known;
        }
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        match asked(&self.client, name, left).await {
            Ok(()) => {
                self.known().insert(name.to_owned(), Known::There);
                Ok(())
            }
            Err(error) if error.verdict == Verdict::Down => Err(error),
            Err(error) => {
                let until = Instant::now() + REFUSED_FOR;
                let refused = Known::Refused { until, error: error.clone() };
                self.known().insert(name.to_owned(), refused);
                Err(error)
            }
        }
    }

    /// It is to be looked up again.
    pub(super) fn forget(&self, name: &str) {
        self.known().remove(name);
    }

    /// Makes the declared topics that are absent.
    ///
    /// # Errors
    ///
    /// The first that could not be made, and why.
    pub(super) async fn declare(
        settings: &KafkaSettings,
        config: &ClientConfig,
        client: &Arc<Client>,
    ) -> Result<(), SinkDown> {
        if settings.topics.is_empty() {
            return Ok(());
        }
        let config = admins(config);
        let _alive = Alive::new();
        let admin: AdminClient<DefaultClientContext> = config.create().map_err(SinkDown::new)?;
        let new: Vec<NewTopic<'_>> = settings.topics.iter().map(new_topic).collect();
        let options = AdminOptions::new()
            .request_timeout(Some(settings.timeout))
            .operation_timeout(Some(settings.timeout));
        let made = admin.create_topics(&new, &options).await.map_err(|error| {
            SinkDown::new(format!("the declared topics could not be made: {error}"))
        })?;
        for made in made {
            match made {
                Ok(name) => info!(sink = %settings.name, topic = name, "topic made"),
                Err((_, Code::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    // Who may make none is told so of one that is there, too.
                    if asked(client, &name, settings.timeout).await.is_err() {
                        let detail = format!("declared topic {name:?} could not be made: {code}");
                        return Err(SinkDown::new(detail));
                    }
                }
            }
        }
        Ok(())
    }

    fn recall(&self, name: &str) -> Option<Result<(), PublishError>> {
        let mut known = self.known();
        match known.get(name)? {
            Known::There => Some(Ok(())),
            Known::Refused { until, error } if Instant::now() < *until => Some(Err(error.clone())),
            Known::Refused { .. } => {
                known.remove(name);
                None
            }
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Asks a broker whether there is such a topic.
async fn asked(client: &Arc<Client>, name: &str, limit: Duration) -> Result<(), PublishError> {
    let (client, topic) = (client.clone(), name.to_owned());
    let asking = tokio::task::spawn_blocking(move || ask(&client, &topic, limit));
    asking.await.unwrap_or_else(|panic| Err(not_asked(name, panic)))
}

fn not_asked(topic: &str, why: impl fmt::Display) -> PublishError {
    let detail = format!("topic {topic:?} could not be looked up: {why}");
    PublishError::new(Verdict::Down, detail)
}

/// Asks, as a consumer would, whether there is such a topic: for a producer the broker may make it.
pub(super) async fn exists(settings: &KafkaSettings, topic: &str) -> Result<(), PublishError> {
    let config = admins(&properties::client_config(settings));
    let (name, limit) = (topic.to_owned(), settings.timeout);
    let asking = tokio::task::spawn_blocking(move || {
        let _alive = Alive::new();
        let consumer: BaseConsumer = config.create().map_err(|error| not_asked(&name, error))?;
        judge(&name, consumer.fetch_metadata(Some(&name), limit))
    });
    asking.await.unwrap_or_else(|panic| Err(not_asked(topic, panic)))
}

/// The same as [`asked`], blocking.
fn ask(client: &Client, topic: &str, limit: Duration) -> Result<(), PublishError> {
    judge(topic, client.producer().client().fetch_metadata(Some(topic), limit))
}

fn judge(topic: &str, metadata: KafkaResult<Metadata>) -> Result<(), PublishError> {
    let metadata = metadata.map_err(|error| not_asked(topic, error))?;
    let answer = metadata.topics().iter().find(|found| found.name() == topic);
    match answer.and_then(|found| found.error()) {
        None => Ok(()),
        Some(error) => {
            let code = Code::from(error);
            let detail = format!("topic {topic:?}: {code}");
            Err(PublishError::new(Verdict::Charge, detail))
        }
    }
}

fn new_topic(topic: &Topic) -> NewTopic<'_> {
    let replication = TopicReplication::Fixed(topic.replication.unwrap_or(BROKERS_DEFAULT));
    let partitions = topic.partitions.unwrap_or(BROKERS_DEFAULT);
    let new = NewTopic::new(&topic.name, partitions, replication);
    topic.properties.iter().fold(new, |new, (name, value)| new.set(name, value))
}

/// The connection's settings without those of a producer, which other clients complain of.
fn admins(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    for name in
        ["enable.idempotence", "acks", "message.timeout.ms", "linger.ms", "compression.type"]
    {
        config.remove(name);
    }
    config.remove("partitioner").remove("statistics.interval.ms");
    config
}
