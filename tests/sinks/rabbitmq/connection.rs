//! A connection that ends, hangs or is half closed (hazard 11).

use std::cell::Cell;
use std::time::{Duration, Instant};

use postrider::sink::{PublishFailure, Sink};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::rabbitmq::util::{
    AMPLE_TIMEOUT, AT_ONCE_LIMIT, connected, failure, publish_all, start, until_up,
};
use crate::support::fault_proxy::FaultProxy;
use crate::support::message::message;
use crate::support::outbox::eventually;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::vhost::Vhost;
use crate::support::rabbitmq::{address, at, sink};

const QUEUE: &str = "taken";

/// The frame of a `connection.start` for AMQP 0-9, without properties.
const CONNECTION_START: &[u8] =
    b"\x01\0\0\0\0\0\x1c\0\x0a\0\x0a\0\x09\0\0\0\0\0\0\0\x05PLAIN\0\0\0\x05en_US\xce";

/// Takes messages until there are `count`.
async fn take(amqp: &AmqpClient, count: usize) -> Vec<String> {
    let found = std::sync::Mutex::new(Vec::new());
    eventually(&format!("{count} messages in the queue"), || async {
        let taken = amqp.take_ids(QUEUE).await;
        let mut found = found.lock().unwrap();
        found.extend(taken);
        found.len() >= count
    })
    .await;
    found.into_inner().unwrap()
}

#[fixture::test]
async fn a_connection_lost_before_the_confirm_is_indeterminate() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let sink = connected(&at(&vhost.uri(), proxy.address())).await;
    let messages = || (0..20).map(|number| message(format!("{number:02}"), "", QUEUE));
    proxy.hold_answers(true);

    let publishing: Vec<_> = messages().map(|message| start(&sink, message)).collect();
    let mut found = take(&amqp, 20).await;
    proxy.cut();

    for publishing in publishing {
        let outcome = publishing.await.unwrap();
        assert_eq!(failure(&outcome), Some(PublishFailure::Indeterminate), "{outcome:?}");
    }
    proxy.hold_answers(false);
    until_up(&sink).await;
    let outcomes = publish_all(&sink, messages()).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let mut again = take(&amqp, 20).await;
    found.sort();
    again.sort();
    assert_eq!(found, again);
}

#[fixture::test]
async fn connections_closed_by_the_operator_are_replaced() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let sink = connected(&at(&vhost.uri(), proxy.address())).await;
    proxy.hold_answers(true);
    let publishing = start(&sink, message("m", "", QUEUE));
    take(&amqp, 1).await;

    // All at once, when the sink's two and the client's are listed: one that is closed is not listed again.
    eventually("the connections are listed", || async { vhost.connections().await.len() >= 3 })
        .await;
    vhost.close_connections(&vhost.connections().await).await;
    proxy.hold_answers(false);

    // The confirm may have been in transit, so both outcomes are possible.
    let outcome = publishing.await.unwrap();
    assert!(matches!(failure(&outcome), None | Some(PublishFailure::Indeterminate)), "{outcome:?}");
    let down = tokio::time::timeout(AMPLE_TIMEOUT, sink.lost()).await.unwrap();
    let outcome = sink.publish(message("late", "", QUEUE)).await;
    assert_eq!(failure(&outcome), Some(PublishFailure::SinkDown), "{down}");
    until_up(&sink).await;
    sink.publish(message("after", "", QUEUE)).await.unwrap();
    assert_eq!(vhost.amqp_client().await.take_ids(QUEUE).await, ["after"]);
}

#[fixture::test]
async fn a_connection_that_hangs_is_given_up_in_time_and_replaced() {
    let (vhost, _amqp) = Vhost::with_queue(QUEUE).await;
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let limit = Duration::from_secs(1);
    let sink = std::sync::Arc::new(sink(&at(&vhost.uri(), proxy.address()), limit));
    sink.probe().await.unwrap();
    proxy.freeze();

    let begin = Instant::now();
    let outcomes =
        publish_all(&sink, (0..50).map(|number| message(number.to_string(), "", QUEUE))).await;
    assert!(begin.elapsed() < limit + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    for outcome in outcomes {
        assert_eq!(failure(&outcome), Some(PublishFailure::Indeterminate), "{outcome:?}");
    }
    // A broker that accepts connections and sends nothing.
    let begin = Instant::now();
    let down = sink.probe().await.unwrap_err();
    assert!(begin.elapsed() < limit + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    assert!(down.detail.contains("no response within 1s"), "{down}");

    proxy.thaw();
    until_up(&sink).await;
    sink.publish(message("after", "", QUEUE)).await.unwrap();
}

#[fixture::test]
async fn an_unanswered_look_up_publishes_nothing_and_times_out() {
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    amqp.topic("topic").await;
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let limit = Duration::from_secs(1);
    let sink = std::sync::Arc::new(sink(&at(&vhost.uri(), proxy.address()), limit));
    sink.probe().await.unwrap();
    proxy.freeze();

    let begin = Instant::now();
    let messages = (0..20).map(|number| message(number.to_string(), "topic", QUEUE));
    let outcomes = publish_all(&sink, messages).await;

    assert!(begin.elapsed() < limit + AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    for outcome in outcomes {
        assert_eq!(failure(&outcome), Some(PublishFailure::SinkDown), "{outcome:?}");
    }
}

#[fixture::test]
async fn a_half_closed_connection_is_lost() {
    let vhost = Vhost::new().await;
    vhost.amqp_client().await.classic(QUEUE).await;
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let sink = connected(&at(&vhost.uri(), proxy.address())).await;
    sink.publish(message("before", "", QUEUE)).await.unwrap();

    proxy.half_close_answers();

    // The sink notices without a publish.
    tokio::time::timeout(AMPLE_TIMEOUT, sink.lost()).await.unwrap();
    let begin = Instant::now();
    let outcome = sink.publish(message("late", "", QUEUE)).await;
    assert_eq!(failure(&outcome), Some(PublishFailure::SinkDown));
    assert!(begin.elapsed() < AT_ONCE_LIMIT);
    until_up(&sink).await;
    sink.publish(message("after", "", QUEUE)).await.unwrap();
}

#[fixture::test]
async fn a_connection_cut_in_the_handshake_is_lost_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let sink = sink(&format!("amqp://{}", listener.local_addr().unwrap()), AMPLE_TIMEOUT);
    // A broker that sends its first method, `connection.start`, and ends the connection.
    let serving = tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            client.read_exact(&mut [0; b"AMQP0091".len()]).await.unwrap();
            client.write_all(CONNECTION_START).await.unwrap();
        }
    });

    // Whether the client has begun its answer by then is a matter of chance.
    for _ in 0..5 {
        let begin = Instant::now();
        let down = sink.probe().await.unwrap_err();
        assert!(begin.elapsed() < AT_ONCE_LIMIT, "{:?}: {down}", begin.elapsed());
        assert!(down.detail.starts_with("cannot connect to amqp://"), "{down}");
    }
    serving.abort();
}

#[fixture::test]
async fn a_connection_cut_again_and_again_loses_no_message() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let sink = connected(&at(&vhost.uri(), proxy.address())).await;
    let is_over = Cell::new(false);
    let cutting = async {
        for round in (1..=8).cycle() {
            // At another point of the stream each time.
            let until = proxy.sent() + 2_000 * round;
            eventually("more was sent", || async { proxy.sent() >= until }).await;
            // A cut between two connections hits none: each of the eight pairs that hit has a successor.
            if proxy.accepted() >= 2 * 9 {
                break;
            }
            proxy.cut();
        }
        is_over.set(true);
    };
    let publishing = async {
        let mut confirmed = Vec::new();
        let mut number = 0;
        while !is_over.get() {
            let ids: Vec<String> = (0..100).map(|more| format!("{:06}", number + more)).collect();
            number += 100;
            let messages = ids.iter().map(|id| message(id.clone(), "", QUEUE));
            let outcomes = publish_all(&sink, messages).await;
            for (id, outcome) in ids.into_iter().zip(outcomes) {
                match failure(&outcome) {
                    None => confirmed.push(id),
                    Some(PublishFailure::Indeterminate | PublishFailure::SinkDown) => {}
                    Some(_) => panic!("{id}: {outcome:?}"),
                }
            }
            until_up(&sink).await;
        }
        confirmed
    };

    let (confirmed, ()) = tokio::join!(publishing, cutting);

    let found: std::collections::BTreeSet<_> = amqp.take_ids(QUEUE).await.into_iter().collect();
    let lost: Vec<_> = confirmed.iter().filter(|id| !found.contains(*id)).collect();
    assert!(lost.is_empty(), "confirmed, and not in the queue: {lost:?}");
    assert!(!confirmed.is_empty());
}
