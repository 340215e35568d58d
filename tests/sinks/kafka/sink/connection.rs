//! A broker that goes away, hangs, is idle, or has no room: no attempts are counted.

use std::time::{Duration, Instant};

use postrider::sink::kafka::Kafka;
use postrider::sink::{Message, PublishFailure, Sink};
use rdkafka::mocking::MockCluster;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Error};

use super::util::{
    AMPLE_TIMEOUT, AT_ONCE_LIMIT, Outcome, connected, failure, ids, publish_all, shared_sink,
    start, until_up,
};
use crate::support::kafka::node::Node;
use crate::support::kafka::options::Options;
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;
use crate::support::message::message;

#[track_caller]
fn no_attempt_is_counted(outcomes: &[Outcome]) {
    for outcome in outcomes {
        use PublishFailure::{Indeterminate, SinkDown, Unconfirmed};
        let failure = failure(outcome);
        assert!(
            matches!(failure, None | Some(Indeterminate | Unconfirmed | SinkDown)),
            "{outcome:?}"
        );
    }
}

fn some<'a>(topic: &'a str, what: &'a str) -> impl Iterator<Item = Message> {
    (0..20).map(move |number| message(format!("{what} {number:02}"), topic, &number.to_string()))
}

/// Publishes those that were not confirmed, as a relay does, until all are.
async fn until_confirmed(sink: &std::sync::Arc<Kafka>, topic: &str, what: &str) {
    let mut left: Vec<Message> = some(topic, what).collect();
    let deadline = Instant::now() + AMPLE_TIMEOUT;
    while !left.is_empty() {
        assert!(Instant::now() < deadline, "{} are left", left.len());
        until_up(sink).await;
        let outcomes = publish_all(sink, left.clone()).await;
        no_attempt_is_counted(&outcomes);
        let mut outcomes = outcomes.iter();
        left.retain(|_| outcomes.next().unwrap().is_err());
    }
}

#[fixture::test(long)]
async fn a_broker_restart_costs_no_attempt_and_no_message() {
    let mut node = Node::start().await;
    let topic = Topic::on(&node.brokers(), 1, &[]).await;
    let sink = connected(&node.brokers()).await;
    sink.publish(message("before", &topic.name, "k")).await.unwrap();

    // Publishes all the time while the broker stops.
    let going = async {
        let mut numbers = 0..;
        while sink.probe().await.is_ok() {
            let id = format!("going {}", numbers.next().unwrap());
            no_attempt_is_counted(&[sink.publish(message(id, &topic.name, "k")).await]);
        }
    };
    tokio::join!(node.stop(), going);
    let begin = Instant::now();
    let outcomes = publish_all(&sink, some(&topic.name, "down")).await;
    assert!(begin.elapsed() < AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    let down_all = outcomes.iter().all(|one| failure(one) == Some(PublishFailure::SinkDown));
    assert!(down_all, "{outcomes:?}");

    node.start_again().await;
    until_confirmed(&sink, &topic.name, "after").await;
    let found = ids(&topic).await;
    for number in 0..20 {
        assert!(found.contains(&format!("after {number:02}")), "{found:?}");
    }
    assert!(found.contains(&"before".to_owned()));
}

#[fixture::test(long)]
async fn a_hanging_broker_costs_no_attempt_and_no_message() {
    let node = Node::start().await;
    let topic = Topic::on(&node.brokers(), 1, &[]).await;
    let limit = Duration::from_secs(2);
    let sink = shared_sink(&node.brokers(), limit, []);
    sink.probe().await.unwrap();
    sink.publish(message("before", &topic.name, "k")).await.unwrap();

    node.freeze();
    let begin = Instant::now();
    let outcomes = publish_all(&sink, some(&topic.name, "held")).await;
    assert!(begin.elapsed() < limit + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    no_attempt_is_counted(&outcomes);
    assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
    let begin = Instant::now();
    let down = sink.probe().await.unwrap_err();
    assert!(begin.elapsed() < limit + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    assert!(down.detail.contains("no response within 2s"), "{down}");
    node.thaw();

    until_confirmed(&sink, &topic.name, "held").await;
    let found = topic.read_ids().await;
    for number in 0..20 {
        assert!(found.contains(&format!("held {number:02}")), "{found:?}");
    }
}

#[fixture::test]
async fn a_connection_closed_for_idleness_is_not_a_loss() {
    let options = Options::default().property("connections.max.idle.ms", "1000");
    let node = Node::with(options).await;
    let topic = Topic::on(&node.brokers(), 1, &[]).await;
    let sink = connected(&node.brokers()).await;
    sink.publish(message("before", &topic.name, "k")).await.unwrap();

    // The broker looks for idle connections once in this time.
    let lost = tokio::time::timeout(Duration::from_secs(4), sink.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    sink.publish(message("after", &topic.name, "k")).await.unwrap();

    assert_eq!(topic.read_ids().await, ["before", "after"]);
}

#[fixture::test]
async fn a_full_client_queue_delays_messages_and_fails_none() {
    let broker = ProxiedBroker::take().await;
    for room in ["1", "2"] {
        let topic = broker.topic(1).await;
        let properties = [("queue.buffering.max.messages", room)];
        let sink = shared_sink(&broker.brokers(), AMPLE_TIMEOUT, properties);
        sink.probe().await.unwrap();
        let message = |number| message(format!("{number:03}"), &topic.name, "k");
        let begin = Instant::now();

        let outcomes = publish_all(&sink, (0..500).map(message)).await;

        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        assert!(begin.elapsed() < AMPLE_TIMEOUT / 2, "{:?}", begin.elapsed());
        let expected: Vec<_> = (0..500).map(|number| format!("{number:03}")).collect();
        assert_eq!(ids(&topic).await, expected);
    }
}

#[fixture::test]
async fn a_message_without_room_reports_in_time_that_it_was_not_sent() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let limit = Duration::from_secs(2);
    let sink = shared_sink(&broker.brokers(), limit, [("queue.buffering.max.messages", "2")]);
    sink.probe().await.unwrap();
    sink.publish(message("before", &topic.name, "k")).await.unwrap();
    broker.freeze();

    let begin = Instant::now();
    let outcomes =
        publish_all(&sink, some(&topic.name, "late").chain(some(&topic.name, "later"))).await;

    assert!(begin.elapsed() < limit + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    no_attempt_is_counted(&outcomes);
    // No more than had room: at first, and when those timed out.
    let unknown =
        outcomes.iter().filter(|one| failure(one) == Some(PublishFailure::Indeterminate)).count();
    assert!(unknown <= 4, "{outcomes:?}");
    broker.thaw();
    until_confirmed(&sink, &topic.name, "late").await;
}

#[fixture::test]
async fn a_message_waiting_for_room_at_a_loss_was_never_sent() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let sink =
        shared_sink(&broker.brokers(), AMPLE_TIMEOUT, [("queue.buffering.max.messages", "2")]);
    sink.probe().await.unwrap();
    sink.publish(message("before", &topic.name, "k")).await.unwrap();
    broker.hold_answers(true);

    let publishing: Vec<_> =
        some(&topic.name, "late").map(|message| start(&sink, message)).collect();
    // Those that had room are there; the others wait.
    topic.until(2).await;
    broker.refuse(true);
    broker.cut();

    let begin = Instant::now();
    let mut outcomes = Vec::new();
    for publishing in publishing {
        outcomes.push(publishing.await.unwrap());
    }
    assert!(begin.elapsed() < AMPLE_TIMEOUT / 4, "{:?}", begin.elapsed());
    let unknown =
        outcomes.iter().filter(|one| failure(one) == Some(PublishFailure::Indeterminate)).count();
    let down = outcomes.iter().filter(|one| failure(one) == Some(PublishFailure::SinkDown)).count();
    assert!((1..=2).contains(&unknown) && unknown + down == 20, "{outcomes:?}");
    broker.refuse(false);
    broker.hold_answers(false);
    until_confirmed(&sink, &topic.name, "late").await;
}

/// Answers that a test cannot provoke from a broker.
#[fixture::test]
async fn a_transient_broker_error_counts_no_attempt() {
    for (error, many) in [
        (Error::RD_KAFKA_RESP_ERR_LEADER_NOT_AVAILABLE, 3),
        (Error::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION, 3),
        (Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, 3),
        (Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS, 1_000),
        (Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS_AFTER_APPEND, 3),
        (Error::RD_KAFKA_RESP_ERR_KAFKA_STORAGE_ERROR, 3),
        (Error::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER, 3),
        (Error::RD_KAFKA_RESP_ERR_UNKNOWN_PRODUCER_ID, 3),
        (Error::RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH, 3),
        (Error::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED, 3),
    ] {
        let cluster = MockCluster::new(1).unwrap();
        cluster.create_topic("topic", 1, 1).unwrap();
        let sink = shared_sink(&cluster.bootstrap_servers(), Duration::from_secs(2), []);
        sink.probe().await.unwrap();
        sink.publish(message("before", "topic", "k")).await.unwrap();
        cluster.request_errors(RDKafkaApiKey::Produce, &vec![error; many]);

        let outcomes = publish_all(&sink, some("topic", "troubled")).await;

        no_attempt_is_counted(&outcomes);
        cluster.clear_request_errors(RDKafkaApiKey::Produce);
        until_confirmed(&sink, "topic", "troubled").await;
        sink.close().await;
    }
}
