//! The relay on a real MongoDB, with a sink that fails on command.

use std::collections::HashMap;
use std::time::Duration;

use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{settings, start};
use crate::support::relay_harness::RelayHarness;
use crate::support::sink::{Fault, TestSink};
use bson::{Document, doc};
use metrics_exporter_prometheus::PrometheusBuilder;
use postrider::outbox::snapshot::ReadLimit;
use postrider::relay::blocker::BlockReason;
use postrider::relay::lane_worker;
use postrider::relay::scanner::{ScanScope, ScanTarget, Scanner};
use postrider::relay::settings::{Ordering, Settings};
use postrider::sink::{Message, PublishFailure};
use postrider::wakeup::ScanHint;

fn ids_of(arrived: &[Message], key: &str) -> Vec<String> {
    let of_key = arrived.iter().filter(|message| message.key.as_deref() == Some(key));
    of_key.map(|message| message.id.clone()).collect()
}

#[fixture::test]
async fn every_record_arrives_once_and_in_the_order_of_its_key() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let keys = 40;
    for round in 0..50 {
        let records = (0..keys).map(|key| record(&format!("{key}/{round:03}"), &format!("k{key}")));
        outbox.insert(records).await;
    }

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 50 * keys).await;
    let mut by_key: HashMap<String, Vec<String>> = HashMap::new();
    for message in sink.arrived() {
        by_key.entry(message.key.unwrap()).or_default().push(message.id);
    }
    assert_eq!(by_key.len() as u64, keys);
    for ids in by_key.values() {
        assert_eq!(ids.len(), 50);
        assert!(ids.is_sorted(), "{ids:?}");
    }
    relay.stop().await;
}

#[fixture::test]
async fn a_settled_record_has_its_end_state_and_no_lease() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert([record("a", "k")]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 1).await;
    let done = outbox.record("a").await;
    assert!(done.get_datetime("doneAt").is_ok());
    assert_eq!(done.get_i32("attempt").unwrap(), 1);
    for field in ["leaseId", "leaseUntil", "leaseOwner"] {
        assert!(!done.contains_key(field), "{field} in {done}");
    }
    relay.stop().await;
}

#[fixture::test]
async fn a_failing_record_holds_back_only_its_own_key() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script(
        "bad",
        [Fault::Answer(PublishFailure::Retryable), Fault::Answer(PublishFailure::Retryable)],
    );
    outbox.insert([record("bad", "k"), record("behind", "k"), record("other", "l")]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 3).await;
    assert_eq!(sink.ids(), ["other", "bad", "behind"]);
    assert_eq!(outbox.record("bad").await.get_i32("attempt").unwrap(), 3);
    assert_eq!(outbox.record("bad").await.get_str("lastError").unwrap(), "scripted Retryable");
    let behind = outbox.record("behind").await;
    assert_eq!(behind.get_i32("attempt").unwrap(), 1, "one attempt: {behind}");
    relay.stop().await;
}

#[fixture::test]
async fn the_last_attempt_makes_a_record_dead_and_its_key_continues() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script("bad", vec![Fault::Answer(PublishFailure::Retryable); 10]);
    outbox.insert([record("bad", "k"), record("behind", "k")]).await;

    let relay =
        start(&outbox.collections, sink.clone(), Settings { max_attempts: 3, ..settings() });

    outbox.until_count(doc! { "status": "done" }, 1).await;
    let bad: Document = outbox.record("bad").await;
    assert_eq!(bad.get_str("status").unwrap(), "dead");
    assert_eq!(bad.get_i32("attempt").unwrap(), 3);
    assert_eq!(
        bad.get_str("deadReason").unwrap(),
        "attempts exhausted: 3 deliveries failed, the last one with: scripted Retryable"
    );
    assert_eq!(sink.ids(), ["behind"]);
    relay.stop().await;
}

#[fixture::test]
async fn a_hot_key_is_refilled_and_stays_in_order() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert((0..700).map(|n| record(&format!("{n:04}"), "hot"))).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 700).await;
    let ids = ids_of(&sink.arrived(), "hot");
    assert_eq!(ids.len(), 700);
    assert!(ids.is_sorted());
    assert_eq!(sink.most_under_way("hot"), 1);
    relay.stop().await;
}

/// The records that a rotation has read; not those of a scan of one lane, nor unstamped ones.
fn found_by_rotation(command: &Command) -> usize {
    let Ok(filter) = command.sent.get_document("filter") else { return 0 };
    let is_page = filter.get_document("partition").is_ok() && filter.get_str("key").is_err();
    let answer = command.answer.get_document("cursor");
    let batch = answer.and_then(|cursor| cursor.get_array("firstBatch"));
    if is_page { batch.map_or(0, Vec::len) } else { 0 }
}

#[fixture::test]
async fn a_refill_knows_its_records_when_they_are_settled_meanwhile() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let sink = TestSink::default();
    outbox.insert((0..300).map(|n| record(&format!("{n:04}"), "hot"))).await;
    let is_refill = |command: &Command| {
        let filter = command.sent.get_document("filter");
        command.name == "find" && filter.is_ok_and(|filter| filter.get_str("key").is_ok())
    };
    let metrics_recorder = PrometheusBuilder::new().build_recorder();
    let figures = metrics_recorder.handle();
    recorder.after(is_refill, || async move {
        // The relay knows that the lease in this read has ended.
        eventually("the first 64 are settled", || async {
            let text = figures.render();
            text.lines().any(|line| line.contains(r#"outcome="done""#) && line.ends_with(" 64"))
        })
        .await;
    });

    // Only a lane that ends causes a rotation.
    let settings = Settings { poll_interval: Duration::from_secs(60), ..settings() };
    let relay = metrics::with_local_recorder(&metrics_recorder, || {
        start(&recorder.collections, sink.clone(), settings)
    });

    sink.until("all of them", |arrived| arrived.len() >= 300).await;
    // The end of the lane causes another rotation, which may still read the last of them as leased.
    let found: Vec<usize> = recorder.commands("find").iter().map(found_by_rotation).collect();
    outbox.until_count(doc! { "status": "done" }, 300).await;
    assert!(recorder.has_paused());
    assert!(ids_of(&sink.arrived(), "hot").is_sorted());
    assert_eq!(found.iter().filter(|count| **count > 0).count(), 1, "{found:?}");
    relay.stop().await;
}

#[fixture::test]
async fn a_lane_that_ends_during_a_rotation_is_not_taken_for_a_peers() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let harness = RelayHarness::new(&recorder.collections, TestSink::default(), settings()).await;
    outbox.insert([record("a", "k")]).await;
    let lanes = harness.acquire(harness.scan().await).await;
    let shared = harness.context.clone();
    // The first read of a scan sets its snapshot: all others return the record as leased.
    let is_read = |command: &Command| command.name == "find";
    recorder.after(is_read, || async move {
        for lane in lanes {
            lane_worker::run(lane.clone(), &shared).await;
            shared.state.key_table.release(&lane.key);
        }
    });

    let seen = harness.scan().await;

    assert!(recorder.has_paused());
    assert_eq!(outbox.count(doc! { "status": "done" }).await, 1);
    assert!(!seen.has_records(), "{seen:?}");
    assert_eq!(
        harness.context.state.key_table.counts_by_reason(),
        BlockReason::ALL.map(|reason| (reason, 0))
    );
}

#[fixture::test]
async fn a_scan_that_fails_half_way_leaves_no_key_in_flight() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let harness = RelayHarness::new(&recorder.collections, TestSink::default(), settings()).await;
    outbox.insert([record("1", "a"), record("2", "b")]).await;
    let is_of_a = |command: &Command| {
        let filter = command.sent.get_document("filter");
        filter.is_ok_and(|filter| filter.get_str("key").is_ok_and(|key| key == "a"))
    };
    let records = outbox.records();
    // Without its index no further read succeeds.
    recorder.after(is_of_a, || async move { records.drop_indexes().await.unwrap() });
    let targets = ["a", "b"].map(|key| {
        ScanTarget::At(ScanHint::Key {
            partition: postrider::partition::of_key(key),
            key: key.into(),
        })
    });
    let room = ReadLimit { records: 500, bytes: 16 << 20 };
    let owned: Vec<u8> = (0..=255).collect();

    Scanner::new(&harness.context)
        .scan(ScanScope::Targets(targets.to_vec()), &owned, room)
        .await
        .unwrap_err();

    assert!(recorder.has_paused());
    assert!(harness.context.state.key_table.taken_keys().is_empty());
}

#[fixture::test]
async fn a_sink_that_is_down_counts_no_attempt_and_resumes() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.set_down(true);
    outbox.insert((0..20).map(|n| record(&format!("{n}"), &format!("k{}", n % 3)))).await;
    let relay = start(&outbox.collections, sink.clone(), settings());
    eventually("the sink is probed while it is down", || async { sink.probes() >= 3 }).await;
    assert_eq!(sink.ids(), Vec::<String>::new());
    assert_eq!(outbox.count(doc! { "attempt": { "$gt": 0 } }).await, 0, "no attempts are counted");

    sink.set_down(false);

    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 20).await;
    relay.stop().await;
}

/// A record that is not due before tomorrow.
fn waiting(id: &str, key: &str) -> Document {
    let mut record = record(id, key);
    let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86_400);
    record.insert("visibleAt", bson::DateTime::from_system_time(tomorrow));
    record
}

/// The rotation continued after the whole key.
#[fixture::test]
async fn a_waiting_record_hides_no_other_of_its_key_without_ordering() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert((0..20).map(|number| waiting(&format!("w{number:02}"), "k"))).await;
    outbox.insert([record("behind", "k"), record("other", "l")]).await;
    let settings = Settings { ordering: Ordering::None, batch_size: 5, ..settings() };

    let relay = start(&outbox.collections, sink.clone(), settings);

    outbox.until_count(doc! { "status": "done" }, 2).await;
    let mut ids = sink.ids();
    ids.sort();
    assert_eq!(ids, ["behind", "other"]);
    relay.stop().await;
}

/// Together the keys were larger than a command may be, and the relay stopped leasing.
#[fixture::test]
async fn long_keys_that_wait_do_not_stop_the_others() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let long = |number: usize| format!("{number:03}{}", "k".repeat(60_000));
    outbox.insert((0..300).map(|number| waiting(&format!("w{number}"), &long(number)))).await;
    let relay = start(&outbox.collections, sink.clone(), settings());

    for number in 0..20 {
        outbox.insert([record(&format!("{number}"), &format!("z{number}"))]).await;
        outbox.until_count(doc! { "status": "done" }, number + 1).await;
    }

    relay.stop().await;
}
