//! How librdkafka reports what a broker refuses, and the outcome of other messages in the batch.
//!
//! The sink relies on these: a new librdkafka that answers otherwise fails here.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::FutureProducer;

use crate::kafka::producer::{Sent, outcomes, producer, record, send, send_all};
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;

const BOTH: [&str; 2] = ["true", "false"];

/// The one of eleven that is refused.
const BAD_AT: usize = 5;

const NUMBERS: [&str; 11] = ["00", "01", "02", "03", "04", "05", "06", "07", "08", "09", "10"];

/// Waits long enough that all that is sent at once is one batch.
fn in_one_batch(broker: &ProxiedBroker, idempotent: &str) -> FutureProducer {
    producer(&broker.direct(), &[("enable.idempotence", idempotent), ("linger.ms", "500")])
}

/// Each message is a request, and five of them are in flight.
fn one_by_one(broker: &ProxiedBroker, idempotent: &str) -> FutureProducer {
    let settings =
        [("enable.idempotence", idempotent), ("linger.ms", "0"), ("batch.num.messages", "1")];
    producer(&broker.direct(), &settings)
}

/// Eleven, of which those in `bad` have a timestamp two hours ahead.
async fn send_eleven_with_future_times(
    producer: &FutureProducer,
    topic: &Topic,
    bad: &[usize],
) -> Vec<Sent> {
    let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis());
    let (now, late) = (now.unwrap(), now.unwrap() + 7_200_000);
    let records = NUMBERS.iter().enumerate().map(|(number, id)| {
        let timestamp = if bad.contains(&number) { late } else { now };
        record(&topic.name, id, b"x").timestamp(timestamp)
    });
    send_all(producer, records).await
}

/// Eleven, of which one is above the topic's limit.
async fn send_eleven_one_large(producer: &FutureProducer, topic: &Topic) -> Vec<Sent> {
    let large = vec![b'x'; 5_000];
    let records = NUMBERS.iter().enumerate().map(|(number, id)| {
        let payload = if number == BAD_AT { large.as_slice() } else { b"small" };
        record(&topic.name, id, payload)
    });
    send_all(producer, records).await
}

fn all_but_the_bad() -> Vec<&'static str> {
    NUMBERS.iter().enumerate().filter(|(number, _)| *number != BAD_AT).map(|(_, id)| *id).collect()
}

fn assert_all(sent: &[Sent], code: RDKafkaErrorCode) {
    assert!(sent.iter().all(|one| one.outcome == Err(code)), "{:?}", outcomes(sent));
}

/// Asserts that only the bad one failed, and the rest is in order.
async fn assert_only_the_bad(sent: &[Sent], code: RDKafkaErrorCode, topic: &Topic) {
    for (number, one) in sent.iter().enumerate() {
        let bad = one.outcome == Err(code);
        assert!(if number == BAD_AT { bad } else { one.outcome.is_ok() }, "{:?}", outcomes(sent));
    }
    assert_eq!(topic.read_ids().await, all_but_the_bad());
}

#[fixture::test]
async fn a_message_above_the_topics_limit_fails_its_batch() {
    let broker = ProxiedBroker::take().await;
    for idempotent in BOTH {
        let topic = broker.topic_with(1, &[("max.message.bytes", "4000")]).await;
        let producer = in_one_batch(&broker, idempotent);

        let sent = send_eleven_one_large(&producer, &topic).await;

        assert_all(&sent, RDKafkaErrorCode::MessageSizeTooLarge);
        send(&producer, record(&topic.name, "after", b"x")).await.outcome.unwrap();
        assert_eq!(topic.read_ids().await, ["after"]);
    }
}

#[fixture::test]
async fn a_batch_of_small_messages_may_be_too_large_for_a_topic() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic_with(1, &[("max.message.bytes", "4000")]).await;
    let payload = vec![b'x'; 1_000];
    let eleven = || NUMBERS.iter().map(|id| record(&topic.name, id, &payload));

    let sent = send_all(&in_one_batch(&broker, "true"), eleven()).await;
    assert_all(&sent, RDKafkaErrorCode::MessageSizeTooLarge);
    let sent = send_all(&one_by_one(&broker, "true"), eleven()).await;

    assert!(sent.iter().all(|one| one.outcome.is_ok()), "{:?}", outcomes(&sent));
    assert_eq!(topic.read_ids().await, NUMBERS);
}

#[fixture::test]
async fn a_message_refused_alone_leaves_the_others_in_order() {
    let broker = ProxiedBroker::take().await;
    for idempotent in BOTH {
        let producer = one_by_one(&broker, idempotent);
        let topic = broker.topic_with(1, &[("max.message.bytes", "4000")]).await;
        let sent = send_eleven_one_large(&producer, &topic).await;
        assert_only_the_bad(&sent, RDKafkaErrorCode::MessageSizeTooLarge, &topic).await;

        let topic = broker.topic(1).await;
        let sent = send_eleven_with_future_times(&producer, &topic, &[BAD_AT]).await;
        assert_only_the_bad(&sent, RDKafkaErrorCode::InvalidTimestamp, &topic).await;
    }
}

#[fixture::test]
async fn one_wrong_timestamp_fails_the_whole_batch() {
    let broker = ProxiedBroker::take().await;
    for idempotent in BOTH {
        // The default limit of a topic is an hour ahead.
        let topic = broker.topic(1).await;
        let producer = in_one_batch(&broker, idempotent);

        let sent = send_eleven_with_future_times(&producer, &topic, &[BAD_AT]).await;

        // The broker names the culprit; librdkafka 2.12 overwrites that answer when there is only
        // one (`rd_kafka_interceptors_on_acknowledgement_queue`).
        assert_all(&sent, RDKafkaErrorCode::InvalidTimestamp);
        assert_eq!(topic.read().await, []);
    }
}

#[fixture::test]
async fn two_wrong_timestamps_are_named_without_the_reason() {
    let broker = ProxiedBroker::take().await;
    for idempotent in BOTH {
        let topic = broker.topic(1).await;
        let producer = in_one_batch(&broker, idempotent);

        let sent = send_eleven_with_future_times(&producer, &topic, &[BAD_AT, 7]).await;

        for (number, one) in sent.iter().enumerate() {
            let code = match number {
                BAD_AT | 7 => RDKafkaErrorCode::InvalidRecord,
                _ => RDKafkaErrorCode::InvalidDifferentRecord,
            };
            assert_eq!(one.outcome, Err(code), "{:?}", outcomes(&sent));
        }
        assert_eq!(topic.read().await, []);
    }
}

#[fixture::test]
async fn a_compacted_topic_refuses_a_batch_with_a_keyless_message() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic_with(1, &[("cleanup.policy", "compact")]).await;
    let records = NUMBERS.iter().enumerate().map(|(number, id)| {
        let mut record = record(&topic.name, id, b"x");
        record.key = record.key.filter(|_| number != BAD_AT);
        record
    });

    let sent = send_all(&in_one_batch(&broker, "true"), records).await;

    assert_all(&sent, RDKafkaErrorCode::InvalidRecord);
}

#[fixture::test]
async fn a_message_refused_by_the_client_fails_at_once() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let producer = producer(&broker.direct(), &[]);
    send(&producer, record(&topic.name, "known", b"x")).await.outcome.unwrap();
    let huge = vec![b'x'; 1_000_001];

    let too_large = send(&producer, record(&topic.name, "huge", &huge)).await;
    let no_partition = send(&producer, record(&topic.name, "x", b"x").partition(7)).await;

    assert_eq!(too_large.outcome, Err(RDKafkaErrorCode::MessageSizeTooLarge));
    assert_eq!(no_partition.outcome, Err(RDKafkaErrorCode::UnknownPartition));
    assert!(too_large.took.max(no_partition.took) < Duration::from_millis(500));
}
