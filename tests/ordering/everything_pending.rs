//! Guard 2: everything pending is read, and a record that may not go ends its key's run.

use bson::{DateTime, doc};
use postrider::outbox::settle::Outcome;
use postrider::outbox::snapshot::ReadLimit;
use postrider::relay::scanner::{ScanScope, ScanTarget, Scanner};
use postrider::wakeup::ScanHint;

use crate::support::outbox::{TestOutbox, record};
use crate::support::relay::{arrived, rounds, until_arrived};
use crate::support::relay::{settings, start};
use crate::support::relay_harness::RelayHarness;
use crate::support::rival_relay::RivalRelay;
use crate::support::sink::TestSink;

#[fixture::test]
async fn a_record_leased_by_a_peer_holds_back_only_its_key() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert([record("a1", "a"), record("a2", "a"), record("b1", "b")]).await;
    let lease = peer.take(&["a1"]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());
    until_arrived(&sink, "b1").await;
    rounds(&outbox, &sink).await;

    assert_eq!(arrived(&sink), ["b1"]);
    peer.settle(lease, "a1", Outcome::Done).await;
    until_arrived(&sink, "a2").await;
    assert_eq!(arrived(&sink), ["b1", "a2"]);
    relay.stop().await;
}

#[fixture::test]
async fn a_record_leased_by_a_peer_does_not_hold_back_earlier_ones() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert([record("a1", "a"), record("a2", "a"), record("a3", "a")]).await;
    let lease = peer.take(&["a2"]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());
    until_arrived(&sink, "a1").await;
    rounds(&outbox, &sink).await;

    assert_eq!(arrived(&sink), ["a1"]);
    peer.settle(lease, "a2", Outcome::Done).await;
    until_arrived(&sink, "a3").await;
    assert_eq!(arrived(&sink), ["a1", "a3"]);
    relay.stop().await;
}

#[fixture::test]
async fn a_record_that_is_not_due_holds_back_only_its_key() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let mut waiting = record("a1", "a");
    let due = DateTime::from_millis(DateTime::now().timestamp_millis() + 2_000);
    waiting.insert("visibleAt", due);
    outbox.insert([waiting, record("a2", "a"), record("b1", "b")]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 3).await;
    assert_eq!(sink.ids(), ["b1", "a1", "a2"]);
    let done = outbox.record("a1").await;
    assert!(*done.get_datetime("doneAt").unwrap() >= due, "{done}");
    relay.stop().await;
}

/// A relay that is woken for a key scans all of it, whatever it knows of the key.
#[fixture::test]
async fn a_scan_of_one_key_delivers_nothing_past_a_waiting_record() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    let mut waiting = record("b2", "b");
    waiting.insert("visibleAt", DateTime::from_millis(DateTime::now().timestamp_millis() + 60_000));
    outbox.insert([record("a1", "a"), record("a2", "a")]).await;
    outbox.insert([record("b1", "b"), waiting, record("b3", "b")]).await;
    peer.take(&["a1"]).await;
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;

    let targets = ["a", "b"].map(|key| {
        ScanTarget::At(ScanHint::Key {
            partition: postrider::partition::of_key(key),
            key: key.into(),
        })
    });
    let room = ReadLimit { records: 500, bytes: 16 << 20 };
    let look = ScanScope::Targets(targets.to_vec());
    let owned: Vec<u8> = (0..=255).collect();
    let seen = Scanner::new(&harness.context).scan(look, &owned, room).await.unwrap();
    let lanes = harness.acquire(seen).await;
    harness.deliver(lanes).await;

    assert_eq!(sink.ids(), ["b1"]);
}
