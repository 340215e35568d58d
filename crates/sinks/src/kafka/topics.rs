//! Looks topics up before records go to them, and creates those that an operator declared.
//!
//! A record for a missing topic would stay in the producer's queue until its time is up, as if no broker
//! answered. So each topic is looked up first.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use postrider_relay::sink::{PublishError, PublishFailure, SinkDown};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::Metadata;
use rdkafka::producer::Producer as _;
use rdkafka::types::RDKafkaErrorCode as Code;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout_at};
use tracing::info;

use crate::kafka::client::{Client, blocking};
use crate::kafka::config::{KafkaSettings, Topic};
use crate::kafka::live_clients::LiveClient;
use crate::kafka::partitions::Partitions;
use crate::kafka::tokens::Tokens;
use crate::kafka::{properties, remedy};

/// How long a refused topic is not looked up again: short compared with the first backoff, long enough that a
/// thousand records for it cost one look-up.
const REFUSED_TOPIC_PAUSE: Duration = Duration::from_secs(1);

/// How long the look-up of a topic without a leader, or of a missing one, is repeated before an attempt is
/// counted. A new topic is known to each broker and has a leader within two seconds at most. Only the
/// records of this topic wait.
const NEW_TOPIC_GRACE: Duration = Duration::from_secs(2);

/// The pause before the second look-up; each further one is twice as long.
const FIRST_LOOK_UP_PAUSE: Duration = Duration::from_millis(100);

/// Stands for the broker's default number of partitions or replicas.
const BROKER_DEFAULT_COUNT: i32 = -1;

/// The properties of a producer that other clients do not have.
const PRODUCER_PROPERTIES: [&str; 8] = [
    "enable.idempotence",
    "acks",
    "message.timeout.ms",
    "linger.ms",
    "compression.type",
    "partitioner",
    "statistics.interval.ms",
    "request.timeout.ms",
];

/// The topics of one link.
#[derive(Debug)]
pub(super) struct Topics {
    client: Arc<Client>,
    partitions: Arc<Partitions>,
    /// The latest answer about each topic. A cell is empty until the first record for the topic has got it.
    answers: Mutex<HashMap<String, Arc<OnceCell<Answer>>>>,
    /// Held during a request: each takes a thread while it lasts.
    requesting: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Answer {
    exists: Result<(), PublishError>,
    received: Instant,
}

impl Topics {
    pub(super) fn new(client: Arc<Client>, partitions: Arc<Partitions>) -> Self {
        let (answers, requesting) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { client, partitions, answers, requesting }
    }

    /// Makes sure that there is a topic of this name.
    ///
    /// # Errors
    ///
    /// - [`PublishFailure::Retryable`] if it is missing, or hidden from this user.
    /// - [`PublishFailure::Unconfirmed`] if it has no leader.
    /// - [`PublishFailure::SinkDown`] if no broker answers.
    pub(super) async fn look_up(&self, name: &str, until: Instant) -> Result<(), PublishError> {
        let answer = self.answer(name);
        let look_up =
            answer.get_or_try_init(async || match self.request_until_settled(name, until).await {
                Err(error) if error.failure == PublishFailure::SinkDown => Err(error),
                exists => Ok(Answer { exists, received: Instant::now() }),
            });
        match timeout_at(until, look_up).await {
            Ok(answer) => answer?.exists.clone(),
            Err(_) => Err(look_up_failed(name, "no broker responds")),
        }
    }

    /// Returns whether there was a topic of this name at its latest look-up.
    pub(super) fn knows(&self, name: &str) -> bool {
        let answers = self.answers.lock();
        let answer = answers.get(name).and_then(|answer| answer.get());
        answer.is_some_and(|answer| answer.exists.is_ok())
    }

    /// Returns the latest answer about a topic, unless that is a refusal that has expired.
    fn answer(&self, name: &str) -> Arc<OnceCell<Answer>> {
        let has_expired = |answer: &Answer| {
            answer.exists.is_err() && answer.received.elapsed() >= REFUSED_TOPIC_PAUSE
        };
        let mut answers = self.answers.lock();
        match answers.get(name) {
            Some(answer) if !answer.get().is_some_and(has_expired) => answer.clone(),
            _ => answers.entry(name.to_owned()).insert_entry(Arc::default()).get().clone(),
        }
    }

    /// Repeats the request while its answer may change soon, for [`NEW_TOPIC_GRACE`] at most.
    async fn request_until_settled(&self, name: &str, until: Instant) -> Result<(), PublishError> {
        let begin = Instant::now();
        let grace = NEW_TOPIC_GRACE.min(until.saturating_duration_since(begin) / 2);
        let mut pause = FIRST_LOOK_UP_PAUSE;
        loop {
            let requesting = self.requesting.lock().await;
            let left = until.saturating_duration_since(Instant::now());
            let leaders = request_leaders(&self.client, name, left).await;
            drop(requesting);
            match leaders {
                Ok(leaders) => {
                    self.partitions.note(name, leaders);
                    return Ok(());
                }
                Err(error) if error.is_transient && begin.elapsed() < grace => {}
                Err(error) => return Err(error.publish_error),
            }
            sleep(pause.min(grace.saturating_sub(begin.elapsed()))).await;
            pause *= 2;
        }
    }

    /// Forgets a topic, so that the next record for it looks it up again.
    pub(super) fn forget(&self, name: &str) {
        self.answers.lock().remove(name);
    }
}

/// Creates the declared topics that are absent.
///
/// # Errors
///
/// The first topic that cannot be created, and why.
pub(super) async fn declare(
    settings: &KafkaSettings,
    config: &ClientConfig,
    client: &Arc<Client>,
) -> Result<(), SinkDown> {
    let topics = &settings.own.declare.topics;
    if topics.is_empty() {
        return Ok(());
    }
    let limit = settings.delivery.timeout;
    let live_client = LiveClient::new();
    let admin: AdminClient<DefaultClientContext> =
        admin_config(config).create().map_err(SinkDown::new)?;
    let new: Vec<NewTopic<'_>> = topics.iter().map(new_topic).collect();
    let options = AdminOptions::new().request_timeout(Some(limit)).operation_timeout(Some(limit));
    let created = tokio::time::timeout(limit, admin.create_topics(&new, &options)).await;
    // The end of the client waits for its thread.
    std::thread::spawn(move || drop((admin, live_client)));
    let failed = |cause| SinkDown::new(format!("cannot create the declared topics: {cause}"));
    let created = created.map_err(|_| failed(format!("no response within {limit:?}")))?;
    for created in created.map_err(|error| failed(remedy::of_error(&error)))? {
        match created {
            Ok(name) => info!(sink = %settings.name, topic = name, "created a topic"),
            Err((_, Code::TopicAlreadyExists)) => {}
            Err((name, code)) => {
                // A user without the right to create topics gets this error for an existing one too.
                if request_leaders(client, &name, limit).await.is_err() {
                    let cause = remedy::of_code(code);
                    let detail = format!("cannot create the declared topic {name:?}: {cause}");
                    return Err(SinkDown::new(detail));
                }
            }
        }
    }
    Ok(())
}

/// A look-up that did not find a topic that can be written to.
#[derive(Debug)]
struct LookUpError {
    publish_error: PublishError,
    /// Whether the next look-up may find it.
    is_transient: bool,
}

impl From<PublishError> for LookUpError {
    fn from(publish_error: PublishError) -> Self {
        Self { publish_error, is_transient: false }
    }
}

/// Requests the leader of each partition of a topic.
async fn request_leaders(
    client: &Arc<Client>,
    name: &str,
    limit: Duration,
) -> Result<Vec<i32>, LookUpError> {
    let (client, topic) = (client.clone(), name.to_owned());
    let requesting = blocking(limit, move || {
        leaders(&topic, client.producer().client().fetch_metadata(Some(&topic), limit))
    });
    requesting.await.unwrap_or_else(|down| Err(look_up_failed(name, down).into()))
}

/// Looks a topic up as a consumer would: a producer's look-up may create it.
pub(super) async fn look_up(settings: &KafkaSettings, topic: &str) -> Result<(), PublishError> {
    let config = admin_config(&properties::client_config(settings));
    let (name, limit) = (topic.to_owned(), settings.delivery.timeout);
    let tokens = settings.own.tokens();
    let requesting = blocking(limit, move || {
        let _live_client = LiveClient::new();
        let consumer: BaseConsumer<Tokens> =
            config.create_with_context(tokens).map_err(|error| look_up_failed(&name, error))?;
        // Sets the token, which was requested when the client was created.
        consumer.poll(Duration::ZERO);
        let leaders = leaders(&name, consumer.fetch_metadata(Some(&name), limit));
        leaders.map(drop).map_err(|error| error.publish_error)
    });
    requesting.await.unwrap_or_else(|down| Err(look_up_failed(topic, down)))
}

fn look_up_failed(topic: &str, cause: impl fmt::Display) -> PublishError {
    let detail = format!("cannot look up topic {topic:?}: {cause}");
    PublishError::new(PublishFailure::SinkDown, detail)
}

/// Reads the leaders of a topic's partitions from the answer of a broker.
fn leaders(topic: &str, metadata: KafkaResult<Metadata>) -> Result<Vec<i32>, LookUpError> {
    let metadata = metadata.map_err(|error| look_up_failed(topic, remedy::of_error(&error)))?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else {
        return Ok(Vec::new());
    };
    if let Some(error) = found.error() {
        return Err(look_up_error(topic, error.into()));
    }
    let mut partitions: Vec<_> = found.partitions().iter().collect();
    partitions.sort_by_key(|partition| partition.id());
    Ok(partitions.iter().map(|partition| partition.leader()).collect())
}

fn look_up_error(topic: &str, code: Code) -> LookUpError {
    let (failure, is_transient) = match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic => (PublishFailure::Retryable, true),
        // The topic exists, and cannot be written to.
        Code::LeaderNotAvailable | Code::KafkaStorageError | Code::RequestTimedOut => {
            (PublishFailure::Unconfirmed, true)
        }
        _ => (PublishFailure::Retryable, false),
    };
    let publish_error =
        PublishError::new(failure, format!("topic {topic:?}: {}", remedy::of_code(code)));
    LookUpError { publish_error, is_transient }
}

fn new_topic(topic: &Topic) -> NewTopic<'_> {
    let replicas = TopicReplication::Fixed(topic.replication.unwrap_or(BROKER_DEFAULT_COUNT));
    let partitions = topic.partitions.unwrap_or(BROKER_DEFAULT_COUNT);
    let new = NewTopic::new(&topic.name, partitions, replicas);
    topic.properties.iter().fold(new, |new, (name, value)| new.set(name, value))
}

/// Returns the configuration for a client that is not a producer, which would warn about a producer's.
fn admin_config(config: &ClientConfig) -> ClientConfig {
    let mut config = config.clone();
    for name in PRODUCER_PROPERTIES {
        config.remove(name);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_up_is_repeated_while_its_answer_may_change() {
        for (code, failure, is_transient) in [
            (Code::UnknownTopicOrPartition, PublishFailure::Retryable, true),
            (Code::LeaderNotAvailable, PublishFailure::Unconfirmed, true),
            (Code::TopicAuthorizationFailed, PublishFailure::Retryable, false),
            (Code::InvalidTopic, PublishFailure::Retryable, false),
        ] {
            let error = look_up_error("t", code);

            assert_eq!(
                (error.publish_error.failure, error.is_transient),
                (failure, is_transient),
                "{code}"
            );
        }
    }
}
