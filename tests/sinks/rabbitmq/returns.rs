//! Which of many messages no queue takes (hazard 10), and which a queue refused.

use lapin::types::AMQPValue;
use postrider::sink::{Message, PublishFailure, Sink};

use crate::rabbitmq::util::{AMPLE_TIMEOUT, connected, failure, publish_all};
use crate::support::message::message;
use crate::support::rabbitmq::amqp_client::{AmqpClient, text};
use crate::support::rabbitmq::vhost::Vhost;
use crate::support::rabbitmq::{self};

#[fixture::test]
async fn an_unroutable_message_counts_though_it_is_confirmed() {
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    amqp.topic("topic").await;
    let sink = connected(&vhost.uri()).await;

    for (exchange, key) in [("", "nowhere"), ("topic", "nowhere"), ("amq.fanout", "")] {
        let error = sink.publish(message("m", exchange, key)).await.unwrap_err();

        assert_eq!(error.failure, PublishFailure::Retryable);
        assert!(error.detail.contains("NO_ROUTE"), "{error}");
        let named = error.detail.contains(&format!("{exchange:?}, routing key {key:?}"));
        assert!(named, "{error}");
    }
}

#[fixture::test]
async fn an_unroutable_message_is_delivered_without_mandatory() {
    let vhost = Vhost::new().await;
    let sink = rabbitmq::sink_with(&vhost.uri(), AMPLE_TIMEOUT, false);
    sink.probe().await.unwrap();

    assert_eq!(sink.publish(message("m", "", "nowhere")).await, Ok(()));
}

/// Of hundreds at once, through `exchange` into `queue`, every third is unroutable.
async fn assert_exactly_the_unroutable_fail(
    vhost: &Vhost,
    amqp: &AmqpClient,
    exchange: &str,
    queue: &str,
) {
    const COUNT: usize = 600;
    let sink = connected(&vhost.uri()).await;
    for round in 0..4 {
        // Runs of unroutable ones, single ones, and pairs.
        let is_lost = |number: usize| match round {
            0 => number % 3 == 1,
            1 => number % 40 == 7,
            2 => (number / 50) % 2 == 1,
            _ => number.is_multiple_of(2),
        };
        let key = |number| if is_lost(number) { "no.such.queue" } else { queue };
        let messages =
            (0..COUNT).map(|number| message(format!("{round}/{number}"), exchange, key(number)));

        let outcomes = publish_all(&sink, messages).await;

        let mut lost: Vec<String> = Vec::new();
        let mut there = Vec::new();
        for (number, outcome) in outcomes.iter().enumerate() {
            let id = format!("{round}/{number}");
            match failure(outcome) {
                None => there.push(id),
                Some(PublishFailure::Retryable) => lost.push(id),
                Some(_) => panic!("{id}: {outcome:?}"),
            }
        }
        let ids = |lost| (0..COUNT).filter(move |number| is_lost(*number) == lost);
        let name = |number| format!("{round}/{number}");
        assert_eq!(lost, ids(true).map(name).collect::<Vec<_>>(), "counted in round {round}");
        let mut found = amqp.take_ids(queue).await;
        found.sort();
        there.sort();
        assert_eq!(found, there, "in the queue after round {round}");
    }
}

#[fixture::test]
async fn only_unroutable_fail_on_default_exchange_to_classic_queue() {
    let (vhost, amqp) = Vhost::with_queue("taken").await;

    assert_exactly_the_unroutable_fail(&vhost, &amqp, "", "taken").await;
}

#[fixture::test]
async fn only_unroutable_fail_on_default_exchange_to_quorum_queue() {
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    amqp.quorum("taken").await;

    assert_exactly_the_unroutable_fail(&vhost, &amqp, "", "taken").await;
}

#[fixture::test]
async fn only_unroutable_fail_on_topic_exchange_to_classic_queue() {
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    amqp.topic("topic").await;
    amqp.classic("taken").await;
    amqp.bind("taken", "topic", "taken.#").await;

    assert_exactly_the_unroutable_fail(&vhost, &amqp, "topic", "taken").await;
}

#[fixture::test]
async fn only_unroutable_fail_on_topic_exchange_to_quorum_queue() {
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    amqp.topic("topic").await;
    amqp.quorum("taken").await;
    amqp.bind("taken", "topic", "taken.#").await;

    assert_exactly_the_unroutable_fail(&vhost, &amqp, "topic", "taken").await;
}

#[fixture::test]
async fn a_full_queue_counts_attempts_of_its_messages_alone() {
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    let refuses = [("x-max-length", AMQPValue::LongInt(1)), ("x-overflow", text("reject-publish"))];
    amqp.queue("full", &refuses).await;
    amqp.classic("roomy").await;
    let sink = connected(&vhost.uri()).await;
    sink.publish(message("fits", "", "full")).await.unwrap();

    // Unroutable ones among them: a nack may be matched with another's return.
    let queue = |number| ["roomy", "full", "nowhere", "roomy"][number % 4];
    let messages = (0..400).map(|number| message(format!("{number:03}"), "", queue(number)));
    let outcomes = publish_all(&sink, messages).await;

    for (number, outcome) in outcomes.iter().enumerate() {
        match (queue(number), outcome) {
            ("roomy", Ok(())) => {}
            ("full", Err(error)) => {
                assert_eq!(error.failure, PublishFailure::Retryable, "{number}");
                assert!(error.detail.contains("nack"), "{number}: {error}");
            }
            ("nowhere", Err(error)) => {
                assert_eq!(error.failure, PublishFailure::Retryable, "{number}");
                assert!(error.detail.contains("NO_ROUTE"), "{number}: {error}");
            }
            (queue, outcome) => panic!("{number} to {queue}: {outcome:?}"),
        }
    }
    assert_eq!(amqp.take_ids("full").await, ["fits"]);
    assert_eq!(amqp.take_ids("roomy").await.len(), 200);
}

#[fixture::test]
async fn the_same_id_routable_and_unroutable_gets_both_outcomes() {
    let (vhost, amqp) = Vhost::with_queue("taken").await;
    let sink = connected(&vhost.uri()).await;
    let to = |key| -> Message { message("same", "", key) };

    let keys = ["taken", "nowhere", "taken", "nowhere", "nowhere", "taken"];
    // Which confirms come together is random.
    for round in 0..50 {
        let outcomes = publish_all(&sink, keys.map(to)).await;

        for (number, (key, outcome)) in keys.iter().zip(&outcomes).enumerate() {
            assert_eq!(outcome.is_ok(), *key == "taken", "{round}, {number}: {outcome:?}");
        }
        assert_eq!(amqp.take_ids("taken").await.len(), 3);
    }
}
