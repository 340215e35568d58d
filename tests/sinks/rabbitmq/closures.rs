//! Errors that the broker reports by closing a channel or a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::rabbitmq::RabbitMq;
use postrider::sink::{Message, PublishFailure, Sink};

use crate::rabbitmq::util::{AMPLE_TIMEOUT, Outcome, connected, failure, publish_all, until_up};
use crate::support::fault_proxy::FaultProxy;
use crate::support::message::message;
use crate::support::rabbitmq::vhost::{PASSWORD, Vhost};
use crate::support::rabbitmq::{address, at, sink};

pub const QUEUE: &str = "taken";

/// Sixty messages, each sixth to the exchange, the others to the queue.
fn mixed(round: &str, exchange: &str) -> impl Iterator<Item = Message> {
    (0..60).map(move |number| {
        let (exchange, key) = if number % 6 == 2 { (exchange, "any") } else { ("", QUEUE) };
        message(format!("{round}/{number}"), exchange, key)
    })
}

/// The outcomes of `mixed`: those of the exchange's messages, and those of the others.
fn sorted(outcomes: Vec<Outcome>) -> (Vec<Outcome>, Vec<Outcome>) {
    let (theirs, others): (Vec<_>, Vec<_>) =
        outcomes.into_iter().enumerate().partition(|(number, _)| number % 6 == 2);
    let outcomes = |list: Vec<(usize, Outcome)>| list.into_iter().map(|(_, outcome)| outcome);
    (outcomes(theirs).collect(), outcomes(others).collect())
}

#[fixture::test]
async fn a_missing_exchange_counts_and_closes_no_channel() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    let proxy = FaultProxy::to_address(address(&vhost.uri())).await;
    let sink = connected(&at(&vhost.uri(), proxy.address())).await;

    for round in 0..3 {
        let outcomes = publish_all(&sink, mixed(&round.to_string(), "missing")).await;

        let (missing, neighbours) = sorted(outcomes);
        for outcome in missing {
            let error = outcome.unwrap_err();
            assert_eq!(error.failure, PublishFailure::Retryable);
            assert!(error.detail.contains("no exchange 'missing'"), "{error}");
        }
        assert!(neighbours.iter().all(Result::is_ok), "{neighbours:?}");
    }

    assert_eq!(amqp.take_ids(QUEUE).await.len(), 150);
    // One that publishes, and one for look-ups.
    assert_eq!(proxy.accepted(), 2);
    let lost = tokio::time::timeout(Duration::from_secs(1), sink.lost()).await;
    assert!(lost.is_err(), "{lost:?}");
}

#[fixture::test]
async fn a_missing_exchange_is_found_once_it_exists() {
    let vhost = Vhost::new().await;
    let amqp = vhost.amqp_client().await;
    let sink = connected(&vhost.uri()).await;
    let outcome = sink.publish(message("early", "late", QUEUE)).await;
    assert_eq!(failure(&outcome), Some(PublishFailure::Retryable));

    amqp.topic("late").await;
    amqp.classic(QUEUE).await;
    amqp.bind(QUEUE, "late", "#").await;

    // The sink remembers for a moment that it was missing.
    let deadline = Instant::now() + AMPLE_TIMEOUT;
    while let Err(error) = sink.publish(message("again", "late", QUEUE)).await {
        assert_eq!(error.failure, PublishFailure::Retryable);
        assert!(Instant::now() < deadline, "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(amqp.take_ids(QUEUE).await, ["again"]);
}

/// A first round may close the channel, and counts attempts of the exchange's own messages only; in
/// the second one only these fail.
pub async fn disturbs_once(sink: &Arc<RabbitMq>, exchange: &str) {
    let (theirs, neighbours) = sorted(publish_all(sink, mixed("first", exchange)).await);
    assert!(
        theirs.iter().any(|outcome| failure(outcome) == Some(PublishFailure::Retryable)),
        "{theirs:?}"
    );
    for outcome in &theirs {
        let error = outcome.as_ref().unwrap_err();
        match error.failure {
            PublishFailure::Retryable => {
                assert!(error.detail.contains(&format!("'{exchange}'")), "{error}")
            }
            // Not sent any more.
            failure => assert_eq!(failure, PublishFailure::SinkDown, "{error}"),
        }
    }
    for outcome in &neighbours {
        let failure = failure(outcome);
        let innocent = matches!(
            failure,
            None | Some(PublishFailure::Indeterminate | PublishFailure::SinkDown)
        );
        assert!(innocent, "{outcome:?}");
    }
    until_up(sink).await;

    let (theirs, neighbours) = sorted(publish_all(sink, mixed("second", exchange)).await);

    let counted = theirs.iter().all(|outcome| failure(outcome) == Some(PublishFailure::Retryable));
    assert!(counted, "{theirs:?}");
    assert!(neighbours.iter().all(Result::is_ok), "{neighbours:?}");
}

#[fixture::test]
async fn an_exchange_deleted_after_its_look_up_disturbs_others_once() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    amqp.topic("gone").await;
    amqp.bind(QUEUE, "gone", "#").await;
    let sink = connected(&vhost.uri()).await;
    sink.publish(message("before", "gone", "any")).await.unwrap();
    amqp.delete_exchange("gone").await;

    disturbs_once(&sink, "gone").await;
}

#[fixture::test]
async fn a_forbidden_or_internal_exchange_counts_and_disturbs_no_other() {
    let (vhost, amqp) = Vhost::with_queue(QUEUE).await;
    amqp.topic("forbidden").await;
    amqp.internal("internal").await;
    let user = format!("{}-limited", vhost.name);
    vhost.add_user(&user, r"^(amq\.default|internal)$").await;
    let sink = connected(&vhost.uri_of(&user, PASSWORD)).await;

    for exchange in ["forbidden", "internal"] {
        for round in 0..2 {
            let outcomes =
                publish_all(&sink, mixed(&format!("{exchange}/{round}"), exchange)).await;

            let (theirs, neighbours) = sorted(outcomes);
            for outcome in theirs {
                let error = outcome.unwrap_err();
                assert_eq!(error.failure, PublishFailure::Retryable, "{error}");
                assert!(error.detail.contains(&format!("'{exchange}'")), "{error}");
            }
            assert!(neighbours.iter().all(Result::is_ok), "{neighbours:?}");
        }
    }

    assert_eq!(amqp.take_ids(QUEUE).await.len(), 200);
    vhost.drop_user(&user).await;
}

#[fixture::test]
async fn a_forbidden_default_exchange_counts_attempts() {
    let (vhost, _amqp) = Vhost::with_queue(QUEUE).await;
    let user = format!("{}-limited", vhost.name);
    vhost.add_user(&user, "^other$").await;
    let sink = connected(&vhost.uri_of(&user, PASSWORD)).await;

    let outcomes = publish_all(&sink, mixed("first", "")).await;

    for outcome in outcomes {
        let failure = failure(&outcome);
        assert!(
            matches!(failure, Some(PublishFailure::Retryable | PublishFailure::SinkDown)),
            "{outcome:?}"
        );
    }
    vhost.drop_user(&user).await;
}

#[fixture::test]
async fn a_wrong_password_is_reported_with_its_remedy() {
    let vhost = Vhost::new().await;
    let wrong = "not-the-password";
    let sink = sink(&vhost.uri_of(&vhost.name, wrong), AMPLE_TIMEOUT);

    let down = sink.probe().await.unwrap_err();

    assert!(down.detail.contains("ACCESS_REFUSED"), "{down}");
    assert!(down.detail.contains("check the user and password"), "{down}");
    assert!(!down.detail.contains(wrong), "{down}");
    let outcome = sink.publish(message("m", "", QUEUE)).await;
    assert_eq!(failure(&outcome), Some(PublishFailure::SinkDown));
}

#[fixture::test]
async fn a_missing_vhost_is_reported_with_its_remedy() {
    let vhost = Vhost::new().await;
    let uri = format!("{}-missing", vhost.uri());

    let down = sink(&uri, AMPLE_TIMEOUT).probe().await.unwrap_err();

    assert!(down.detail.contains(&format!("{}-missing", vhost.name)), "{down}");
    assert!(down.detail.contains("add_vhost"), "{down}");
    assert!(!down.detail.contains(PASSWORD), "{down}");
}

#[fixture::test]
async fn a_forbidden_vhost_is_reported_with_its_remedy() {
    let (vhost, other) = (Vhost::new().await, Vhost::new().await);

    let down = sink(&vhost.uri_of(&other.name, PASSWORD), AMPLE_TIMEOUT).probe().await.unwrap_err();

    assert!(down.detail.contains(&vhost.name), "{down}");
    assert!(down.detail.contains("set_permissions"), "{down}");
}
