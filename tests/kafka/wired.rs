//! A client behind a wire feels what is done to the wire, and only to that.

use std::time::Duration;

use rdkafka::producer::Producer;

use crate::producer::{producer, record, send};
use crate::support::kafka::wired::Wired;

/// Less than librdkafka waits before it tries again.
const PATIENCE: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_by_the_wire_and_by_nothing_else() {
    let wired = Wired::take().await;
    let topic = wired.topic(1).await;
    let producer = producer(&wired.brokers(), &[]);
    let (before, payload) = (wired.sent(), vec![b'x'; 100_000]);

    send(&producer, record(&topic.name, "one", &payload)).await.outcome.unwrap();

    assert!(wired.sent() - before > 100_000, "{} bytes", wired.sent() - before);
    assert_eq!(topic.read_ids().await, ["one"]);
    topic.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_wire_holds_a_send_until_it_is_thawed() {
    let (wired, other) = (Wired::take().await, Wired::take().await);
    let topic = wired.topic(1).await;
    let (held, free) = (producer(&wired.brokers(), &[]), producer(&other.brokers(), &[]));
    send(&held, record(&topic.name, "before", b"x")).await.outcome.unwrap();

    wired.freeze(true);
    let mut sending = Box::pin(send(&held, record(&topic.name, "held", b"x")));
    assert!(tokio::time::timeout(PATIENCE, &mut sending).await.is_err());
    send(&free, record(&topic.name, "free", b"x")).await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "free"]);
    wired.freeze(false);

    sending.await.outcome.unwrap();
    assert_eq!(topic.read_ids().await, ["before", "free", "held"]);
    topic.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
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
    topic.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wire_is_given_back_in_good_order() {
    for _ in 0..20 {
        let wired = Wired::take().await;
        let producer = producer(&wired.brokers(), &[]);
        producer.client().fetch_metadata(None, Duration::from_secs(10)).unwrap();
        wired.freeze(true);
        wired.refuse(true);
        wired.delay(Duration::from_secs(60));
    }
}
