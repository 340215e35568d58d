//! What a broker refuses costs attempts of that record, and of no other.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use postrider::sink::kafka::Kafka;
use postrider::sink::{Message, PublishFailure, Sink};

use super::util::{
    AT_ONCE_LIMIT, Outcome, connected, connected_with, failure, ids, publish_all, shared_sink,
    start, until_taken,
};
use crate::support::environment::unique;
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;
use crate::support::message::message;

const COUNT: usize = 12;

/// Waits long enough that all that is sent at once is one batch, and is ready for it.
async fn in_one_batch(broker: &ProxiedBroker, topic: &Topic) -> Arc<Kafka> {
    let sink = connected_with(&broker.direct(), [("linger.ms", "500")]).await;
    sink.publish(message("before", &topic.name, "k")).await.unwrap();
    sink
}

/// Publishes several at once; those in `bad` are invalid.
async fn publish_with_bad(
    sink: &Arc<Kafka>,
    topic: &Topic,
    bad: &[usize],
    spoil: impl Fn(Message) -> Message,
) -> Vec<Outcome> {
    let messages = (0..COUNT).map(|number| {
        // Each of another key, as a relay sends them.
        let message = message(format!("{number:02}"), &topic.name, &number.to_string());
        if bad.contains(&number) { spoil(message) } else { message }
    });
    publish_all(sink, messages).await
}

/// Asserts that exactly these were refused, with this error; the others are there once each.
async fn assert_only_the_bad_refused(
    outcomes: &[Outcome],
    bad: &[usize],
    expected: PublishFailure,
    topic: &Topic,
) {
    let mut there = Vec::new();
    for (number, outcome) in outcomes.iter().enumerate() {
        let expected = bad.contains(&number).then_some(expected);
        assert_eq!(failure(outcome), expected, "{number}: {outcome:?}");
        match outcome {
            Ok(()) => there.push(format!("{number:02}")),
            Err(error) => assert!(error.detail.contains(&topic.name), "{error}"),
        }
    }
    there.push("before".to_owned());
    assert_eq!(ids(topic).await, there);
}

fn large(message: Message) -> Message {
    // Random, so that it does not compress.
    let payload = (0..8_000).map(|_| rand::random()).collect();
    Message { payload: Some(payload), ..message }
}

fn with_future_time(message: Message) -> Message {
    // The default limit of a topic is an hour ahead.
    Message { timestamp: Some(SystemTime::now() + Duration::from_secs(7_200)), ..message }
}

#[fixture::test]
async fn a_message_above_the_topics_limit_fails_and_its_batch_does_not() {
    let broker = ProxiedBroker::take().await;
    for bad in [&[5][..], &[0, 11]] {
        let topic = broker.topic_with(1, &[("max.message.bytes", "4000")]).await;
        let sink = in_one_batch(&broker, &topic).await;

        let outcomes = publish_with_bad(&sink, &topic, bad, large).await;

        assert_only_the_bad_refused(&outcomes, bad, PublishFailure::TooLarge, &topic).await;
    }
}

#[fixture::test]
async fn small_messages_whose_batch_is_too_large_are_confirmed() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic_with(1, &[("max.message.bytes", "4000")]).await;
    let sink = in_one_batch(&broker, &topic).await;
    let sizable = |message| {
        let payload = (0..1_500).map(|_| rand::random()).collect();
        Message { payload: Some(payload), ..message }
    };
    let all: Vec<usize> = (0..COUNT).collect();

    let outcomes = publish_with_bad(&sink, &topic, &all, sizable).await;

    assert_only_the_bad_refused(&outcomes, &[], PublishFailure::TooLarge, &topic).await;
}

#[fixture::test]
async fn a_message_with_an_invalid_time_gets_the_time_of_publishing() {
    type Spoil = fn(Message) -> Message;

    let broker = ProxiedBroker::take().await;
    let with_past_time =
        |message| Message { timestamp: Some(UNIX_EPOCH + Duration::from_secs(1)), ..message };
    let cases: [(&[usize], Spoil); 3] =
        // One is reported differently from two.
        [(&[5], with_future_time), (&[5, 7], with_future_time), (&[5], with_past_time)];
    for (bad, spoil) in cases {
        let topic = broker.topic_with(1, &[TWENTY_YEARS_AT_MOST]).await;
        let sink = in_one_batch(&broker, &topic).await;
        let published = millis(SystemTime::now());

        let outcomes = publish_with_bad(&sink, &topic, bad, spoil).await;

        assert_only_the_bad_refused(&outcomes, &[], PublishFailure::Rejected, &topic).await;
        let until = millis(SystemTime::now());
        for record in topic.read().await {
            let is_bad = record.id().parse().is_ok_and(|number| bad.contains(&number));
            assert_eq!((published..=until).contains(&record.timestamp), is_bad, "{record:?}");
            let sent = message(record.id(), &topic.name, "k");
            assert_eq!(record.payload, sent.payload, "{record:?}");
        }
    }
}

/// The tests' own times are later.
const TWENTY_YEARS_AT_MOST: (&str, &str) = ("message.timestamp.before.max.ms", "631152000000");

fn millis(time: SystemTime) -> i64 {
    i64::try_from(time.duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[fixture::test]
async fn two_kinds_of_errors_in_one_batch_are_distinguished() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic_with(1, &[("max.message.bytes", "4000")]).await;
    let sink = in_one_batch(&broker, &topic).await;
    let messages = [
        message("good", &topic.name, "a"),
        large(message("large", &topic.name, "b")),
        with_future_time(message("with_future_time", &topic.name, "c")),
    ];

    let outcomes = publish_all(&sink, messages).await;

    let verdicts: Vec<_> = outcomes.iter().map(failure).collect();
    assert_eq!(verdicts, [None, Some(PublishFailure::TooLarge), None], "{outcomes:?}");
    assert_eq!(ids(&topic).await, ["before", "good", "with_future_time"]);
}

#[fixture::test]
async fn a_compacted_topic_accepts_keyless_records_and_tombstones() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic_with(1, &[("cleanup.policy", "compact")]).await;
    let sink = in_one_batch(&broker, &topic).await;
    let bare = |message: Message| {
        let mut address = message.address;
        address.key = None;
        Message { key: None, payload: None, address, ..message }
    };

    let outcomes = publish_with_bad(&sink, &topic, &[2, 3], bare).await;

    assert_only_the_bad_refused(&outcomes, &[], PublishFailure::Rejected, &topic).await;
}

#[fixture::test]
async fn a_missing_topic_counts_attempts_and_delays_no_other() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let sink = connected(&broker.direct()).await;
    let begin = Instant::now();
    let missing: Vec<_> = (0..100)
        .map(|number| message(format!("missing {number}"), "no-such-topic", &number.to_string()))
        .map(|message| start(&sink, message))
        .collect();
    let messages =
        (0..100).map(|number| message(format!("{number:03}"), &topic.name, &number.to_string()));

    let outcomes = publish_all(&sink, messages).await;

    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    assert!(begin.elapsed() < AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    for publishing in missing {
        let error = publishing.await.unwrap().unwrap_err();
        assert_eq!(error.failure, PublishFailure::Retryable, "{error}");
        assert!(error.detail.contains("\"no-such-topic\""), "{error}");
    }
    assert!(begin.elapsed() < AT_ONCE_LIMIT * 2, "{:?}", begin.elapsed());
    assert_eq!(ids(&topic).await.len(), 100);
}

#[fixture::test]
async fn many_missing_topics_delay_no_other() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let sink = connected(&broker.direct()).await;
    let missing: Vec<_> = (0..100)
        .map(|number| message("m", &format!("no-such-topic-{number}"), "k"))
        .map(|message| start(&sink, message))
        .collect();
    let begin = Instant::now();

    sink.publish(message("good", &topic.name, "k")).await.unwrap();

    assert!(begin.elapsed() < AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    for publishing in missing {
        let outcome = publishing.await.unwrap();
        assert_eq!(failure(&outcome), Some(PublishFailure::Retryable), "{outcome:?}");
    }
    assert!(begin.elapsed() < AT_ONCE_LIMIT * 3, "{:?}", begin.elapsed());
}

#[fixture::test]
async fn a_topic_deleted_in_use_is_found_when_it_is_recreated() {
    let broker = ProxiedBroker::take().await;
    let (topic, other) = (broker.topic(1).await, broker.topic(1).await);
    let limit = Duration::from_secs(4);
    let sink = shared_sink(&broker.direct(), limit, []);
    sink.probe().await.unwrap();
    sink.publish(message("before", &topic.name, "k")).await.unwrap();

    topic.delete().await;

    let lost = |number| message(format!("lost {number}"), &topic.name, "k");
    let first = start(&sink, lost(0));
    let begin = Instant::now();
    sink.publish(message("kept", &other.name, "k")).await.unwrap();
    assert!(begin.elapsed() < AT_ONCE_LIMIT, "{:?}", begin.elapsed());
    // It may be created at this moment, so the producer waits, but not until its timeout.
    let first = first.await.unwrap();
    assert_eq!(failure(&first), Some(PublishFailure::Retryable), "{first:?}");
    assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());
    let begin = Instant::now();
    let outcomes = publish_all(&sink, (1..20).map(lost)).await;
    assert!(
        outcomes.iter().all(|one| failure(one) == Some(PublishFailure::Retryable)),
        "{outcomes:?}"
    );
    assert!(begin.elapsed() < limit, "{:?}", begin.elapsed());
    let topic = Topic::named(&broker.direct(), &topic.name, 1, &[]).await;
    until_taken(&sink, message("after", &topic.name, "k")).await;
    assert_eq!(topic.read_ids().await, ["after"]);
}

#[fixture::test]
async fn a_record_in_flight_when_its_topic_is_deleted_is_refused() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    // The record is sent again at once, so it is in flight when the producer removes the partition.
    let properties = [("topic.metadata.propagation.max.ms", "500"), ("retry.backoff.ms", "1")];
    let sink = connected_with(&broker.brokers(), properties).await;
    sink.publish(message("before", &topic.name, "k")).await.unwrap();
    broker.delay(Duration::from_millis(100));

    topic.delete().await;
    let outcome = sink.publish(message("lost", &topic.name, "k")).await;

    assert_eq!(failure(&outcome), Some(PublishFailure::Retryable), "{outcome:?}");
}

#[fixture::test]
async fn a_topic_created_after_a_failure_is_found() {
    let broker = ProxiedBroker::take().await;
    let sink = connected(&broker.direct()).await;
    let name = unique("test-");
    let first = sink.publish(message("early", &name, "k")).await;
    assert_eq!(failure(&first), Some(PublishFailure::Retryable), "{first:?}");

    let topic = Topic::named(&broker.direct(), &name, 1, &[]).await;

    until_taken(&sink, message("late", &name, "k")).await;
    assert_eq!(topic.read_ids().await, ["late"]);
}
