//! Which topics there are, and making those that an operator declared.
//!
//! A record for a topic that is missing would stay in the producer's queue until its time is
//! up, and pass for a broker that does not answer. So each topic is looked up first.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::Metadata;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use tracing::info;

use crate::kafka::alive::Alive;
use crate::kafka::client::{Client, blocking};
use crate::kafka::config::KafkaSettings;
use crate::kafka::config::Topic;
use crate::kafka::partitions::Partitions;
use crate::kafka::properties;

/// How long a topic that was refused is not asked for again: short beside the first backoff,
/// long enough that a thousand records for it cost one question.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// How long the lookup of a topic without a leader, or of a missing one, is repeated before an attempt is
/// counted. A new topic is known to each broker and has a leader within two seconds at most. Only the
/// records of this topic wait.
const GRACE: Duration = Duration::from_secs(2);

/// The first pause before it is asked for again; each one is twice as long as the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The broker's own default, for partitions and replicas.
const BROKERS_DEFAULT: i32 = -1;

/// The topics of one link.
#[derive(Debug)]
pub(super) struct Topics {
    client: Arc<Client>,
    partitions: Arc<Partitions>,
    known: Mutex<HashMap<String, Known>>,
    /// One question at a time: each takes a thread while it lasts.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Clone, Debug)]
enum Known {
    /// The holder of the lock asks the broker.
    Asked(Arc<tokio::sync::Mutex<()>>),
    There,
    Refused {
        until: Instant,
        error: PublishError,
    },
}

impl Topics {
    pub(super) fn new(client: Arc<Client>, partitions: Arc<Partitions>) -> Self {
        Self { client, partitions, known: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// Makes sure that there is a topic of this name.
    ///
    /// # Errors
    ///
    /// [`PublishFailure::Retryable`] where there is none, or it may not be seen; [`PublishFailure::Unconfirmed`] where
    /// it has no leader; [`PublishFailure::SinkDown`] where no broker could be asked.
    pub(super) async fn look_up(
        &self,
        name: &str,
        until: tokio::time::Instant,
    ) -> Result<(), PublishError> {
        let lock = match self.recall_or_ask(name) {
            Ok(known) => return known,
            Err(lock) => lock,
        };
        let Ok(_lock) = tokio::time::timeout_at(until, lock.lock()).await else {
            return Err(not_asked(name, "no broker answers"));
        };
        if let Some(known) = self.recall(name) {
            return known;
        }
        let answer = self.ask(name, until).await;
        let known = match &answer {
            Ok(()) => Known::There,
            Err(error) if error.failure == PublishFailure::SinkDown => return answer,
            Err(error) => {
                Known::Refused { until: Instant::now() + REFUSED_FOR, error: error.clone() }
            }
        };
        self.known().insert(name.to_owned(), known);
        answer
    }

    /// Asks until the topic is there or refused for good, for [`GRACE`] at most.
    async fn ask(&self, name: &str, until: tokio::time::Instant) -> Result<(), PublishError> {
        let begin = tokio::time::Instant::now();
        let grace = GRACE.min(until.saturating_duration_since(begin) / 2);
        let mut pause = FIRST_PAUSE;
        loop {
            let Ok(asking) = tokio::time::timeout_at(until, self.asking.lock()).await else {
                return Err(not_asked(name, "no broker answers"));
            };
            let left = until.saturating_duration_since(tokio::time::Instant::now());
            let answer = asked(&self.client, name, left).await;
            drop(asking);
            match answer {
                Ok(leaders) => {
                    self.partitions.note(name, leaders);
                    return Ok(());
                }
                Err(missing) if missing.may_pass && begin.elapsed() < grace => {}
                Err(missing) => return Err(missing.error),
            }
            tokio::time::sleep(pause.min(grace.saturating_sub(begin.elapsed()))).await;
            pause *= 2;
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
        if settings.own.declare.topics.is_empty() {
            return Ok(());
        }
        let config = admins(config);
        let alive = Alive::new();
        let admin: AdminClient<DefaultClientContext> = config.create().map_err(SinkDown::new)?;
        let new: Vec<NewTopic<'_>> = settings.own.declare.topics.iter().map(new_topic).collect();
        let options = AdminOptions::new()
            .request_timeout(Some(settings.delivery.timeout))
            .operation_timeout(Some(settings.delivery.timeout));
        let made =
            tokio::time::timeout(settings.delivery.timeout, admin.create_topics(&new, &options))
                .await;
        // Its end waits for its thread.
        std::thread::spawn(move || drop((admin, alive)));
        let why = |error| SinkDown::new(format!("the declared topics could not be made: {error}"));
        let made =
            made.map_err(|_| why(format!("no answer within {:?}", settings.delivery.timeout)))?;
        let made = made.map_err(|error| why(error.to_string()))?;
        for made in made {
            match made {
                Ok(name) => info!(sink = %settings.name, topic = name, "topic made"),
                Err((_, Code::TopicAlreadyExists)) => {}
                Err((name, code)) => {
                    // Who may make none is told so of one that is there, too.
                    if asked(client, &name, settings.delivery.timeout).await.is_err() {
                        let detail = format!("declared topic {name:?} could not be made: {code}");
                        return Err(SinkDown::new(detail));
                    }
                }
            }
        }
        Ok(())
    }

    /// What is known of a topic, or the lock under which it is asked for.
    fn recall_or_ask(
        &self,
        name: &str,
    ) -> Result<Result<(), PublishError>, Arc<tokio::sync::Mutex<()>>> {
        let mut known = self.known();
        match known.get(name) {
            Some(Known::There) => return Ok(Ok(())),
            Some(Known::Refused { until, error }) if Instant::now() < *until => {
                return Ok(Err(error.clone()));
            }
            Some(Known::Asked(lock)) => return Err(lock.clone()),
            Some(Known::Refused { .. }) | None => {}
        }
        let lock = Arc::default();
        known.insert(name.to_owned(), Known::Asked(Arc::clone(&lock)));
        Err(lock)
    }

    fn recall(&self, name: &str) -> Option<Result<(), PublishError>> {
        match self.known().get(name)? {
            Known::There => Some(Ok(())),
            Known::Refused { until, error } if Instant::now() < *until => Some(Err(error.clone())),
            Known::Refused { .. } | Known::Asked(_) => None,
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Why a topic cannot be published to.
#[derive(Debug)]
struct Missing {
    error: PublishError,
    /// It may be there a moment later.
    may_pass: bool,
}

/// Asks a broker once whether there is such a topic, and which brokers lead its partitions.
async fn asked(client: &Arc<Client>, name: &str, limit: Duration) -> Result<Vec<i32>, Missing> {
    let (client, topic) = (client.clone(), name.to_owned());
    let asking = blocking(limit, move || {
        judge(&topic, client.producer().client().fetch_metadata(Some(&topic), limit))
    });
    asking.await.unwrap_or_else(|down| Err(not_asked(name, down).into()))
}

fn not_asked(topic: &str, why: impl fmt::Display) -> PublishError {
    let detail = format!("topic {topic:?} could not be looked up: {why}");
    PublishError::new(PublishFailure::SinkDown, detail)
}

/// An error that stays.
impl From<PublishError> for Missing {
    fn from(error: PublishError) -> Self {
        Self { error, may_pass: false }
    }
}

/// Asks, as a consumer would, whether there is such a topic: for a producer the broker may make it.
pub(super) async fn exists(settings: &KafkaSettings, topic: &str) -> Result<(), PublishError> {
    let config = admins(&properties::client_config(settings));
    let (name, limit) = (topic.to_owned(), settings.delivery.timeout);
    let asking = blocking(limit, move || {
        let _alive = Alive::new();
        let consumer: BaseConsumer = config.create().map_err(|error| not_asked(&name, error))?;
        let found = judge(&name, consumer.fetch_metadata(Some(&name), limit));
        found.map(drop).map_err(|missing| missing.error)
    });
    asking.await.unwrap_or_else(|down| Err(not_asked(topic, down)))
}

fn judge(topic: &str, metadata: KafkaResult<Metadata>) -> Result<Vec<i32>, Missing> {
    let metadata = metadata.map_err(|error| not_asked(topic, error))?;
    let answer = metadata.topics().iter().find(|found| found.name() == topic);
    match answer.and_then(|found| found.error()) {
        None => {
            let mut partitions: Vec<_> =
                answer.into_iter().flat_map(|found| found.partitions()).collect();
            partitions.sort_by_key(|partition| partition.id());
            Ok(partitions.iter().map(|partition| partition.leader()).collect())
        }
        Some(error) => Err(missing(topic, error.into())),
    }
}

fn missing(topic: &str, code: Code) -> Missing {
    let may_pass = matches!(
        code,
        Code::UnknownTopicOrPartition
            | Code::UnknownTopic
            | Code::LeaderNotAvailable
            | Code::KafkaStorageError
            | Code::RequestTimedOut
    );
    let failure = match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => PublishFailure::Retryable,
        // The topic is there, and cannot be written to.
        _ if may_pass => PublishFailure::Unconfirmed,
        _ => PublishFailure::Retryable,
    };
    Missing { error: PublishError::new(failure, format!("topic {topic:?}: {code}")), may_pass }
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
    config.remove("partitioner").remove("statistics.interval.ms").remove("request.timeout.ms");
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_asked_again_and_what_stays_is_charged_at_once() {
        for (code, failure, may_pass) in [
            (Code::UnknownTopicOrPartition, PublishFailure::Retryable, true),
            (Code::LeaderNotAvailable, PublishFailure::Unconfirmed, true),
            (Code::TopicAuthorizationFailed, PublishFailure::Retryable, false),
            (Code::InvalidTopic, PublishFailure::Retryable, false),
        ] {
            let missing = missing("t", code);

            assert_eq!((missing.error.failure, missing.may_pass), (failure, may_pass), "{code}");
        }
    }
}
