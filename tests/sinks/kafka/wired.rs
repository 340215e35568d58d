//! A client behind a proxy feels what is done to the proxy, and only to that.

use std::time::Duration;

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::producer::{Producer, PurgeConfig};

use crate::kafka::producer::{producer, record, send};
use crate::support::kafka::wired::Wired;

/// Less than librdkafka waits before it tries again.
const PATIENCE: Duration = Duration::from_secs(2);

#[fixture::test]
async fn a_client_goes_by_the_wire_and_by_nothing_else() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let producer = producer(&wired.brokers(), &[]);
    let (before, payload) = (wired.sent(), vec![b'x'; 100_000]);

    send(&producer, record(&topic.name, "one", &payload)).await.outcome.unwrap();

    assert!(wired.sent() - before > 100_000, "{} bytes", wired.sent() - before);
    assert_eq!(topic.read_ids().await, ["one"]);
}

#[fixture::test]
async fn a_frozen_wire_holds_a_send_until_it_is_thawed() {
    let (wired, other) = (Wired::take().await, Wired::take().await);
    let topic = wired.topic(1).await;
    let (held, free) = (producer(&wired.brokers(), &[]), producer(&other.brokers(), &[]));
    send(&held, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    wired.freeze();
    let mut sending = Box::pin(send(&held, record(&topic.name, "held", b"x")));
    assert!(tokio::time::timeout(PATIENCE, &mut sending).await.is_err());
    send(&free, record(&topic.name, "free", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "free"]);
    wired.thaw();

    sending.await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "free", "held"]);
}

#[fixture::test]
async fn a_wire_that_is_cut_and_refuses_is_no_way_to_the_broker() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let producer = producer(&wired.brokers(), &[]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    wired.refuse(true);
    wired.cut();
    let look = producer.client().fetch_metadata(None, PATIENCE);
    assert!(look.is_err());
    wired.refuse(false);

    send(&producer, record(&topic.name, "after", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "after"]);
}

#[fixture::test]
async fn a_wire_is_given_back_in_good_order() {
    for _ in 0..20 {
        let wired = Wired::take().await;
        let producer = producer(&wired.brokers(), &[]);
        producer.client().fetch_metadata(None, Duration::from_secs(10)).unwrap();
        wired.freeze();
        wired.refuse(true);
        wired.delay(Duration::from_secs(60));
    }
}

#[fixture::test]
async fn a_send_whose_answer_was_cut_off_is_repeated_and_stored_once() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let producer = producer(&wired.brokers(), &[]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    wired.hold_answers(true);
    let cutting = async {
        topic.until(2).await;
        wired.cut();
        wired.hold_answers(false);
    };
    let (sent, ()) = tokio::join!(send(&producer, record(&topic.name, "cut", b"x")), cutting);

    assert_eq!(sent.outcome, Ok((0, 1)));
    assert_eq!(topic.read_ids().await, ["before", "cut"]);
}

#[fixture::test]
async fn a_send_that_nobody_answers_times_out_and_may_have_arrived() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let producer = producer(&wired.brokers(), &[("message.timeout.ms", "2000")]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    wired.hold_answers(true);
    let sent = send(&producer, record(&topic.name, "unheard", b"x")).await;
    wired.hold_answers(false);

    assert_eq!(sent.outcome, Err(RDKafkaErrorCode::MessageTimedOut));
    send(&producer, record(&topic.name, "after", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "unheard", "after"]);
}

#[fixture::test]
async fn a_send_purged_on_its_way_says_so() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let producer = producer(&wired.brokers(), &[]);
    send(&producer, record(&topic.name, "before", b"x")).await.outcome.unwrap();
    wired.hold_answers(true);

    let purging = async {
        topic.until(2).await;
        producer.purge(PurgeConfig::default().queue().inflight());
    };
    let (sent, ()) = tokio::join!(send(&producer, record(&topic.name, "purged", b"x")), purging);
    wired.hold_answers(false);

    assert_eq!(sent.outcome, Err(RDKafkaErrorCode::PurgeInflight));
}
