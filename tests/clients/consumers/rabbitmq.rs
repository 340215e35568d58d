//! `examples/consumer_rabbitmq.rs`

use bson::doc;

use crate::consumers::programs::{
    collection, conflicts, end_transactions, enqueue, in_inbox, lock, received, start,
};
use crate::support::fault_proxy::{FaultProxy, ProxyFault};
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::queue::{host_of, mongo_settings};
use crate::support::rabbitmq::amqp_client::{AmqpClient, text};
use crate::support::rabbitmq::vhost::Vhost;

/// The beginning of an acknowledgement: method 80 of class 60.
pub const ACK: &str = "\0\x3c\0\x50";

pub const QUEUE: &str = "orders";
pub const DEAD: &str = "dead";

pub fn settings(test: &TestOutbox, vhost: &Vhost) -> Vec<String> {
    let sink = [
        "sinks.r.kind=rabbitmq".to_owned(),
        format!("sinks.r.uri={}", vhost.uri()),
        format!("sinks.r.routing_key={QUEUE}"),
    ];
    [mongo_settings(&test.database), sink.to_vec()].concat()
}

#[fixture::test]
async fn message_has_its_effect_once_when_its_acknowledgement_is_lost() {
    let test = TestOutbox::new().await;
    let (vhost, _amqp) = Vhost::with_queue(QUEUE).await;
    let mut postrider = Postrider::start(&settings(&test, &vhost));
    enqueue(&test, &["a", "b"], 0, 100).await;

    // Killed three times between the commit of a message and its acknowledgement.
    for committed in [1, 20, 40] {
        let proxy = FaultProxy::to(&host_of(&vhost.uri())).await;
        let uri = vhost.uri().replace(&host_of(&vhost.uri()), &proxy.address().to_string());
        let consumer = start("consumer_rabbitmq", &test, &[("AMQP_URI", &uri), ("QUEUE", QUEUE)]);
        consumer.eventually("some messages", || async { in_inbox(&test).await >= committed }).await;
        proxy.on_request(ACK, ProxyFault::Silence);
        consumer.eventually("a lost acknowledgement", || async { proxy.has_caught() }).await;
        drop(consumer);
    }
    let consumer =
        start("consumer_rabbitmq", &test, &[("AMQP_URI", &vhost.uri()), ("QUEUE", QUEUE)]);
    consumer.eventually("all messages", || async { in_inbox(&test).await == 200 }).await;

    let expected: Vec<i32> = (0..100).collect();
    assert_eq!(received(&test, "a").await, expected);
    assert_eq!(received(&test, "b").await, expected);
    let is_repeated = || async { consumer.stdout().contains(" again") };
    consumer.eventually("a repetition", is_repeated).await;
    postrider.stop().await;
}

#[fixture::test]
async fn message_has_its_effect_when_killed_in_its_transaction() {
    let test = TestOutbox::new().await;
    let (vhost, _amqp) = Vhost::with_queue(QUEUE).await;
    let mut postrider = Postrider::start(&settings(&test, &vhost));
    enqueue(&test, &["held"], 0, 1).await;
    let uri = vhost.uri();
    let environment = [("AMQP_URI", &*uri), ("QUEUE", QUEUE)];

    let mut locked = lock(&test, "held").await;
    let consumer = start("consumer_rabbitmq", &test, &environment);
    consumer.eventually("a conflict", || async { conflicts(&test).await > 0 }).await;
    drop(consumer);
    locked.abort_transaction().await.unwrap();
    end_transactions(&test).await;
    let consumer = start("consumer_rabbitmq", &test, &environment);
    consumer.eventually("the effect", || async { in_inbox(&test).await == 1 }).await;

    assert_eq!(received(&test, "held").await, [0]);
    postrider.stop().await;
}

#[fixture::test]
async fn poison_message_leaves_a_classic_queue_after_five_attempts() {
    poison_leaves("classic").await;
}

#[fixture::test]
async fn poison_message_leaves_a_quorum_queue_after_five_attempts() {
    poison_leaves("quorum").await;
}

/// Sends a message that is not JSON, and one behind it; then the poison message again.
async fn poison_leaves(queue_type: &str) {
    let test = TestOutbox::new().await;
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    let dead_letters =
        [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(DEAD))];
    amqp.classic(DEAD).await;
    amqp.queue(QUEUE, &[[("x-queue-type", text(queue_type))].as_slice(), &dead_letters].concat())
        .await;
    let mut postrider = Postrider::start(&settings(&test, &vhost));
    test.insert([doc! { "_id": "poison", "key": "a", "type": "T", "payload": "not JSON", "status": "pending" }]).await;
    test.until_count(doc! { "status": "done" }, 1).await;
    enqueue(&test, &["a"], 0, 1).await;

    let consumer =
        start("consumer_rabbitmq", &test, &[("AMQP_URI", &vhost.uri()), ("QUEUE", QUEUE)]);
    consumer.eventually("the message behind", || async { in_inbox(&test).await == 1 }).await;

    assert_eq!(received(&test, "a").await, [0]);
    for attempts in [5, 10] {
        // A quorum queue moves it a moment later.
        until_dead(&amqp, "poison").await;
        let found = consumer.stderr().matches("poison failed, attempt ").count();
        assert_eq!(found, attempts, "{}", consumer.stderr());
        let failures = collection(&test, "inbox_failures").count_documents(doc! {}).await.unwrap();
        assert_eq!(failures, 0);
        if attempts == 5 {
            // An operator moves it back.
            amqp.publish("", QUEUE, ("poison", Some("a")), b"{}").await;
        }
    }
    // An empty id is none.
    amqp.publish("", QUEUE, ("", Some("a")), b"{}").await;
    until_dead(&amqp, "").await;
    postrider.stop().await;
}

/// Waits for the one message in the queue of the dead.
pub async fn until_dead(amqp: &AmqpClient, expected: &str) {
    let found = std::sync::Mutex::new(Vec::new());
    eventually("a dead message", || async {
        let ids = amqp.take_ids(DEAD).await;
        found.lock().unwrap().extend(ids);
        !found.lock().unwrap().is_empty()
    })
    .await;
    assert_eq!(found.into_inner().unwrap(), [expected]);
}
