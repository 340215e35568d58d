//! Topics that the operator declares.

use postrider::sink::Sink;
use postrider::sink::kafka::config::DeclaredTopics;
use postrider::sink::kafka::config::Topic as Declared;
use postrider::sink::kafka::{Kafka, KafkaConfig, KafkaSettings};
use postrider_settings::properties::Properties;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::util::{AMPLE_TIMEOUT, login};
use crate::support::environment::unique;
use crate::support::kafka::acl::{Operation, Resource};
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::secure::{OPEN_LOGIN, PASSWORD, Secure};
use crate::support::message::message;

fn declared<const N: usize>(
    name: &str,
    partitions: i32,
    properties: [(&str, &str); N],
) -> Declared {
    let properties = Properties::from(properties);
    Declared { name: name.into(), partitions: Some(partitions), replication: Some(1), properties }
}

fn sink<const N: usize>(
    brokers: &str,
    properties: [(&str, &str); N],
    topics: Vec<Declared>,
) -> Kafka {
    let properties = Properties::from(properties);
    let declare = DeclaredTopics { topics };
    let own = KafkaConfig { properties, declare, ..KafkaConfig::at(brokers) };
    let mut settings = KafkaSettings::new("test", own);
    settings.delivery.timeout = AMPLE_TIMEOUT;
    Kafka::new(settings).unwrap()
}

/// How many partitions a topic has; `None` without such a topic.
fn partitions(brokers: &str, name: &str) -> Option<usize> {
    let consumer: BaseConsumer =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let metadata = consumer.fetch_metadata(Some(name), AMPLE_TIMEOUT).unwrap();
    let [topic] = metadata.topics() else { panic!("asked for one") };
    topic.error().is_none().then(|| topic.partitions().len())
}

/// One of a topic's properties.
async fn property(brokers: &str, topic: &str, name: &str) -> String {
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", brokers).create().unwrap();
    let topic = ResourceSpecifier::Topic(topic);
    let [found] = admin
        .describe_configs([&topic], &AdminOptions::new())
        .await
        .unwrap()
        .try_into()
        .unwrap_or_else(|_| panic!("asked for one"));
    found.unwrap().get(name).unwrap().value.clone().unwrap()
}

#[fixture::test]
async fn declared_topics_are_created_and_never_altered() {
    let broker = ProxiedBroker::take().await;
    let brokers = broker.direct();
    let (new, plain) = (unique("test-"), unique("test-"));
    let old = broker.topic_with(2, &[("retention.ms", "1234567")]).await;
    let all = || {
        let bare = Declared { partitions: None, replication: None, ..declared(&plain, 1, []) };
        let compact = [("cleanup.policy", "compact"), ("max.message.bytes", "4321")];
        vec![declared(&new, 5, compact), declared(&old.name, 7, [("retention.ms", "1")]), bare]
    };

    let first = sink(&brokers, [], all());
    first.probe().await.unwrap();
    // Everything exists by now.
    let second = sink(&brokers, [], all());
    second.probe().await.unwrap();

    assert_eq!(partitions(&brokers, &new), Some(5));
    assert_eq!(property(&brokers, &new, "cleanup.policy").await, "compact");
    assert_eq!(property(&brokers, &new, "max.message.bytes").await, "4321");
    assert_eq!(partitions(&brokers, &plain), Some(1), "the broker's own default");
    assert_eq!(partitions(&brokers, &old.name), Some(2));
    assert_eq!(property(&brokers, &old.name, "retention.ms").await, "1234567");
    for sink in [first, second] {
        sink.publish(message("m", &new, "k")).await.unwrap();
        sink.publish(message("m", &plain, "k")).await.unwrap();
    }
}

#[fixture::test]
async fn a_declared_topic_that_cannot_be_made_is_named() {
    let secure = Secure::shared().await;
    let brokers = secure.brokers(OPEN_LOGIN);
    let super_brokers = secure.node.brokers();
    let (wanted, old) = (unique("test-"), secure.topic(1).await);
    let denied = [Resource::Cluster, Resource::Topic("*")]
        .map(|resource| secure.deny("grace", Operation::Create, resource));
    let denied = futures_util::future::join_all(denied).await;
    let login = login("grace", PASSWORD);

    let down = sink(&brokers, login, vec![declared(&old.name, 1, []), declared(&wanted, 1, [])]);
    let down = down.probe().await.unwrap_err();
    let impossible = sink(&super_brokers, [], vec![declared(&wanted, 1, [("no.such", "x")])]);
    let impossible = impossible.probe().await.unwrap_err();
    // A topic that exists can be declared without the right to create it.
    let there = sink(&brokers, login, vec![declared(&old.name, 1, [])]);
    there.probe().await.unwrap();

    for (down, why) in [(down, "uthoriz"), (impossible, "configuration is invalid")] {
        assert!(down.detail.contains(&wanted) && down.detail.contains(why), "{down}");
        assert!(!down.detail.contains(PASSWORD), "{down}");
    }
    assert_eq!(partitions(&super_brokers, &wanted), None);
    for acl in denied {
        acl.delete(&super_brokers).await;
    }
    let allowed = sink(&brokers, login, vec![declared(&wanted, 1, [])]);
    allowed.probe().await.unwrap();
    assert_eq!(partitions(&super_brokers, &wanted), Some(1));
}
