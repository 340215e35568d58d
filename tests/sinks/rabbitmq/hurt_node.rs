//! A broker that stops, hangs, or blocks publishers; on a node that tests use one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::{Message, PublishFailure, Sink};

use crate::rabbitmq::util::{
    AMPLE_TIMEOUT, AT_ONCE_LIMIT, connected, failure, publish_all, start, until_up,
};
use crate::support::environment::unique;
use crate::support::message::message;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::node::turn;
use crate::support::rabbitmq::sink;

/// An empty queue that no other test of this node uses.
async fn queue(uri: &str) -> String {
    let name = unique("q-");
    AmqpClient::on(uri).await.classic(&name).await;
    name
}

#[fixture::test(long)]
async fn a_stopped_broker_is_noticed_without_a_publish() {
    let turn = turn().await;
    let queue = queue(&turn.node.uri()).await;
    let sink = connected(&turn.node.uri()).await;
    sink.publish(message("before", "", &queue)).await.unwrap();

    turn.node.stop().await;

    tokio::time::timeout(AMPLE_TIMEOUT, sink.lost()).await.unwrap();
    let begin = Instant::now();
    for number in 0..100 {
        let outcome = sink.publish(message(number.to_string(), "", &queue)).await;
        assert_eq!(failure(&outcome), Some(PublishFailure::SinkDown), "{outcome:?}");
    }
    assert!(begin.elapsed() < AT_ONCE_LIMIT);
    let down = sink.probe().await.unwrap_err();
    assert!(down.detail.contains("connection refused"), "{down}");

    turn.node.start().await;
    until_up(&sink).await;
    sink.publish(message("after", "", &queue)).await.unwrap();
    assert_eq!(AmqpClient::on(&turn.node.uri()).await.take_ids(&queue).await, ["before", "after"]);
}

#[fixture::test(long)]
async fn a_frozen_broker_is_used_again_once_thawed() {
    let turn = turn().await;
    let queue = queue(&turn.node.uri()).await;
    let limit = Duration::from_secs(2);
    let sink = Arc::new(sink(&turn.node.uri(), limit));
    sink.probe().await.unwrap();

    turn.node.freeze().await;

    let begin = Instant::now();
    let messages = (0..20).map(|number| message(number.to_string(), "", &queue));
    for outcome in publish_all(&sink, messages).await {
        assert_eq!(failure(&outcome), Some(PublishFailure::Indeterminate), "{outcome:?}");
    }
    assert!(begin.elapsed() < limit + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    let late = sink.publish(message("late", "", &queue)).await;
    assert_eq!(failure(&late), Some(PublishFailure::SinkDown), "{late:?}");
    assert!(sink.probe().await.is_err());

    turn.node.thaw().await;
    until_up(&sink).await;
    sink.publish(message("after", "", &queue)).await.unwrap();
}

#[fixture::test]
async fn a_blocked_connection_counts_nothing_and_continues_later() {
    let turn = turn().await;
    let queue = queue(&turn.node.uri()).await;
    let sink = connected(&turn.node.uri()).await;
    sink.publish(message("before", "", &queue)).await.unwrap();
    let (amqp, exchange) = (AmqpClient::on(&turn.node.uri()).await, unique("x-"));
    amqp.topic(&exchange).await;
    amqp.bind(&queue, &exchange, "#").await;
    turn.node.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await;

    // The broker blocks a connection when it publishes.
    let begin = Instant::now();
    let messages = (0..50).map(|number| message(format!("{number:02}"), "", &queue));
    let publishing: Vec<_> = messages.map(|message| start(&sink, message)).collect();
    let mut downs = 0;
    for publishing in publishing {
        let outcome = publishing.await.unwrap();
        match failure(&outcome) {
            // Confirmed before the sink noticed the alarm.
            None => {}
            Some(failure) => {
                assert_eq!(failure, PublishFailure::SinkDown, "{outcome:?}");
                downs += 1;
            }
        }
    }
    assert!(downs > 0);
    assert!(begin.elapsed() < AMPLE_TIMEOUT / 2, "{:?}", begin.elapsed());
    let down = sink.probe().await.unwrap_err();
    assert!(down.detail.contains("blocked") && down.detail.contains("memory"), "{down}");
    let lost = tokio::time::timeout(AT_ONCE_LIMIT, sink.lost()).await.unwrap();
    assert_eq!(lost, down);
    // So is a look-up, and each probe names it, on the same connection.
    let fresh = connected(&turn.node.uri()).await;
    let outcome = fresh.publish(message("fresh", &exchange, "any")).await;
    assert_eq!(failure(&outcome), Some(PublishFailure::SinkDown), "{outcome:?}");
    for _ in 0..3 {
        let down = fresh.probe().await.unwrap_err();
        assert!(down.detail.contains("blocked"), "{down}");
    }

    turn.node.ctl(&["set_vm_memory_high_watermark", "absolute", "2GB"]).await;
    until_up(&sink).await;
    until_up(&fresh).await;
    fresh.publish(message("fresh", &exchange, "any")).await.unwrap();
    let messages = (0..50).map(|number| message(format!("{number:02}"), "", &queue));
    let outcomes = publish_all(&sink, messages).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let found = amqp.take_ids(&queue).await;
    let found: std::collections::BTreeSet<_> = found.into_iter().collect();
    assert_eq!(found.len(), 52);
}

#[fixture::test(long)]
async fn a_broker_that_dies_while_it_blocks_is_reconnected() {
    let turn = turn().await;
    let queue = queue(&turn.node.uri()).await;
    let sink = connected(&turn.node.uri()).await;
    turn.node.ctl(&["set_vm_memory_high_watermark", "0.0000001"]).await;
    let outcome = sink.publish(message("before", "", &queue)).await;
    assert_eq!(failure(&outcome), Some(PublishFailure::SinkDown), "{outcome:?}");
    assert!(sink.probe().await.unwrap_err().detail.contains("blocked"));

    turn.node.kill().await;

    let down = sink.probe().await.unwrap_err();
    assert!(down.detail.contains("connection refused"), "{down}");
    // The alarm's threshold does not survive; nor, perhaps, does a queue that new.
    turn.node.start().await;
    AmqpClient::on(&turn.node.uri()).await.classic(&queue).await;
    until_up(&sink).await;
    sink.publish(message("after", "", &queue)).await.unwrap();
}

#[fixture::test(long)]
async fn a_message_above_the_brokers_limit_is_too_large_when_alone() {
    let turn = turn().await;
    let queue = queue(&turn.node.uri()).await;
    turn.node.ctl(&["eval", "application:set_env(rabbit, max_message_size, 1000)."]).await;
    let sink = connected(&turn.node.uri()).await;
    let large = |id: &str| Message { payload: Some(vec![b'x'; 1_001]), ..message(id, "", &queue) };

    // Among others the culprit is unknown.
    let mut messages: Vec<_> =
        (0..30).map(|number| message(number.to_string(), "", &queue)).collect();
    messages.insert(15, large("large"));
    let outcomes = publish_all(&sink, messages).await;
    for outcome in outcomes {
        let failure = failure(&outcome);
        assert!(
            matches!(
                failure,
                None | Some(PublishFailure::Indeterminate | PublishFailure::SinkDown)
            ),
            "{outcome:?}"
        );
    }
    until_up(&sink).await;

    let error = sink.publish(large("alone")).await.unwrap_err();

    assert_eq!(error.failure, PublishFailure::TooLarge, "{error}");
    assert!(error.detail.contains("1001") && error.detail.contains("1000"), "{error}");
    until_up(&sink).await;
    sink.publish(message("small", "", &queue)).await.unwrap();
    turn.node.ctl(&["eval", "application:set_env(rabbit, max_message_size, 134217728)."]).await;
}
