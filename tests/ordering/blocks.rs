//! Hazard 12, and guard 2 for the dead: a dead head that blocks holds its key.

use bson::doc;
use postrider::outbox::redrive::{Redrive, Redriver};
use postrider::outbox::undecoded::RawId;
use postrider::relay::settings::{OnDead, Settings};
use postrider::sink::PublishFailure;

use crate::support::outbox::{TestOutbox, record, unstamped};
use crate::support::relay::{arrived, rounds, until_arrived};
use crate::support::relay::{settings, start};
use crate::support::sink::{Fault, TestSink};

async fn requeue(outbox: &TestOutbox, id: &str) {
    let redriver = Redriver::new(outbox.collections.clone());
    redriver.redrive(Redrive::Requeue, &RawId::parse_candidates(id)).await.unwrap().unwrap();
}

fn blocking() -> Settings {
    Settings { on_dead: OnDead::Block, ..settings() }
}

#[fixture::test]
async fn a_dead_blocker_blocks_its_key_until_it_is_requeued() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script("a1", [Fault::Answer(PublishFailure::Rejected)]);
    outbox.insert([record("a1", "a"), record("a2", "a"), record("b1", "b")]).await;

    let relay = start(&outbox.collections, sink.clone(), blocking());
    outbox.until_count(doc! { "_id": "a1", "status": "dead", "blocks": true }, 1).await;
    rounds(&outbox, &sink).await;

    assert_eq!(arrived(&sink), ["b1"]);
    outbox.until_count(doc! { "_id": "a2", "leaseId": null, "attempt": 0 }, 1).await;
    requeue(&outbox, "a1").await;
    until_arrived(&sink, "a2").await;
    assert_eq!(arrived(&sink), ["b1", "a1", "a2"]);
    relay.stop().await;
}

#[fixture::test]
async fn a_key_blocked_before_the_start_stays_blocked_until_removal() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let mut dead = record("a1", "a");
    dead.extend(doc! { "status": "dead", "blocks": true });
    let unstamped = unstamped("c2", "c");
    let mut dead_too = record("c1", "c");
    dead_too.extend(doc! { "status": "dead", "blocks": true });
    outbox.insert([dead, record("a2", "a"), record("b1", "b"), dead_too, unstamped]).await;

    // The relay's own `on_dead` does not matter.
    let relay = start(&outbox.collections, sink.clone(), settings());
    until_arrived(&sink, "b1").await;
    relay.wake.at(postrider::wakeup::ScanHint::Key {
        partition: postrider::partition::of_key("a"),
        key: "a".into(),
    });
    rounds(&outbox, &sink).await;

    assert_eq!(arrived(&sink), ["b1"]);
    outbox.records().delete_one(doc! { "_id": "a1" }).await.unwrap();
    until_arrived(&sink, "a2").await;
    assert_eq!(arrived(&sink), ["b1", "a2"]);
    relay.stop().await;
}

#[fixture::test]
async fn more_dead_blockers_than_one_scan_reads_hide_no_blocked_key() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    // More than it reads at first, and more again for the keys that follow.
    for (key, count) in [("a", 2_000), ("b", 2_001), ("c", 1)] {
        let dead = (0..count).map(|n| {
            let mut dead = record(&format!("{key}{n}"), key);
            dead.extend(doc! { "status": "dead", "blocks": true });
            dead
        });
        outbox.insert(dead).await;
    }
    outbox.insert(["a", "b", "c", "d"].map(|key| record(&format!("{key} last"), key))).await;

    let relay = start(&outbox.collections, sink.clone(), blocking());
    until_arrived(&sink, "d last").await;
    rounds(&outbox, &sink).await;

    assert_eq!(arrived(&sink), ["d last"]);
    relay.stop().await;
}

#[fixture::test]
async fn a_dead_record_that_does_not_block_delays_no_record() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let mut dead = record("a1", "a");
    dead.insert("status", "dead");
    outbox.insert([dead, record("a2", "a")]).await;

    let relay = start(&outbox.collections, sink.clone(), blocking());

    until_arrived(&sink, "a2").await;
    relay.stop().await;
}
