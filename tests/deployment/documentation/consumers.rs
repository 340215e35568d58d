//! Consumers in the documentation: a repeated message has its effect once.

use std::time::Duration;

use bson::{Document, doc};

use crate::documentation::doc_page::{Block, blocks};
use crate::documentation::producers::uri;
use crate::documentation::program::Program;
use crate::support::kafka::brokers;
use crate::support::kafka::topic::Topic;
use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, Signal, call_with};
use crate::support::queue::{Queue, amqp_uri, mongo_settings};

/// The names of blocks that consume messages, after `consumer`.
pub const CONSUMERS: [&str; 2] = ["rabbitmq", "kafka"];

/// How many records there are; the first is sent again.
const RECORDS: i32 = 5;

#[fixture::test]
async fn a_rabbitmq_consumer_applies_a_repeated_message_once() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let environment = [("AMQP_URI", amqp_uri()), ("QUEUE", queue.name.clone())];

    assert_applied_once(&outbox, "rabbitmq", &environment, &queue.settings(&outbox)).await;
}

#[fixture::test]
async fn a_kafka_consumer_applies_a_repeated_message_once() {
    let (outbox, topic) = (TestOutbox::new().await, Topic::new(3).await);
    // A group of its own: one with a killed member is not rebalanced for 45 s.
    let environment = [
        ("KAFKA_BROKERS", brokers()),
        ("TOPIC", topic.name.clone()),
        ("GROUP", topic.name.clone()),
    ];
    let sink = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.brokers={}", brokers()),
        format!("sinks.k.topic={}", topic.name),
    ];

    assert_applied_once(
        &outbox,
        "kafka",
        &environment,
        &[mongo_settings(&outbox.database), sink.to_vec()].concat(),
    )
    .await;
}

/// Relays payments to the consumer of this name, with a relay that is killed in between, and sends
/// one of them again.
async fn assert_applied_once(
    outbox: &TestOutbox,
    name: &str,
    environment: &[(&str, String)],
    settings: &[String],
) {
    let block = consumer(name);
    let mut program = Program::of(&block, &uri(outbox));
    program.command.envs(environment.iter().map(|(name, value)| (name, value)));
    let consumer = program.start();
    let payments = (1..=RECORDS).map(|number| {
        let mut record = record(&format!("payment-{number}"), "account-1");
        record.insert("type", "Paid");
        record.insert("payload", doc! { "amount": number });
        record
    });
    outbox.insert(payments).await;

    let mut postrider = Postrider::start(settings);
    let sum = (1..=RECORDS).sum();
    consumer.process.eventually("every payment", || balance(outbox, sum)).await;
    outbox.until_count(doc! { "status": "done" }, RECORDS.unsigned_abs().into()).await;
    postrider.signal(Signal::KILL);
    postrider.until_ended(Duration::from_secs(10)).await;
    let again = ["outbox", "requeue", "--redeliver", "payment-1", "--yes"];
    call_with(settings, &again).await.with_code(0);
    let mut postrider = Postrider::start(settings);

    // It has arrived twice, and so have the later ones.
    let again = || async { consumer.process.stdout().contains("payment-1 again") };
    consumer.process.eventually("payment-1 again", again).await;
    outbox.insert([last()]).await;
    consumer.process.eventually("the last payment", || balance(outbox, sum + 100)).await;
    postrider.stop().await;
}

fn last() -> Document {
    let mut last = record("payment-last", "account-1");
    last.insert("payload", doc! { "amount": 100 });
    last
}

fn consumer(name: &str) -> Block {
    let wanted = ["consumer", name];
    let found = blocks().into_iter().find(|block| block.test == wanted);
    found.unwrap_or_else(|| panic!("no page has a consumer of {name}"))
}

/// Whether the consumer's own collection has this balance.
async fn balance(outbox: &TestOutbox, expected: i32) -> bool {
    let accounts = outbox.client.database(&outbox.database).collection::<Document>("accounts");
    let account = accounts.find_one(doc! { "_id": "account-1" }).await.unwrap();
    account.is_some_and(|account| account.get_i32("balance").ok() == Some(expected))
}
