//! Hazard 12, and guard 2 for the dead: a dead head that blocks holds its key.

use std::time::Duration;

use bson::{Document, doc};
use postrider::outbox::redrive::{Redrive, Redriver};
use postrider::outbox::undecoded::RawId;
use postrider::relay::settings::{OnDead, Settings};
use postrider::sink::PublishFailure;

use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::{TestOutbox, broken, eventually, insert_bytes, record, unstamped};
use crate::support::relay::{arrived, rounds, until_arrived};
use crate::support::relay::{settings, start};
use crate::support::sink::{Fault, TestSink};

async fn requeue(outbox: &TestOutbox, id: &str) {
    let redriver = Redriver::new(outbox.collections.clone());
    redriver.redrive(Redrive::Requeue, &RawId::parse_candidates(id)).await.unwrap().unwrap();
}

fn dead(id: &str, key: &str) -> Document {
    let mut dead = record(id, key);
    dead.extend(doc! { "status": "dead", "blocks": true });
    dead
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
    let unstamped = unstamped("c2", "c");
    let records = [dead("a1", "a"), record("a2", "a"), record("b1", "b"), dead("c1", "c")];
    outbox.insert(records.into_iter().chain([unstamped])).await;

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
        outbox.insert((0..count).map(|n| dead(&format!("{key}{n}"), key))).await;
    }
    outbox.insert(["a", "b", "c", "d"].map(|key| record(&format!("{key} last"), key))).await;

    let relay = start(&outbox.collections, sink.clone(), blocking());
    until_arrived(&sink, "d last").await;
    rounds(&outbox, &sink).await;

    assert_eq!(arrived(&sink), ["d last"]);
    relay.stop().await;
}

/// A producer may have chosen such ids. No command has room for all of them.
#[fixture::test]
async fn very_long_ids_of_dead_blockers_keep_no_key_blocked() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let long = |n: usize| dead(&format!("{n} {}", "i".repeat(1 << 20)), &format!("k{n}"));
    outbox.insert((0..20).map(long)).await;
    outbox.insert([dead("a1", "a"), record("a2", "a")]).await;
    outbox.insert((0..20).map(|n| record(&format!("behind {n}"), &format!("k{n}")))).await;
    let relay = start(&outbox.collections, sink.clone(), blocking());
    rounds(&outbox, &sink).await;

    requeue(&outbox, "a1").await;

    until_arrived(&sink, "a2").await;
    outbox.records().delete_one(doc! { "key": "k7", "status": "dead" }).await.unwrap();
    until_arrived(&sink, "behind 7").await;
    assert_eq!(arrived(&sink), ["a1", "a2", "behind 7"]);
    relay.stop().await;
}

/// Their ids are not UTF-8: nothing can ask for these records by id.
#[fixture::test]
async fn dead_blockers_without_a_readable_id_cost_no_scan() {
    const KEYS: usize = 20;
    let outbox = TestOutbox::new().await;
    let (recorder, sink) = (CommandRecorder::on(&outbox).await, TestSink::default());
    for n in 0..KEYS {
        let nameless = broken(&dead(&format!("MARK {n}"), &format!("k{n}")));
        insert_bytes(&outbox.records(), nameless).await;
    }
    outbox.insert((0..KEYS).map(|n| record(&format!("behind {n}"), &format!("k{n}")))).await;
    // Nothing but a freed key is a reason to scan.
    let settings = Settings { poll_interval: Duration::from_millis(300), ..blocking() };
    let relay = start(&recorder.collections, sink.clone(), settings);
    let pending = || {
        let finds = recorder.commands("find").into_iter();
        let read =
            finds.filter(|find| find.sent.get_str("hint").is_ok_and(|hint| hint == "lane_idx"));
        let returned = |find: &Command| {
            let cursor = find.answer.get_document("cursor").unwrap();
            cursor.get_array("firstBatch").unwrap().len()
        };
        read.map(|find| returned(&find)).sum::<usize>()
    };
    let checks = || {
        let finds = recorder.commands("find").into_iter();
        finds
            .filter(|find| find.sent.get_document("filter").unwrap().contains_key("blocks"))
            .count()
    };
    let until_checked = async |times: usize| {
        let before = checks();
        eventually("dead records are read", || async { checks() >= before + times }).await;
    };
    rounds(&outbox, &sink).await;
    eventually("no pending record is read", || async {
        let before = pending();
        until_checked(20).await;
        pending() == before
    })
    .await;

    outbox.records().delete_one(doc! { "key": "k7", "status": "dead" }).await.unwrap();

    until_arrived(&sink, "behind 7").await;
    assert_eq!(arrived(&sink), ["behind 7"]);
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
