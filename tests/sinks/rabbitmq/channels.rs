//! Channels that the broker closes, and connections that may have few.

use std::sync::Arc;
use std::time::Duration;

use postrider::sink::{PublishFailure, Sink};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};

use crate::rabbitmq::util::{AMPLE_TIMEOUT, connected, failure, publish_all, until_up};
use crate::support::fault_proxy::FaultProxy;
use crate::support::message::message;
use crate::support::rabbitmq::amqp_client::id;
use crate::support::rabbitmq::vhost::{PASSWORD, Vhost};
use crate::support::rabbitmq::{address, at, sink};

const QUEUE: &str = "taken";

/// More than [`CHANNEL_MAX`], so that each channel number is used several times.
const ROUNDS: usize = 40;

const CHANNEL_MAX: &str = "?channel_max=8";

/// Regression: after as many closed channels as a connection may have, each look-up had the error of an earlier
/// one, and no channel was left in the end.
#[fixture::test]
async fn missing_exchange_fails_only_its_own_messages() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    for round in 0..ROUNDS {
        amqp.topic(&format!("there-{round}")).await;
        amqp.bind(QUEUE, &format!("there-{round}"), "#").await;
    }
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let uri = format!("{}{CHANNEL_MAX}", at(&vhost.uri(), proxy.address()));
    let sink = connected(&uri).await;
    let mixed = (0..ROUNDS).flat_map(|round| {
        let to = |exchange: String| message(format!("{round} to {exchange}"), &exchange, "any");
        [to(format!("missing-{round}")), to(format!("there-{round}"))]
    });

    let outcomes = publish_all(&sink, mixed).await;

    for (round, outcomes) in outcomes.chunks(2).enumerate() {
        let error = outcomes[0].as_ref().unwrap_err();
        assert_eq!(error.failure, PublishFailure::Retryable, "{error}");
        assert!(error.detail.contains(&format!("'missing-{round}'")), "{error}");
        assert_eq!(outcomes[1], Ok(()));
    }
    let taken = amqp.take_all(QUEUE).await;
    assert_eq!(taken.len(), ROUNDS);
    for message in taken {
        let id = id(&message);
        let body = String::from_utf8(message.delivery.data.clone()).unwrap();
        assert!(id.contains(message.delivery.exchange.as_str()), "{id}");
        assert!(body.contains(&id), "{body}");
    }
    // The connection that publishes is still the first one.
    sink.probe().await.unwrap();
    let lost = tokio::time::timeout(Duration::from_millis(600), sink.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
    let accepted = proxy.accepted();
    assert!(accepted <= 2 + ROUNDS / 8 + 1, "{accepted} connections");
}

/// Regression: as above, with the trials of routing keys.
#[fixture::test]
async fn forbidden_routing_keys_fail_only_their_own_messages() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    amqp.topic("events").await;
    amqp.bind(QUEUE, "events", "#").await;
    let user = format!("{}-limited", vhost.name);
    vhost.add_user(&user, ".*").await;
    vhost.permit_routing_keys(&user, "events", r"^ok\.").await;
    let sink = connected(&format!("{}{CHANNEL_MAX}", vhost.uri_of(&user, PASSWORD))).await;
    // It closes the channel of all messages, and from then on each routing key is tried.
    let first = sink.publish(message("first", "events", "bad.first")).await;
    assert_eq!(failure(&first), Some(PublishFailure::Retryable), "{first:?}");
    until_up(&sink).await;
    let mixed = (0..ROUNDS).flat_map(|round| {
        let to = |key: String| message(key.clone(), "events", &key);
        [to(format!("bad.{round}")), to(format!("ok.{round}"))]
    });

    let outcomes = publish_all(&sink, mixed).await;

    for (round, outcomes) in outcomes.chunks(2).enumerate() {
        let error = outcomes[0].as_ref().unwrap_err();
        assert_eq!(error.failure, PublishFailure::Retryable, "{error}");
        assert!(error.detail.contains(&format!("'bad.{round}'")), "{error}");
        assert_eq!(outcomes[1], Ok(()));
    }
    let mut taken = amqp.take_ids(QUEUE).await;
    taken.sort();
    let mut expected: Vec<_> = (0..ROUNDS).map(|round| format!("ok.{round}")).collect();
    expected.sort();
    assert_eq!(taken, expected);
    vhost.drop_user(&user).await;
}

/// Regression: the sink was up, each message took it down, and so on twice a second.
#[fixture::test]
async fn too_few_channels_are_reported_by_the_probe() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    amqp.topic("there").await;
    amqp.bind(QUEUE, "there", "#").await;
    let user = format!("{}-limited", vhost.name);
    vhost.add_user(&user, ".*").await;
    let uri = vhost.uri_of(&user, PASSWORD);

    for limit in 1..=2 {
        vhost.limit_user(&user, "max-channels", limit).await;
        // The broker counts channels a moment later than it opens them.
        let mut probed = Ok(());
        for _ in 0..20 {
            probed = sink(&uri, AMPLE_TIMEOUT).probe().await;
            if probed.is_err() {
                break;
            }
        }
        let down = probed.unwrap_err();
        assert!(down.cause().contains("3 channels are required"), "{down}");
        assert!(down.remedy().unwrap().contains("set_user_limits"), "{down}");
    }
    // The broker counts a closed channel for a moment.
    vhost.limit_user(&user, "max-channels", 6).await;
    let sink = Arc::new(sink(&uri, AMPLE_TIMEOUT));
    until_up(&sink).await;
    for exchange in ["missing", "there", "missing too"] {
        let outcome = sink.publish(message(exchange, exchange, "any")).await;
        let expected = (exchange != "there").then_some(PublishFailure::Retryable);
        assert_eq!(failure(&outcome), expected, "{outcome:?}");
        sink.probe().await.unwrap();
    }
    assert_eq!(amqp.take_ids(QUEUE).await, ["there"]);
    vhost.drop_user(&user).await;
}

/// Regression: each attempt left a thread and a socket behind.
#[fixture::test]
async fn attempt_to_reach_a_silent_broker_ends_with_its_timeout() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let uri = format!("amqp://{}", listener.local_addr().unwrap());
    let sink = sink(&uri, Duration::from_millis(300));
    let serving = tokio::spawn(async move {
        // One connection that publishes, and one that does not.
        let read = async |mut client: TcpStream| {
            let mut sent = Vec::new();
            client.read_to_end(&mut sent).await.map(|_| sent)
        };
        let first = listener.accept().await.unwrap().0;
        let second = listener.accept().await.unwrap().0;
        tokio::try_join!(read(first), read(second)).unwrap()
    });

    let down = sink.probe().await.unwrap_err();

    assert!(down.detail.contains("no response within 300ms"), "{down}");
    let (first, second) = tokio::time::timeout(AMPLE_TIMEOUT, serving).await.unwrap().unwrap();
    assert_eq!([first, second], [b"AMQP\0\0\x09\x01"; 2]);
}
