//! Five producers write the same keys in turns, five consumers read: content and order hold.

mod consumer;
mod example;
mod producer;

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{Connection, ConnectionProperties, ExchangeKind};

use crate::history::consumer::Consumer;
use crate::history::example::LANGUAGES;
use crate::history::producer::Producer;
use crate::support::broker::Broker;
use crate::support::kafka::brokers;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::TestOutbox;
use crate::support::process::{Postrider, Signal};
use crate::support::queue::mongo_settings;

/// So many changes, over so many keys: each language changes each key.
const CHANGES: usize = 60;
const KEYS: usize = 3;

#[fixture::test(long)]
async fn five_languages_keep_the_order_over_rabbitmq_through_kills_and_a_restart() {
    let (outbox, broker) = (TestOutbox::new().await, Broker::start().await);
    declare(&broker.uri()).await;
    let settings = [
        "sinks.rabbit.kind=rabbitmq".to_owned(),
        format!("sinks.rabbit.uri={}", broker.uri()),
        "sinks.rabbit.exchange=orders".to_owned(),
    ];
    let settings = [mongo_settings(&outbox.database), settings.to_vec()].concat();
    let mut consumers = Vec::new();
    for language in LANGUAGES {
        let environment = vec![("AMQP_URI", broker.uri()), ("QUEUE", language.to_owned())];
        consumers.push(Consumer::start(language, "consumer-rabbitmq", environment).await);
    }

    let restart = async || {
        broker.stop().await;
        broker.begin().await;
    };
    history(&outbox, &settings, &mut consumers, restart).await;
}

#[fixture::test(long)]
async fn five_languages_keep_the_order_over_kafka_through_kills() {
    let (outbox, topic) = (TestOutbox::new().await, Topic::new(3).await);
    let settings = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.brokers={}", brokers()),
        format!("sinks.k.topic={}", topic.name),
    ];
    let settings = [mongo_settings(&outbox.database), settings.to_vec()].concat();
    let mut consumers = Vec::new();
    for language in LANGUAGES {
        let environment = vec![
            ("KAFKA_BROKERS", brokers()),
            ("TOPIC", topic.name.clone()),
            ("GROUP", format!("{}-{language}", topic.name)),
        ];
        consumers.push(Consumer::start(language, "consumer-kafka", environment).await);
    }

    // The shared broker is not restarted: other tests use it.
    history(&outbox, &settings, &mut consumers, async || {}).await;
}

/// Each change by the next language, after the commit of the one before it.
async fn history(
    outbox: &TestOutbox,
    settings: &[String],
    consumers: &mut [Consumer],
    restart_broker: impl AsyncFn(),
) {
    let mut producers: Vec<Producer> =
        LANGUAGES.into_iter().map(|language| Producer::start(language, outbox)).collect();
    let mut relay = Postrider::start(settings);
    for n in 0..CHANGES {
        let producer = &mut producers[n % LANGUAGES.len()];
        let key = format!("order-{}", n % KEYS);
        let id = producer.change(&key, n).await;
        assert!(!id.is_empty());
        if n == CHANGES / 3 {
            relay.signal(Signal::KILL);
            relay.until_ended(Duration::from_secs(10)).await;
            relay = Postrider::start(settings);
        }
        if n == CHANGES / 2 {
            restart_broker().await;
        }
        if n == CHANGES * 2 / 3 {
            consumers.iter_mut().for_each(Consumer::kill);
        }
    }

    for consumer in consumers {
        for key in 0..KEYS {
            let expected: Vec<i64> =
                (0..CHANGES).filter(|n| n % KEYS == key).map(|n| n as i64).collect();
            let key = format!("order-{key}");
            let limit = tokio::time::Instant::now() + Duration::from_secs(120);
            loop {
                let received = consumer.received(&key).await;
                if received == expected {
                    break;
                }
                let language = consumer.language;
                assert!(
                    tokio::time::Instant::now() < limit && expected.starts_with(&received),
                    "{language} has received {received:?} of {key}; it said:\n{}",
                    consumer.said()
                );
                consumer.keep();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    relay.stop().await;
}

/// An exchange that gives each message to the queue of each language.
async fn declare(uri: &str) {
    let connection = Connection::connect(uri, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let exchange = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let none = FieldTable::default;
    let orders = "orders".into();
    channel.exchange_declare(orders, ExchangeKind::Fanout, exchange, none()).await.unwrap();
    for language in LANGUAGES {
        let queue = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(language.into(), queue, none()).await.unwrap();
        let binding = QueueBindOptions::default();
        let (queue, exchange, key) = (language.into(), "orders".into(), "".into());
        channel.queue_bind(queue, exchange, key, binding, none()).await.unwrap();
    }
}
