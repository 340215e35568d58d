//! A queue that does not confirm, on a connection that is sound.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::rabbitmq::RabbitMq;
use postrider::sink::{PublishFailure, Sink};

use crate::rabbitmq::util::{AT_ONCE, publish_all, start, until_up, verdict};
use crate::support::fault_proxy::FaultProxy;
use crate::support::message::message;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::vhost::Vhost;
use crate::support::rabbitmq::{address, at, sink};

const LIMIT: Duration = Duration::from_secs(2);

/// Two queues, of which `sick` takes nothing until it is resumed.
struct Stage {
    vhost: Vhost,
    amqp: AmqpClient,
    proxy: FaultProxy,
    sink: Arc<RabbitMq>,
}

impl Stage {
    async fn new() -> Self {
        let vhost = Vhost::new().await;
        let amqp = vhost.amqp_client().await;
        amqp.classic("sick").await;
        amqp.classic("well").await;
        let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
        let sink = Arc::new(sink(&at(&vhost.uri(), proxy.address()), LIMIT));
        sink.probe().await.unwrap();
        vhost.suspend_queue("sick").await;
        Self { vhost, amqp, proxy, sink }
    }

    /// Ends the test: the sink has never given up its connection.
    async fn end_undisturbed(self) {
        self.end_after(1).await;
    }

    /// Ends the test: the sink has opened so many connections, and given up none.
    async fn end_after(self, connections: usize) {
        assert_eq!(self.proxy.accepted(), connections);
        let lost = tokio::time::timeout(Duration::from_secs(1), self.sink.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
    }
}

/// `well` takes messages one after the other while so many wait for `sick`; what becomes of these, and
/// on how many connections.
async fn beside_a_sick_one(waiting: usize, expected: PublishFailure, connections: usize) {
    let stage = Stage::new().await;
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

    assert!(begin.elapsed() < LIMIT + AT_ONCE, "{:?}", begin.elapsed());
    for publishing in sick {
        let outcome = publishing.await.unwrap();
        assert_eq!(verdict(&outcome), Some(expected), "{outcome:?}");
    }
    assert_eq!(stage.amqp.take_ids("well").await.len(), count);
    stage.vhost.resume_queue("sick").await;
    sink.publish(message("after", "", "sick")).await.unwrap();
    assert_eq!(stage.amqp.take_ids("sick").await.len(), waiting + 1);
    stage.end_after(connections).await;
}

#[fixture::test]
async fn a_queue_that_does_not_confirm_disturbs_no_other_queue() {
    beside_a_sick_one(12, PublishFailure::Unconfirmed, 1).await;
}

/// RabbitMQ stops reading a connection on which 32 wait for a quorum queue.
#[fixture::test]
async fn many_messages_that_are_not_confirmed_have_their_connection_for_themselves() {
    beside_a_sick_one(20, PublishFailure::Abandoned, 2).await;
}

#[fixture::test]
async fn a_message_that_was_not_confirmed_is_published_again_by_the_same_id() {
    let stage = Stage::new().await;
    let sink = &stage.sink;

    // Nothing else is confirmed: the broker is asked.
    for _ in 0..2 {
        let outcome = sink.publish(message("same", "", "sick")).await;
        assert_eq!(verdict(&outcome), Some(PublishFailure::Unconfirmed), "{outcome:?}");
    }
    // Both are unanswered, and the answers of later ones are their own.
    for _ in 0..3 {
        assert_eq!(sink.publish(message("same", "", "well")).await, Ok(()));
        let outcome = sink.publish(message("same", "", "nowhere")).await;
        assert_eq!(verdict(&outcome), Some(PublishFailure::Retryable), "{outcome:?}");
    }
    let last = start(sink, message("same", "", "sick"));
    stage.vhost.resume_queue("sick").await;

    let outcome = last.await.unwrap();
    assert!(matches!(verdict(&outcome), None | Some(PublishFailure::Unconfirmed)), "{outcome:?}");
    assert_eq!(sink.publish(message("same", "", "sick")).await, Ok(()));
    assert_eq!(stage.amqp.take_ids("well").await, ["same"; 3]);
    assert_eq!(stage.amqp.take_ids("sick").await, ["same"; 4]);
    stage.end_undisturbed().await;
}

#[fixture::test]
async fn however_many_are_not_confirmed_another_queue_is_served() {
    let stage = Stage::new().await;
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
