//! A partition changes its owner: no record is published by two instances, and none waits longer
//! than necessary.

use std::time::Duration;

use bson::doc;
use postrider::partition::of_key;

use crate::instance::{Instance, Options, assignments, counts};
use crate::support::history::{arrivals, judge, read_back};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::producers::Producers;
use crate::support::sink::{Fault, TestSink};

/// A rebalance or a stale heartbeat cannot be the reason: both take a minute here.
#[fixture::test]
async fn partitions_of_a_stopping_instance_are_claimed_at_once() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let one = Instance::start(&outbox.collections, &sink, &Options::patient());
    one.until_owned(256).await;
    let two = Instance::start(&outbox.collections, &sink, &Options::patient());
    eventually("it to ask", || async {
        let asks = doc! { "asks": true };
        let instances =
            outbox.collections.database().collection::<bson::Document>("outbox_instances");
        instances.count_documents(asks).await.unwrap() == 1
    })
    .await;
    assert_eq!(two.owned(), 0);

    one.stop().await;

    two.until_owned(256).await;
    outbox.insert([record("r", "k")]).await;
    sink.until("a delivery by the other", |arrived| arrived.len() == 1).await;
    two.stop().await;
}

/// The old owner waits for what is in flight and releases the rest without a counted attempt; the
/// new owner continues from there.
#[fixture::test]
async fn a_partition_is_released_when_its_records_are_settled() {
    let outbox = TestOutbox::new().await;
    let (old, new) = (TestSink::default(), TestSink::default());
    let one = Instance::start(&outbox.collections, &old, &Options::default());
    one.until_owned(256).await;
    old.script("k/0", [Fault::Hold]);
    outbox.insert((0..20).map(|n| record(&format!("k/{n}"), &key()))).await;
    eventually("the first to be in flight", || async { old.is_under_way("k/0") }).await;

    let two = Instance::start(&outbox.collections, &new, &Options::default());
    two.until_owned(127).await;

    // All but the one that waits for its broker.
    assert_eq!(counts(&outbox, &[one.id, two.id]).await, [129, 127]);
    assert_eq!(one.owned(), 128);
    assert!(new.ids().is_empty());
    old.release();
    two.until_owned(128).await;
    new.until("the rest", |arrived| arrived.len() == 19).await;
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 20).await;
    assert_eq!(old.ids(), ["k/0"]);
    let expected: Vec<String> = (1..20).map(|n| format!("k/{n}")).collect();
    assert_eq!(new.ids(), expected);
    one.stop().await;
    two.stop().await;
}

/// A key in the partitions that the second of two instances gets.
fn key() -> String {
    (0..).map(|n| format!("key-{n}")).find(|key| of_key(key) >= 128).unwrap()
}

#[fixture::test]
async fn a_stopping_instance_releases_idle_partitions_first() {
    let outbox = TestOutbox::new().await;
    let (old, new) = (TestSink::default(), TestSink::default());
    let one = Instance::start(&outbox.collections, &old, &Options::patient());
    one.until_owned(256).await;
    old.script("k/0", [Fault::Hold]);
    outbox.insert([record("k/0", &key())]).await;
    eventually("it to be in flight", || async { old.is_under_way("k/0") }).await;
    let two = Instance::start(&outbox.collections, &new, &Options::patient());

    one.ask_to_stop();

    two.until_owned(255).await;
    old.release();
    one.stop().await;
    two.until_owned(256).await;
    assert!(new.ids().is_empty());
    two.stop().await;
}

/// 1 → 3 → 2 under load, and one of them dies.
#[fixture::test]
async fn instances_that_come_and_die_under_load_keep_the_promise() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let choice = Options {
        stale_after: Duration::from_secs(2),
        lease: Duration::from_secs(3),
        ..Options::default()
    };
    let start = || Instance::start(&outbox.collections, &sink, &choice);
    let one = start();
    one.until_owned(256).await;
    let producers = Producers::start(&outbox, 6);
    producers.until_more(30).await;

    let (two, three) = (start(), start());
    two.until_owned(85).await;
    three.until_owned(85).await;
    producers.until_more(30).await;
    two.stop().await;
    three.until_owned(128).await;
    producers.until_more(30).await;
    let four = start();
    four.until_owned(85).await;
    producers.until_more(30).await;
    drop(four);
    producers.until_more(30).await;
    one.until_owned(128).await;
    producers.until_more(30).await;

    let acknowledged = producers.stop().await;
    outbox.until_count(doc! { "status": "done" }, outbox.count(doc! {}).await).await;
    let committed = read_back(&outbox.collections).await;
    assert!(committed.len() >= acknowledged.len());
    judge(&committed, &arrivals(&sink.arrived())).assert_kept();
    assert!(assignments(&outbox).await.iter().all(Option::is_some));
    one.stop().await;
    three.stop().await;
}
