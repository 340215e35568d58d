//! What a broker refuses: the record's own doing, and nobody else's.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use postrider::sink::kafka::Kafka;
use postrider::sink::{Message, PublishFailure, Sink};

use super::util::{
    AT_ONCE, Outcome, connected, connected_with, ids, publish_all, shared_sink, start, until_taken,
    verdict,
};
use crate::support::kafka::topic::Topic;
use crate::support::kafka::wired::Wired;
use crate::support::message::message;

const COUNT: usize = 12;

/// Waits long enough that all that comes at once is one batch, and is ready for it.
async fn in_one_batch(wired: &Wired, topic: &Topic) -> Arc<Kafka> {
    let sink = connected_with(&wired.direct(), [("linger.ms", "500")]).await;
    sink.publish(message("before", &topic.name, "k")).await.unwrap();
    sink
}

/// Several at once, of which those in `bad` are spoilt.
async fn publish_spoilt(
    sink: &Arc<Kafka>,
    topic: &Topic,
    bad: &[usize],
    spoil: impl Fn(Message) -> Message,
) -> Vec<Outcome> {
    let messages = (0..COUNT).map(|number| {
        // Each of another key, as a relay has them.
        let message = message(format!("{number:02}"), &topic.name, &number.to_string());
        if bad.contains(&number) { spoil(message) } else { message }
    });
    publish_all(sink, messages).await
}

/// Exactly these were refused, in these words; the others are there once each.
async fn only_the_bad_were_refused(
    outcomes: &[Outcome],
    bad: &[usize],
    expected: PublishFailure,
    topic: &Topic,
) {
    let mut there = Vec::new();
    for (number, outcome) in outcomes.iter().enumerate() {
        let expected = bad.contains(&number).then_some(expected);
        assert_eq!(verdict(outcome), expected, "{number}: {outcome:?}");
        match outcome {
            Ok(()) => there.push(format!("{number:02}")),
            Err(error) => assert!(error.detail.contains(&topic.name), "{error}"),
        }
    }
    there.push("before".to_owned());
    assert_eq!(ids(topic).await, there);
}

fn large(message: Message) -> Message {
    // Random, so that no compression makes it small.
    let payload = (0..8_000).map(|_| rand::random()).collect();
    Message { payload: Some(payload), ..message }
}

fn untimely(message: Message) -> Message {
    // An hour ahead is the most, unless the topic says otherwise.
    Message { timestamp: Some(SystemTime::now() + Duration::from_secs(7_200)), ..message }
}

#[fixture::test]
async fn a_message_above_its_topics_limit_is_too_large_and_its_batch_is_not() {
    let wired = Wired::take().await;
    for bad in [&[5][..], &[0, 11]] {
        let topic = wired.topic_with(1, &[("max.message.bytes", "4000")]).await;
        let sink = in_one_batch(&wired, &topic).await;

        let outcomes = publish_spoilt(&sink, &topic, bad, large).await;

        only_the_bad_were_refused(&outcomes, bad, PublishFailure::TooLarge, &topic).await;
    }
}

#[fixture::test]
async fn small_messages_whose_batch_is_too_large_are_confirmed() {
    let wired = Wired::take().await;
    let topic = wired.topic_with(1, &[("max.message.bytes", "4000")]).await;
    let sink = in_one_batch(&wired, &topic).await;
    let sizable = |message| {
        let payload = (0..1_500).map(|_| rand::random()).collect();
        Message { payload: Some(payload), ..message }
    };
    let all: Vec<usize> = (0..COUNT).collect();

    let outcomes = publish_spoilt(&sink, &topic, &all, sizable).await;

    only_the_bad_were_refused(&outcomes, &[], PublishFailure::TooLarge, &topic).await;
}

#[fixture::test]
async fn a_message_with_an_impossible_time_is_refused_and_its_batch_is_not() {
    let wired = Wired::take().await;
    // One is told otherwise than two.
    for bad in [&[5][..], &[5, 7]] {
        let topic = wired.topic(1).await;
        let sink = in_one_batch(&wired, &topic).await;

        let outcomes = publish_spoilt(&sink, &topic, bad, untimely).await;

        only_the_bad_were_refused(&outcomes, bad, PublishFailure::Rejected, &topic).await;
    }
}

#[fixture::test]
async fn the_bad_of_two_kinds_in_one_batch_are_told_apart() {
    let wired = Wired::take().await;
    let topic = wired.topic_with(1, &[("max.message.bytes", "4000")]).await;
    let sink = in_one_batch(&wired, &topic).await;
    let messages = [
        message("good", &topic.name, "a"),
        large(message("large", &topic.name, "b")),
        untimely(message("untimely", &topic.name, "c")),
    ];

    let outcomes = publish_all(&sink, messages).await;

    let verdicts: Vec<_> = outcomes.iter().map(verdict).collect();
    assert_eq!(
        verdicts,
        [None, Some(PublishFailure::TooLarge), Some(PublishFailure::Rejected)],
        "{outcomes:?}"
    );
    assert_eq!(ids(&topic).await, ["before", "good"]);
}

#[fixture::test]
async fn a_compacted_topic_takes_records_without_a_key_of_their_own_and_tombstones() {
    let wired = Wired::take().await;
    let topic = wired.topic_with(1, &[("cleanup.policy", "compact")]).await;
    let sink = in_one_batch(&wired, &topic).await;
    let bare = |message: Message| {
        let mut address = message.address;
        address.key = None;
        Message { key: None, payload: None, address, ..message }
    };

    let outcomes = publish_spoilt(&sink, &topic, &[2, 3], bare).await;

    only_the_bad_were_refused(&outcomes, &[], PublishFailure::Rejected, &topic).await;
}

#[fixture::test]
async fn a_missing_topic_is_charged_soon_and_delays_no_other() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let sink = connected(&wired.direct()).await;
    let begin = Instant::now();
    let missing: Vec<_> = (0..100)
        .map(|number| message(format!("missing {number}"), "no-such-topic", &number.to_string()))
        .map(|message| start(&sink, message))
        .collect();
    let messages =
        (0..100).map(|number| message(format!("{number:03}"), &topic.name, &number.to_string()));

    let outcomes = publish_all(&sink, messages).await;

    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    for publishing in missing {
        let error = publishing.await.unwrap().unwrap_err();
        assert_eq!(error.failure, PublishFailure::Retryable, "{error}");
        assert!(error.detail.contains("\"no-such-topic\""), "{error}");
    }
    assert!(begin.elapsed() < AT_ONCE * 2, "{:?}", begin.elapsed());
    assert_eq!(ids(&topic).await.len(), 100);
}

#[fixture::test]
async fn many_missing_topics_delay_no_other() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let sink = connected(&wired.direct()).await;
    let missing: Vec<_> = (0..100)
        .map(|number| message("m", &format!("no-such-topic-{number}"), "k"))
        .map(|message| start(&sink, message))
        .collect();
    let begin = Instant::now();

    sink.publish(message("good", &topic.name, "k")).await.unwrap();

    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    for publishing in missing {
        let outcome = publishing.await.unwrap();
        assert_eq!(verdict(&outcome), Some(PublishFailure::Retryable), "{outcome:?}");
    }
    assert!(begin.elapsed() < AT_ONCE * 3, "{:?}", begin.elapsed());
}

#[fixture::test]
async fn a_topic_deleted_in_use_is_charged_and_found_when_it_is_made_anew() {
    let wired = Wired::take().await;
    let (topic, other) = (wired.topic(1).await, wired.topic(1).await);
    let limit = Duration::from_secs(4);
    let sink = shared_sink(&wired.direct(), limit, []);
    sink.probe().await.unwrap();
    sink.publish(message("before", &topic.name, "k")).await.unwrap();

    topic.delete().await;

    let lost = |number| message(format!("lost {number}"), &topic.name, "k");
    let first = start(&sink, lost(0));
    let begin = Instant::now();
    sink.publish(message("kept", &other.name, "k")).await.unwrap();
    assert!(begin.elapsed() < AT_ONCE, "{:?}", begin.elapsed());
    // It may be on its way again, so the producer hopes for a while; not until the time is up.
    let first = first.await.unwrap();
    assert_eq!(verdict(&first), Some(PublishFailure::Retryable), "{first:?}");
    assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());
    let begin = Instant::now();
    let outcomes = publish_all(&sink, (1..20).map(lost)).await;
    assert!(
        outcomes.iter().all(|one| verdict(one) == Some(PublishFailure::Retryable)),
        "{outcomes:?}"
    );
    assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());
    let topic = Topic::named(&wired.direct(), &topic.name, 1, &[]).await;
    until_taken(&sink, message("after", &topic.name, "k")).await;
    assert_eq!(topic.read_ids().await, ["after"]);
}

#[fixture::test]
async fn a_topic_made_after_it_was_missed_is_found() {
    let wired = Wired::take().await;
    let sink = connected(&wired.direct()).await;
    let name = format!("test-{}", uuid::Uuid::new_v4().simple());
    let first = sink.publish(message("early", &name, "k")).await;
    assert_eq!(verdict(&first), Some(PublishFailure::Retryable), "{first:?}");

    let topic = Topic::named(&wired.direct(), &name, 1, &[]).await;

    until_taken(&sink, message("late", &name, "k")).await;
    assert_eq!(topic.read_ids().await, ["late"]);
}
