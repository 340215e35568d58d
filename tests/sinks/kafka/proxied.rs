//! A client behind a proxy is affected by that proxy alone.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{Producer, PurgeConfig};

use crate::kafka::producer::{producer, record, send};
use crate::support::kafka::proxied::ProxiedBroker;

/// Shorter than librdkafka's pause before a retry.
const RETRY_PAUSE: Duration = Duration::from_secs(2);

#[fixture::test]
async fn a_client_uses_only_its_proxy() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let producer = producer(&broker.brokers(), &[]);
    let (before, payload) = (broker.sent(), vec![b'x'; 100_000]);

    send(&producer, record(&topic.name, "one", &payload)).await.outcome.unwrap();

    assert!(broker.sent() - before > 100_000, "{} bytes", broker.sent() - before);
    assert_eq!(topic.read_ids().await, ["one"]);
}

#[fixture::test]
async fn a_frozen_proxy_holds_a_send_until_it_is_thawed() {
    let (broker, other) = (ProxiedBroker::take().await, ProxiedBroker::take().await);
    let topic = broker.topic(1).await;
    let (held, free) = (producer(&broker.brokers(), &[]), producer(&other.brokers(), &[]));
    send(&held, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    broker.freeze();
    let mut sending = Box::pin(send(&held, record(&topic.name, "held", b"x")));
    assert!(tokio::time::timeout(RETRY_PAUSE, &mut sending).await.is_err());
    send(&free, record(&topic.name, "free", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "free"]);
    broker.thaw();

    sending.await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "free", "held"]);
}

#[fixture::test]
async fn a_proxy_that_is_cut_and_refuses_blocks_the_broker() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let producer = producer(&broker.brokers(), &[]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    broker.refuse(true);
    broker.cut();
    let look = producer.client().fetch_metadata(None, RETRY_PAUSE);
    assert!(look.is_err());
    broker.refuse(false);

    send(&producer, record(&topic.name, "after", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "after"]);
}

#[fixture::test]
async fn a_dropped_proxy_is_reset() {
    for _ in 0..20 {
        let broker = ProxiedBroker::take().await;
        let producer = producer(&broker.brokers(), &[]);
        producer.client().fetch_metadata(None, Duration::from_secs(10)).unwrap();
        broker.freeze();
        broker.refuse(true);
        broker.delay(Duration::from_secs(60));
    }
}

#[fixture::test]
async fn a_send_whose_answer_was_cut_off_is_repeated_and_stored_once() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let producer = producer(&broker.brokers(), &[]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    broker.hold_answers(true);
    let cutting = async {
        topic.until(2).await;
        broker.cut();
        broker.hold_answers(false);
    };
    let (sent, ()) = tokio::join!(send(&producer, record(&topic.name, "cut", b"x")), cutting);

    assert_eq!(sent.outcome, Ok((0, 1)));
    assert_eq!(topic.read_ids().await, ["before", "cut"]);
}

#[fixture::test]
async fn an_unanswered_send_times_out_and_may_have_arrived() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let producer = producer(&broker.brokers(), &[("message.timeout.ms", "2000")]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    broker.hold_answers(true);
    let sent = send(&producer, record(&topic.name, "unheard", b"x")).await;
    broker.hold_answers(false);

    assert_eq!(sent.outcome, Err(RDKafkaErrorCode::MessageTimedOut));
    send(&producer, record(&topic.name, "after", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "unheard", "after"]);
}

#[fixture::test]
async fn a_purged_send_reports_it() {
    let broker = ProxiedBroker::take().await;
    let topic = broker.topic(1).await;
    let producer = producer(&broker.brokers(), &[]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();
    broker.hold_answers(true);

    let purging = async {
        topic.until(2).await;
        producer.purge(PurgeConfig::default().queue().inflight());
    };
    let (sent, ()) = tokio::join!(send(&producer, record(&topic.name, "purged", b"x")), purging);
    broker.hold_answers(false);

    assert_eq!(sent.outcome, Err(RDKafkaErrorCode::PurgeInflight));
}
