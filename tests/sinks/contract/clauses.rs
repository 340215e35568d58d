//! The clauses of the contract, each over any sink.

use std::collections::BTreeSet;
use std::fmt::{Debug, Display};
use std::sync::Arc;
use std::time::{Duration, Instant};

use postrider::sink::{Message, PublishError, PublishFailure, Sink};
use tokio::task::JoinHandle;

use crate::contract::harness::Harness;
use crate::support::message::SECRET;
use crate::support::publish::{AMPLE_TIMEOUT, AT_ONCE_LIMIT};
use crate::support::rabbitmq::vhost::PASSWORD;

/// A timeout that a test reaches.
const SHORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Asserts that the text of an error or sink contains no secret.
#[track_caller]
fn assert_no_secret(words: &str) {
    // As text, or as the derived `Debug` prints bytes.
    let bytes = format!("{:?}", SECRET.as_bytes());
    let bytes = bytes.trim_matches(['[', ']']);
    assert!(!words.contains(SECRET) && !words.contains(bytes), "shows the payload: {words}");
    assert!(!words.contains(PASSWORD), "shows the password: {words}");
}

#[track_caller]
fn without_secrets<E: Debug + Display>(error: E) -> E {
    assert_no_secret(&error.to_string());
    assert_no_secret(&format!("{error:?}"));
    error
}

type Publishing = JoinHandle<Result<(), PublishError>>;

fn start<S: Sink>(sink: &Arc<S>, message: Message) -> Publishing {
    let sink = sink.clone();
    tokio::spawn(async move { sink.publish(message).await.map_err(without_secrets) })
}

async fn connected<H: Harness>(harness: &H, timeout: Duration) -> Arc<H::Sink> {
    let sink = Arc::new(harness.sink(timeout));
    sink.probe().await.unwrap();
    sink
}

async fn failure(
    publishing: impl Future<Output = Result<(), PublishError>>,
) -> Option<PublishFailure> {
    publishing.await.map_err(without_secrets).err().map(|error| error.failure)
}

async fn ids<H: Harness>(harness: &H) -> Vec<String> {
    harness.arrived().await.into_iter().map(|arrived| arrived.id).collect()
}

/// Probes until the sink is up, as a relay does.
async fn until_up<S: Sink>(sink: &S) {
    let deadline = Instant::now() + AMPLE_TIMEOUT;
    while let Err(down) = sink.probe().await.map_err(without_secrets) {
        assert!(Instant::now() < deadline, "{down}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

pub async fn a_confirmed_message_can_be_consumed<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    for number in 0..20 {
        let message = harness.message(&format!("m-{number}"));

        sink.publish(message.clone()).await.unwrap();

        let arrived = harness.arrived().await;
        assert_eq!(arrived.len(), number + 1);
        assert_eq!(arrived[number].id, message.id);
        assert_eq!(Some(&arrived[number].payload), message.payload.as_ref());
    }
}

pub async fn hundreds_of_messages_are_in_flight_at_once<H: Harness>(harness: &H) {
    const COUNT: u32 = 400;
    const DELAY: Duration = Duration::from_millis(100);
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    let delayed = harness.slow_down(DELAY).await;

    let begin = Instant::now();
    let publishing: Vec<_> =
        (0..COUNT).map(|number| start(&sink, harness.message(&format!("m-{number}")))).collect();
    for publishing in publishing {
        publishing.await.unwrap().unwrap();
    }
    let took = begin.elapsed();

    let one_by_one = DELAY * 2 * COUNT;
    assert!(!delayed || took < one_by_one / 8, "{took:?}");
    let ids = ids(harness).await;
    assert_eq!(ids.len(), COUNT as usize);
    assert_eq!(ids.into_iter().collect::<BTreeSet<_>>().len(), COUNT as usize);
}

pub async fn a_failure_affects_only_its_own_message<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    let mut publishing = Vec::new();
    let mut expected = BTreeSet::new();
    for number in 0..300 {
        let id = format!("m-{number}");
        let bad = (number % 7 == 3).then(|| harness.undeliverable(&id)).flatten();
        let impossible = harness.impossible();
        let impossible = (number % 50 == 5).then(|| impossible.into_iter().next()).flatten();
        let (message, outcome) = match (bad, impossible) {
            (Some(message), _) => (message, Some(PublishFailure::Retryable)),
            (None, Some(message)) => (message, Some(PublishFailure::Rejected)),
            (None, None) => (harness.message(&id), None),
        };
        if outcome.is_none() {
            expected.insert(id.clone());
        }
        publishing.push((id, outcome, start(&sink, message)));
    }

    for (id, expected, publishing) in publishing {
        let outcome = failure(async { publishing.await.unwrap() }).await;
        assert_eq!(outcome, expected, "{id}");
    }

    assert_eq!(ids(harness).await.into_iter().collect::<BTreeSet<_>>(), expected);
}

pub async fn the_same_message_can_be_published_again<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    let message = harness.message("twin");

    let (one, two) = (start(&sink, message.clone()), start(&sink, message.clone()));
    one.await.unwrap().unwrap();
    two.await.unwrap().unwrap();
    sink.publish(message).await.unwrap();

    assert_eq!(ids(harness).await, ["twin", "twin", "twin"]);
}

pub async fn a_dropped_call_affects_no_other<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    harness.freeze().await;
    let message = |number| harness.message(&format!("m-{number}"));
    let publishing: Vec<_> = (0..40).map(|number| start(&sink, message(number))).collect();
    for dropped in publishing.iter().step_by(2) {
        dropped.abort();
    }
    harness.thaw().await;
    for (number, publishing) in publishing.into_iter().enumerate() {
        match publishing.await {
            Ok(outcome) => assert_eq!(outcome, Ok(()), "{number}"),
            Err(dropped) => assert!(dropped.is_cancelled() && number % 2 == 0, "{number}"),
        }
    }

    for number in 0..40 {
        sink.publish(message(number)).await.unwrap();
    }

    assert_eq!(ids(harness).await.into_iter().collect::<BTreeSet<_>>().len(), 40);
}

pub async fn a_call_ends_in_time_without_a_confirm<H: Harness>(harness: &H) {
    let sink = connected(harness, SHORT_TIMEOUT).await;
    // From here on the sink knows that the destination exists.
    sink.publish(harness.message("before")).await.unwrap();
    harness.freeze().await;

    let begin = Instant::now();
    let publishing: Vec<_> =
        (0..30).map(|number| start(&sink, harness.message(&format!("m-{number}")))).collect();
    for publishing in publishing {
        let outcome = failure(async { publishing.await.unwrap() }).await;
        let unanswered = matches!(
            outcome,
            Some(
                PublishFailure::Indeterminate
                    | PublishFailure::ConnectionEnded
                    | PublishFailure::Unconfirmed
            )
        );
        assert!(unanswered, "{outcome:?}");
    }
    let took = begin.elapsed();
    assert!(took < SHORT_TIMEOUT + AT_ONCE_LIMIT, "{took:?}");

    // Once the sink knows that the broker does not answer, it publishes nothing more.
    tokio::time::timeout(AMPLE_TIMEOUT, sink.lost()).await.unwrap();
    let late = sink.publish(harness.message("late"));
    assert_eq!(failure(late).await, Some(PublishFailure::SinkDown));
    harness.thaw().await;
    until_up(&*sink).await;
    sink.publish(harness.message("after")).await.unwrap();
    let ids = ids(harness).await;
    assert!(ids.contains(&"after".to_owned()) && !ids.contains(&"late".to_owned()), "{ids:?}");
}

pub async fn a_sink_that_is_not_connected_says_so_at_once<H: Harness>(harness: &H) {
    if H::CONNECTS {
        let sink = harness.sink(AMPLE_TIMEOUT);
        let begin = Instant::now();
        assert_eq!(
            failure(sink.publish(harness.message("new"))).await,
            Some(PublishFailure::SinkDown)
        );
        assert!(begin.elapsed() < AT_ONCE_LIMIT);
    }
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    harness.take_down().await;
    // This message itself may be the first to notice the loss.
    let first = failure(sink.publish(harness.message("first"))).await;
    let is_lost = matches!(
        first,
        Some(
            PublishFailure::SinkDown
                | PublishFailure::Indeterminate
                | PublishFailure::ConnectionEnded
        )
    );
    assert!(is_lost, "{first:?}");
    tokio::time::timeout(AMPLE_TIMEOUT, sink.lost()).await.unwrap();

    let begin = Instant::now();
    for number in 0..100 {
        let message = harness.message(&format!("m-{number}"));
        assert_eq!(failure(sink.publish(message)).await, Some(PublishFailure::SinkDown));
    }

    assert!(begin.elapsed() < AT_ONCE_LIMIT);
    assert_eq!(ids(harness).await, [""; 0]);
}

pub async fn a_probe_restores_a_lost_sink<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    sink.publish(harness.message("before")).await.unwrap();
    for round in 0..3 {
        harness.take_down().await;
        let lost = sink.publish(harness.message(&format!("lost {round}")));
        assert!(failure(lost).await.is_some());
        without_secrets(sink.probe().await.unwrap_err());
        harness.bring_back().await;

        until_up(&*sink).await;

        sink.publish(harness.message(&format!("after {round}"))).await.unwrap();
    }
    assert_eq!(ids(harness).await, ["before", "after 0", "after 1", "after 2"]);
}

pub async fn an_idle_loss_is_noticed<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    let lost = {
        let sink = sink.clone();
        tokio::spawn(async move { without_secrets(sink.lost().await) })
    };
    sink.publish(harness.message("m")).await.unwrap();
    // A fixed time, since the test waits for nothing to happen.
    tokio::time::sleep(SHORT_TIMEOUT).await;
    assert!(!lost.is_finished(), "{:?}", lost.await);

    harness.take_down().await;
    if !H::CONNECTS {
        // Without a connection only a publish can notice it.
        assert!(failure(sink.publish(harness.message("first"))).await.is_some());
    }

    tokio::time::timeout(AMPLE_TIMEOUT, lost).await.unwrap().unwrap();
    let late = sink.publish(harness.message("late"));
    assert_eq!(failure(late).await, Some(PublishFailure::SinkDown));
}

pub async fn an_isolated_sink_connects_by_itself<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    let isolated = sink.isolated();
    if H::CONNECTS {
        let early = isolated.publish(harness.message("early"));
        assert_eq!(failure(early).await, Some(PublishFailure::SinkDown));
    }

    isolated.probe().await.unwrap();
    isolated.publish(harness.message("isolated")).await.unwrap();
    if H::CONNECTS {
        isolated.close().await;
        let late = isolated.publish(harness.message("late"));
        assert_eq!(failure(late).await, Some(PublishFailure::SinkDown));
    }

    sink.publish(harness.message("after")).await.unwrap();
    assert_eq!(ids(harness).await, ["isolated", "after"]);
}

pub async fn a_closed_sink_is_down<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    sink.publish(harness.message("before")).await.unwrap();

    sink.close().await;

    let begin = Instant::now();
    assert_eq!(
        failure(sink.publish(harness.message("after"))).await,
        Some(PublishFailure::SinkDown)
    );
    assert!(begin.elapsed() < AT_ONCE_LIMIT);
    assert_eq!(ids(harness).await, ["before"]);
    // A second close, or one without a connection, is not an error.
    sink.close().await;
    harness.sink(AMPLE_TIMEOUT).close().await;
}

pub async fn an_impossible_message_is_refused_before_it_is_sent<H: Harness>(harness: &H) {
    let sink = connected(harness, AMPLE_TIMEOUT).await;
    // The broker cannot be asked.
    harness.freeze().await;

    for message in harness.impossible() {
        let begin = Instant::now();
        let refused = sink.publish(message).await.map_err(without_secrets).unwrap_err();
        assert!(
            matches!(refused.failure, PublishFailure::Rejected | PublishFailure::TooLarge),
            "{refused:?}"
        );
        assert!(begin.elapsed() < AT_ONCE_LIMIT, "{refused:?}");
    }

    harness.thaw().await;
    sink.publish(harness.message("good")).await.unwrap();
    assert_eq!(ids(harness).await, ["good"]);
}

pub async fn no_text_contains_a_payload_or_a_password<H: Harness>(harness: &H) {
    let sink = connected(harness, SHORT_TIMEOUT).await;
    assert_no_secret(&format!("{sink:?}"));
    for bad in harness.undeliverable("bad").into_iter().chain(harness.impossible()) {
        without_secrets(sink.publish(bad).await.unwrap_err());
    }
    // While messages are in the sink, too.
    harness.freeze().await;
    let publishing: Vec<_> =
        (0..5).map(|number| start(&sink, harness.message(&format!("m-{number}")))).collect();
    tokio::time::sleep(SHORT_TIMEOUT / 4).await;
    assert_no_secret(&format!("{sink:?}"));
    for publishing in publishing {
        assert!(publishing.await.unwrap().is_err());
    }
    harness.take_down().await;
    harness.thaw().await;
    without_secrets(sink.probe().await.unwrap_err());
    assert_no_secret(&format!("{sink:?}"));
    assert_no_secret(&format!("{:?}", harness.message("m")));
}
