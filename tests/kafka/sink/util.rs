//! Short words for what most tests of the sink do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::config::properties::Properties;
use postrider::sink::kafka::{Kafka, KafkaSettings};
use postrider::sink::{Message, PublishError, Sink, Verdict};
use tokio::task::JoinHandle;

use crate::support::kafka::secure::{OPEN_LOGIN, PASSWORD, Secure};
use crate::support::kafka::topic::Topic;

/// A limit that no test means to reach.
pub const AMPLE: Duration = Duration::from_secs(30);

/// What "at once" may take on a busy machine.
pub const AT_ONCE: Duration = Duration::from_secs(2);

pub type Outcome = Result<(), PublishError>;

/// A sink that is not connected yet.
pub fn shared_sink<const N: usize>(
    brokers: &str,
    timeout: Duration,
    properties: [(&str, &str); N],
) -> Arc<Kafka> {
    Arc::new(sink(brokers, timeout, properties))
}

/// The same, for whom one owner is enough.
pub fn sink<const N: usize>(
    brokers: &str,
    timeout: Duration,
    properties: [(&str, &str); N],
) -> Kafka {
    let settings = KafkaSettings::new("test", brokers);
    let properties = Properties::from(properties);
    Kafka::new(KafkaSettings { timeout, properties, ..settings }).unwrap()
}

/// A connected sink with ample time.
pub async fn connected(brokers: &str) -> Arc<Kafka> {
    connected_with(brokers, []).await
}

/// The same with properties.
pub async fn connected_with<const N: usize>(
    brokers: &str,
    properties: [(&str, &str); N],
) -> Arc<Kafka> {
    let sink = shared_sink(brokers, AMPLE, properties);
    sink.probe().await.unwrap();
    sink
}

/// A sink of this user, by a login without TLS.
pub fn sink_of(secure: &Secure, user: &str) -> Kafka {
    sink(&secure.brokers(OPEN_LOGIN), AMPLE, login(user, PASSWORD))
}

/// Properties of a login without TLS.
pub fn login<'a>(user: &'a str, password: &'a str) -> [(&'a str, &'a str); 4] {
    [
        ("security.protocol", "sasl_plaintext"),
        ("sasl.mechanism", "PLAIN"),
        ("sasl.username", user),
        ("sasl.password", password),
    ]
}

/// Hands a message over without waiting.
pub fn start(sink: &Arc<Kafka>, message: Message) -> JoinHandle<Outcome> {
    let sink = sink.clone();
    tokio::spawn(async move { sink.publish(message).await })
}

/// All at once; the outcomes in the messages' order.
pub async fn publish_all(
    sink: &Arc<Kafka>,
    messages: impl IntoIterator<Item = Message>,
) -> Vec<Outcome> {
    let publishing: Vec<_> = messages.into_iter().map(|message| start(sink, message)).collect();
    let mut outcomes = Vec::new();
    for publishing in publishing {
        outcomes.push(publishing.await.unwrap());
    }
    outcomes
}

/// What a failure means for the record; `None` for a confirmed message.
pub fn verdict(outcome: &Outcome) -> Option<Verdict> {
    outcome.as_ref().err().map(|error| error.verdict)
}

/// Probes until the sink is up, as a relay does.
pub async fn until_up(sink: &Kafka) {
    let deadline = Instant::now() + AMPLE;
    while let Err(down) = sink.probe().await {
        assert!(Instant::now() < deadline, "{down}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Ids of what is in the topic, sorted, each as often as it is there.
pub async fn ids(topic: &Topic) -> Vec<String> {
    let mut ids = topic.read_ids().await;
    ids.sort();
    ids
}
