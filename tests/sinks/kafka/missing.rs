//! A topic that does not exist, and which request would create it.

use std::time::Duration;

use postrider::sink::config::SinkConfig;
use postrider::sink::kafka::{Kafka, KafkaConfig, KafkaSettings};
use postrider::sink::{Address, PublishFailure, Sink};
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::metadata::Metadata;
use rdkafka::producer::Producer;

use crate::kafka::producer::{producer, record, send};
use crate::support::environment::unique;
use crate::support::kafka::node::Node;
use crate::support::kafka::options::Options;
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;
use crate::support::message::message;
use crate::support::outbox::eventually;

const METADATA_TIMEOUT: Duration = Duration::from_secs(10);

/// How long librdkafka assumes that an unknown topic is merely new.
const NEW_TOPIC_WAIT: &str = "topic.metadata.propagation.max.ms";

fn consumer(brokers: &str) -> BaseConsumer {
    ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap()
}

/// The broker's answer for the only topic of the request.
fn error_of(metadata: &Metadata) -> Option<RDKafkaErrorCode> {
    let [topic] = metadata.topics() else { panic!("asked for one") };
    topic.error().map(RDKafkaErrorCode::from)
}

#[fixture::test]
async fn a_send_to_a_missing_topic_fails_after_its_timeout() {
    let broker = ProxiedBroker::take().await;
    let cases = [
        ("0", "60000", RDKafkaErrorCode::UnknownTopicOrPartition),
        ("2000", "60000", RDKafkaErrorCode::UnknownTopicOrPartition),
        ("60000", "2000", RDKafkaErrorCode::MessageTimedOut),
    ];
    for (hope, timeout, code) in cases {
        let producer =
            producer(&broker.direct(), &[(NEW_TOPIC_WAIT, hope), ("message.timeout.ms", timeout)]);
        let topic = unique("test-");

        let sent = send(&producer, record(&topic, "x", b"x")).await;

        assert_eq!(sent.outcome, Err(code), "{hope} {timeout}");
        let least = if hope == "0" { Duration::ZERO } else { Duration::from_secs(1) };
        assert!(sent.took >= least && sent.took < METADATA_TIMEOUT, "{hope} {timeout}: {sent:?}");
        if code == RDKafkaErrorCode::UnknownTopicOrPartition {
            // From now on it fails before it is sent, and with another error.
            let sent = send(&producer, record(&topic, "x", b"x")).await;
            assert_eq!(sent.outcome, Err(RDKafkaErrorCode::UnknownTopic));
        }
    }
}

#[fixture::test]
async fn a_topic_deleted_in_use_is_found_again_by_a_look_up() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let producer =
        producer(&broker.direct(), &[(NEW_TOPIC_WAIT, "0"), ("message.timeout.ms", "60000")]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    topic.delete().await;

    let sent = send(&producer, record(&topic.name, "lost", b"x")).await;
    // The second one if the record is in flight when librdkafka removes the partition.
    let codes = [RDKafkaErrorCode::UnknownPartition, RDKafkaErrorCode::BrokerDestroy];
    assert!(sent.outcome.is_err_and(|code| codes.contains(&code)), "{sent:?}");
    let sent = send(&producer, record(&topic.name, "lost", b"x")).await;
    assert_eq!(sent.outcome, Err(RDKafkaErrorCode::UnknownTopic), "{sent:?}");
    let topic = Topic::named(&broker.direct(), &topic.name, 1, &[]).await;
    producer.client().fetch_metadata(Some(&topic.name), METADATA_TIMEOUT).unwrap();
    send(&producer, record(&topic.name, "after", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["after"]);
}

#[fixture::test]
async fn a_broker_without_auto_creation_reports_a_missing_topic() {
    let broker = ProxiedBroker::take().await;
    let topic = unique("test-");
    let producer = producer(&broker.direct(), &[]);

    let found = producer.client().fetch_metadata(Some(&topic), METADATA_TIMEOUT).unwrap();

    assert_eq!(error_of(&found), Some(RDKafkaErrorCode::UnknownTopicOrPartition));
}

#[fixture::test(long)]
async fn only_a_producers_look_up_creates_a_topic() {
    let options = Options::default().property("auto.create.topics.enable", "true");
    let node = Node::with(options).await;
    let (consumer, producer) = (consumer(&node.brokers()), producer(&node.brokers(), &[]));

    let looked = consumer.fetch_metadata(Some("by-consumer"), METADATA_TIMEOUT).unwrap();
    // The metadata request of `postrider check`, which must create nothing: before the other one,
    // so that a topic of its making would exist by then.
    let sink = Kafka::new(KafkaSettings::new("test", KafkaConfig::at(&node.brokers()))).unwrap();
    let address = Address { destination: "by-check".to_owned(), key: None };
    let checked = KafkaConfig::look_up(&sink, &address).await.unwrap_err();
    // This very answer may still say that it is missing.
    producer.client().fetch_metadata(Some("by-producer"), METADATA_TIMEOUT).unwrap();

    assert_eq!(checked.failure, PublishFailure::Retryable, "{checked}");
    assert_eq!(error_of(&looked), Some(RDKafkaErrorCode::UnknownTopicOrPartition));
    eventually("a topic to be made", || async {
        let all = consumer.fetch_metadata(None, METADATA_TIMEOUT).unwrap();
        let all: Vec<&str> = all.topics().iter().map(|topic| topic.name()).collect();
        assert!(!all.contains(&"by-consumer") && !all.contains(&"by-check"));
        all.contains(&"by-producer")
    })
    .await;
    // Its first answer about each of these is an error: the topic has no leader yet.
    sink.probe().await.unwrap();
    for topic in (0..5).map(|number| format!("by-sink-{number}")) {
        assert_eq!(sink.publish(message("first", &topic, "key")).await, Ok(()), "{topic}");
    }
}

#[fixture::test]
async fn a_name_that_no_topic_can_have_is_refused_by_the_broker() {
    let broker = ProxiedBroker::take().await;
    let producer = producer(&broker.direct(), &[]);
    for name in ["", "a b", "a/b", &"x".repeat(250)] {
        let sent = send(&producer, record(name, "x", b"x")).await;

        assert_eq!(sent.outcome, Err(RDKafkaErrorCode::InvalidTopic), "{name:?}");
    }
}
