//! Short helpers for the tests of the sink.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::kafka::{Kafka, KafkaConfig, KafkaSettings};
use postrider::sink::{Message, PublishFailure, Sink};

use crate::support::kafka::secure::{OPEN_LOGIN, PASSWORD, Secure};
use crate::support::kafka::topic::Topic;

pub use crate::support::publish::*;

/// A sink that is not connected yet.
pub fn shared_sink<const N: usize>(
    brokers: &str,
    timeout: Duration,
    properties: [(&str, &str); N],
) -> Arc<Kafka> {
    Arc::new(sink(brokers, timeout, properties))
}

/// The same with a single owner.
pub fn sink<const N: usize>(
    brokers: &str,
    timeout: Duration,
    properties: [(&str, &str); N],
) -> Kafka {
    let mut settings = KafkaSettings::new(
        "test",
        KafkaConfig { properties: properties.into(), ..KafkaConfig::at(brokers) },
    );
    settings.delivery.timeout = timeout;
    Kafka::new(settings).unwrap()
}

/// A connected sink with an ample timeout.
pub async fn connected(brokers: &str) -> Arc<Kafka> {
    connected_with(brokers, []).await
}

/// The same with properties.
pub async fn connected_with<const N: usize>(
    brokers: &str,
    properties: [(&str, &str); N],
) -> Arc<Kafka> {
    let sink = shared_sink(brokers, AMPLE_TIMEOUT, properties);
    sink.probe().await.unwrap();
    sink
}

/// A sink of this user, by a login without TLS.
pub fn sink_of(secure: &Secure, user: &str) -> Kafka {
    sink(&secure.brokers(OPEN_LOGIN), AMPLE_TIMEOUT, login(user, PASSWORD))
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

/// Ids of what is in the topic, sorted, with repetitions.
pub async fn ids(topic: &Topic) -> Vec<String> {
    let mut ids = topic.read_ids().await;
    ids.sort();
    ids
}

/// Publishes until it is confirmed: for a while the sink still knows the refusal.
pub async fn until_taken(sink: &Kafka, message: Message) {
    let deadline = Instant::now() + AT_ONCE_LIMIT;
    while let Err(error) = sink.publish(message.clone()).await {
        assert_eq!(error.failure, PublishFailure::Retryable, "{error}");
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
