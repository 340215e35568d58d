//! A queue that does not confirm, on a healthy connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::rabbitmq::RabbitMq;
use postrider::sink::{PublishFailure, Sink};

use crate::rabbitmq::util::{AT_ONCE_LIMIT, failure, publish_all, start, until_up};
use crate::support::fault_proxy::FaultProxy;
use crate::support::message::message;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::vhost::Vhost;
use crate::support::rabbitmq::{address, at, sink};

const LIMIT: Duration = Duration::from_secs(2);

/// Two queues, of which `sick` takes nothing until it is resumed.
struct SickQueue {
    vhost: Vhost,
    amqp: AmqpClient,
    proxy: FaultProxy,
    sink: Arc<RabbitMq>,
}

impl SickQueue {
    async fn new() -> Self {
        let (vhost, amqp) = Vhost::with_queue("sick").await;
        amqp.classic("well").await;
        let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
        let sink = Arc::new(sink(&at(&vhost.uri(), proxy.address()), LIMIT));
        sink.probe().await.unwrap();
        vhost.suspend_queue("sick").await;
        Self { vhost, amqp, proxy, sink }
    }

    /// Ends the test: the sink has never closed its connection.
    async fn end_undisturbed(self) {
        self.end_after(1).await;
    }

    /// Ends the test: the sink has opened this many connections, and closed none.
    async fn end_after(self, connections: usize) {
        // And the one for look-ups.
        assert_eq!(self.proxy.accepted(), connections + 1);
        let lost = tokio::time::timeout(Duration::from_secs(1), self.sink.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
    }
}

/// Publishes to `well` one by one while this many wait for `sick`; asserts the outcomes of these,
/// and the number of connections.
async fn publish_during_sickness(waiting: usize, expected: PublishFailure, connections: usize) {
    let stage = SickQueue::new().await;
    let sink = &stage.sink;
    let begin = Instant::now();
    let sick: Vec<_> = (0..waiting)
        .map(|number| start(sink, message(format!("sick {number:02}"), "", "sick")))
        .collect();

    let mut count = 0;
    while !sick.iter().all(|publishing| publishing.is_finished()) {
        let messages = (0..20).map(|more| message(format!("{:05}", count + more), "", "well"));
        let outcomes = publish_all(sink, messages).await;
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        count += 20;
    }

    assert!(begin.elapsed() < LIMIT + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    for publishing in sick {
        let outcome = publishing.await.unwrap();
        assert_eq!(failure(&outcome), Some(expected), "{outcome:?}");
    }
    assert_eq!(stage.amqp.take_ids("well").await.len(), count);
    stage.vhost.resume_queue("sick").await;
    sink.publish(message("after", "", "sick")).await.unwrap();
    assert_eq!(stage.amqp.take_ids("sick").await.len(), waiting + 1);
    stage.end_after(connections).await;
}

#[fixture::test]
async fn an_unconfirming_queue_disturbs_no_other_queue() {
    publish_during_sickness(12, PublishFailure::Unconfirmed, 1).await;
}

/// RabbitMQ stops reading a connection on which 32 wait for a quorum queue.
#[fixture::test]
async fn many_unconfirmed_messages_get_their_own_connection() {
    publish_during_sickness(20, PublishFailure::Abandoned, 2).await;
}

#[fixture::test]
async fn an_unconfirmed_message_is_published_again_with_its_id() {
    let stage = SickQueue::new().await;
    let sink = &stage.sink;

    // Nothing else is confirmed: the sink asks the broker.
    for _ in 0..2 {
        let outcome = sink.publish(message("same", "", "sick")).await;
        assert_eq!(failure(&outcome), Some(PublishFailure::Unconfirmed), "{outcome:?}");
    }
    // Both are unanswered, and the answers of later ones are their own.
    for _ in 0..3 {
        assert_eq!(sink.publish(message("same", "", "well")).await, Ok(()));
        let outcome = sink.publish(message("same", "", "nowhere")).await;
        assert_eq!(failure(&outcome), Some(PublishFailure::Retryable), "{outcome:?}");
    }
    let last = start(sink, message("same", "", "sick"));
    stage.vhost.resume_queue("sick").await;

    let outcome = last.await.unwrap();
    assert!(matches!(failure(&outcome), None | Some(PublishFailure::Unconfirmed)), "{outcome:?}");
    assert_eq!(sink.publish(message("same", "", "sick")).await, Ok(()));
    assert_eq!(stage.amqp.take_ids("well").await, ["same"; 3]);
    assert_eq!(stage.amqp.take_ids("sick").await, ["same"; 4]);
    stage.end_undisturbed().await;
}

#[fixture::test]
async fn another_queue_is_served_whatever_is_unconfirmed() {
    let stage = SickQueue::new().await;
    let sink = &stage.sink;
    // The broker itself takes no more on this connection once the queue owes it some hundreds.
    for round in 0..20 {
        let sick: Vec<_> = (0..100)
            .map(|number| start(sink, message(format!("{round}/{number}"), "", "sick")))
            .collect();
        let outcome = sink.publish(message("behind", "", "well")).await;
        sick.iter().for_each(|publishing| publishing.abort());
        if outcome.is_err() {
            break;
        }
    }

    until_up(sink).await;

    assert_eq!(sink.publish(message("after", "", "well")).await, Ok(()));
    stage.vhost.resume_queue("sick").await;
}
