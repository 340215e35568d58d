//! `examples/consumer_kafka.rs`

use std::time::Duration;

use bson::doc;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};

use crate::consumers::programs::{
    attempts, collection, conflicts, end_transactions, enqueue, in_inbox, lock, received, start,
    start_at,
};
use crate::support::fault_proxy::{FaultProxy, ProxyFault};
use crate::support::kafka::brokers;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::queue::{host_of, mongo_settings};

fn settings(test: &TestOutbox, topic: &Topic) -> Vec<String> {
    let sink = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.brokers={}", brokers()),
        format!("sinks.k.topic={}", topic.name),
    ];
    [mongo_settings(&test.database), sink.to_vec()].concat()
}

#[fixture::test]
async fn message_has_its_effect_once_when_its_offset_is_lost() {
    let (test, topic) = (TestOutbox::new().await, Topic::new(2).await);
    let brokers = brokers();
    let environment =
        [("KAFKA_BROKERS", &*brokers), ("TOPIC", &topic.name), ("GROUP", &topic.name)];
    let mut postrider = Postrider::start(&settings(&test, &topic));
    enqueue(&test, &["a", "b", "c"], 0, 100).await;

    // Killed when MongoDB has committed, before the consumer learns it and commits the offset.
    let proxy = FaultProxy::to(&host_of(&test.uri)).await;
    let consumer = start_at("consumer_kafka", &proxy.mongodb_uri(&test.database), &environment);
    consumer.eventually("some messages", || async { in_inbox(&test).await >= 7 }).await;
    proxy.on_answer_to("commitTransaction", ProxyFault::Silence);
    consumer.eventually("a commit without an answer", || async { proxy.has_caught() }).await;
    drop(consumer);
    drop(proxy);
    let consumer = start("consumer_kafka", &test, &environment);
    consumer.eventually("all messages", || async { in_inbox(&test).await == 300 }).await;
    consumer.eventually("a repetition", || async { consumer.stdout().contains(" again") }).await;

    let expected: Vec<i32> = (0..100).collect();
    for key in ["a", "b", "c"] {
        assert_eq!(received(&test, key).await, expected, "{key}");
    }
    postrider.stop().await;
}

/// Makes the topic to which a consumer of this one sends dead messages.
async fn dead_topic(topic: &Topic) -> Topic {
    let dead = Topic::named(&brokers(), &format!("{}.dead", topic.name), 1, &[]).await;
    dead.deleted_when_dropped()
}

/// The environment of a consumer that has a name in its group.
fn member<'a>(brokers: &'a str, topic: &'a Topic) -> [(&'static str, &'a str); 4] {
    [
        ("KAFKA_BROKERS", brokers),
        ("TOPIC", &topic.name),
        ("GROUP", &topic.name),
        ("INSTANCE", "one"),
    ]
}

/// The process ends while it applies the message: here it waits for a lock then, and is killed.
#[fixture::test]
async fn message_that_ends_the_process_goes_to_the_dead_topic() {
    let (test, topic) = (TestOutbox::new().await, Topic::new(1).await);
    let dead = dead_topic(&topic).await;
    let brokers = brokers();
    let environment = member(&brokers, &topic);
    let mut postrider = Postrider::start(&settings(&test, &topic));
    enqueue(&test, &["a"], 0, 1).await;
    test.until_count(doc! { "status": "done" }, 1).await;
    let payload = doc! { "n": 0 };
    let poison = doc! { "_id": "poison", "key": "held", "type": "T", "payload": payload, "status": "pending" };
    test.insert([poison]).await;
    test.until_count(doc! { "status": "done" }, 2).await;
    enqueue(&test, &["a"], 1, 2).await;

    let mut locked = lock(&test, "held").await;
    // The first process applies the one before: those behind it are not counted in this process.
    for counted in 0..=5 {
        let before = conflicts(&test).await;
        let consumer = start("consumer_kafka", &test, &environment);
        consumer.eventually("a conflict", || async { conflicts(&test).await > before }).await;
        assert_eq!(attempts(&test, "poison").await, counted);
        drop(consumer);
    }
    locked.abort_transaction().await.unwrap();
    end_transactions(&test).await;
    let consumer = start("consumer_kafka", &test, &environment);
    consumer.eventually("the message behind", || async { in_inbox(&test).await == 2 }).await;

    assert_eq!(received(&test, "a").await, [0, 1]);
    assert!(received(&test, "held").await.is_empty());
    let found = dead.until(1).await;
    assert_eq!(found[0].id(), "poison");
    assert_eq!(found[0].header("failure"), Some("it ended the process"));
    let failures = collection(&test, "inbox_failures");
    let forgotten = || async { failures.count_documents(doc! {}).await.unwrap() == 0 };
    consumer.eventually("the end of the counts", forgotten).await;
    postrider.stop().await;
}

#[fixture::test]
async fn message_has_its_effect_when_killed_in_its_transaction() {
    let (test, topic) = (TestOutbox::new().await, Topic::new(1).await);
    let brokers = brokers();
    let environment = member(&brokers, &topic);
    let mut postrider = Postrider::start(&settings(&test, &topic));
    enqueue(&test, &["held"], 0, 1).await;

    let mut locked = lock(&test, "held").await;
    let consumer = start("consumer_kafka", &test, &environment);
    consumer.eventually("a conflict", || async { conflicts(&test).await > 0 }).await;
    drop(consumer);
    locked.abort_transaction().await.unwrap();
    end_transactions(&test).await;
    let consumer = start("consumer_kafka", &test, &environment);
    consumer.eventually("the effect", || async { in_inbox(&test).await == 1 }).await;

    assert_eq!(received(&test, "held").await, [0]);
    postrider.stop().await;
}

#[fixture::test]
async fn incomplete_messages_go_to_the_dead_topic() {
    let (test, topic) = (TestOutbox::new().await, Topic::new(1).await);
    let dead = dead_topic(&topic).await;
    let brokers = brokers();
    let producer: FutureProducer =
        ClientConfig::new().set("bootstrap.servers", &brokers).create().unwrap();
    let with_id = |value: &'static [u8]| Some(Header { key: "message-id", value: Some(value) });
    let null_id = Header { key: "message-id", value: None };
    let body = Some(r#"{"n":1}"#);
    for (key, payload, header) in [
        (None, None, None), // A tombstone of another program.
        (Some("a"), body, Some(null_id)),
        (Some("a"), body, with_id(b"")),
        (Some("a"), body, with_id(b"\xff")),
        (Some("a"), None, with_id(b"tombstone")),
        (None, body, with_id(b"no key")),
        (Some("behind"), body, with_id(b"behind")),
    ] {
        let mut record = FutureRecord::<str, str>::to(&topic.name);
        (record.key, record.payload) = (key, payload);
        record.headers = header.map(|header| OwnedHeaders::new().insert(header));
        producer.send(record, Duration::from_secs(30)).await.unwrap();
    }

    let environment = member(&brokers, &topic);
    let consumer = start("consumer_kafka", &test, &environment);
    consumer.eventually("the message behind", || async { in_inbox(&test).await == 1 }).await;

    assert_eq!(received(&test, "behind").await, [1]);
    let found = dead.until(6).await;
    let failures: Vec<_> = found.iter().map(|record| record.header("failure").unwrap()).collect();
    let expected = ["no message-id"; 4].into_iter();
    let expected = expected.chain(["a message without a payload", "a message without a key"]);
    assert_eq!(failures, expected.collect::<Vec<_>>());
}

#[fixture::test]
async fn poison_message_goes_to_the_dead_topic_after_five_attempts() {
    let (test, topic) = (TestOutbox::new().await, Topic::new(2).await);
    let dead = dead_topic(&topic).await;
    let brokers = brokers();
    let environment =
        [("KAFKA_BROKERS", &*brokers), ("TOPIC", &topic.name), ("GROUP", &topic.name)];
    let mut postrider = Postrider::start(&settings(&test, &topic));
    let headers = doc! { "tenant": "acme" };
    let poison = doc! {
        "_id": "poison", "key": "a", "type": "T", "payload": "not JSON", "headers": headers, "status": "pending",
    };
    test.insert([poison]).await;
    test.until_count(doc! { "status": "done" }, 1).await;
    enqueue(&test, &["a"], 0, 1).await;

    let consumer = start("consumer_kafka", &test, &environment);
    consumer.eventually("the message behind", || async { in_inbox(&test).await == 1 }).await;

    assert_eq!(received(&test, "a").await, [0]);
    let found = dead.until(1).await;
    assert_eq!(found[0].id(), "poison");
    assert_eq!(found[0].key.as_deref(), Some(b"a".as_slice()));
    assert_eq!(found[0].payload.as_deref(), Some(b"not JSON".as_slice()));
    assert_eq!(found[0].header("tenant"), Some("acme"));
    assert!(found[0].header("failure").unwrap().starts_with("not JSON"));
    assert_eq!(consumer.stderr().matches("poison failed, attempt ").count(), 5);
    assert_eq!(collection(&test, "inbox_failures").count_documents(doc! {}).await.unwrap(), 0);
    postrider.stop().await;
}
