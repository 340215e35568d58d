//! Guard 3: only the leased front of a run is published.

use std::time::Duration;

use bson::doc;
use postrider::outbox::settle::Outcome;
use postrider::relay::settings::Settings;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{arrived, rounds, until_arrived, until_under_way};
use crate::support::relay::{settings, start};
use crate::support::relay_harness::RelayHarness;
use crate::support::rival_relay::RivalRelay;
use crate::support::sink::{Fault, TestSink};

/// Without a lease, and without a counted attempt.
async fn is_free(outbox: &TestOutbox, id: &str) -> bool {
    let record = outbox.record(id).await;
    !record.contains_key("leaseId") && record.get_i32("attempt").unwrap_or(0) == 0
}

#[fixture::test]
async fn a_middle_record_leased_after_the_read_ends_the_run_there() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert(["a1", "a2", "a3", "a4"].map(|id| record(id, "a"))).await;
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;
    let seen = harness.scan().await;
    let lease = peer.take(&["a2"]).await;

    let lanes = harness.acquire(seen).await;
    harness.deliver(lanes).await;

    assert_eq!(sink.ids(), ["a1"]);
    for behind in ["a3", "a4"] {
        assert!(is_free(&outbox, behind).await, "{}", outbox.record(behind).await);
    }
    peer.settle(lease, "a2", Outcome::Done).await;
    let lanes = harness.acquire(harness.scan().await).await;
    harness.deliver(lanes).await;
    assert_eq!(sink.ids(), ["a1", "a3", "a4"]);
}

#[fixture::test]
async fn a_head_leased_after_the_read_leaves_nothing_of_its_run() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert([record("a1", "a"), record("a2", "a"), record("b1", "b")]).await;
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;
    let seen = harness.scan().await;
    peer.take(&["a1"]).await;

    let lanes = harness.acquire(seen).await;
    harness.deliver(lanes).await;

    assert_eq!(sink.ids(), ["b1"], "other keys of the same lease go");
    assert!(is_free(&outbox, "a2").await, "{}", outbox.record("a2").await);
}

#[fixture::test]
async fn a_partial_renewal_loses_a_peers_record_and_its_followers() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    sink.script("a1", [Fault::Hold]);
    outbox.insert([record("a1", "a"), record("a2", "a"), record("a3", "a")]).await;
    let short = Settings { lease: Duration::from_secs(6), ..settings() };
    let relay = start(&outbox.collections, sink.clone(), short);
    until_under_way(&sink, "a1").await;
    let lease = peer.take_over("a2").await;
    // The second one begins when the relay knows where the first one stopped.
    for _ in 0..2 {
        let end = *outbox.record("a1").await.get_datetime("leaseUntil").unwrap();
        eventually("the lease is renewed", || async {
            *outbox.record("a1").await.get_datetime("leaseUntil").unwrap() > end
        })
        .await;
    }

    sink.release();
    outbox.until_count(doc! { "_id": "a1", "status": "done" }, 1).await;
    eventually("a3 is released", || is_free(&outbox, "a3")).await;
    rounds(&outbox, &sink).await;

    assert_eq!(arrived(&sink), ["a1"]);
    peer.settle(lease, "a2", Outcome::Done).await;
    until_arrived(&sink, "a3").await;
    assert_eq!(arrived(&sink), ["a1", "a3"]);
    relay.stop().await;
}
