//! The stored fields, one by one: what each outcome writes, and what it leaves unchanged.

use std::time::Duration;

use bson::{DateTime, Document, doc};
use postrider::partition::owned::OwnedPartitions;
use postrider::relay::RelayParts;
use postrider::relay::backoff::{Backoff, BackoffKind};
use postrider::relay::settings::{OnDead, Settings};
use postrider::sink::PublishFailure;
use postrider::wakeup::Wakeup;
use tokio::sync::watch;

use crate::support::outbox::{TestOutbox, record};
use crate::support::relay::{parts, run, settings, start};
use crate::support::relay::{rounds, until_under_way};
use crate::support::sink::{Fault, TestSink};

/// A record that has failed before, with every field that a producer may write.
fn failed_record(id: &str) -> Document {
    let mut record = record(id, id);
    record.extend(doc! {
        "attempt": 4, "lastError": "an older one", "lastErrorAt": DateTime::from_millis(5),
        "visibleAt": DateTime::from_millis(6), "createdAt": DateTime::from_millis(7), "dedupKey": id,
        "tenantId": "t", "headers": { "h": 1 }, "x-own": [1, { "y": 2 }], "unknown": true,
    });
    record
}

/// The changes to it: fields that were added or changed, and fields that were removed.
fn changes(before: &Document, after: &Document) -> (Document, Vec<String>) {
    let changed = after.iter().filter(|(name, value)| before.get(name) != Some(value));
    let gone = before.keys().filter(|name| !after.contains_key(name));
    (changed.map(|(name, value)| (name.clone(), value.clone())).collect(), gone.cloned().collect())
}

/// Delivers one such record until it is of `status`; returns its changes.
async fn settled(faults: Vec<Fault>, settings: Settings, status: &str) -> Document {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script("a", faults);
    outbox.insert([failed_record("a")]).await;
    let before = outbox.record("a").await;

    let relay = start(&outbox.collections, sink.clone(), settings);
    let attempted = doc! { "status": status, "attempt": { "$gt": 4 }, "leaseId": null };
    outbox.until_count(attempted, 1).await;
    let (changed, gone) = changes(&before, &outbox.record("a").await);
    relay.stop().await;
    assert_eq!(gone, [""; 0]);
    changed
}

/// Removes a date of the last minute from the changes.
fn take_now(changed: &mut Document, field: &str) {
    let date = changed.remove(field).and_then(|date| date.as_datetime().copied());
    let date = date.unwrap_or_else(|| panic!("no date {field} in {changed}"));
    let age = DateTime::now().timestamp_millis() - date.timestamp_millis();
    assert!((-1_000..60_000).contains(&age), "{field} is {age} ms old");
}

#[fixture::test]
async fn done_writes_its_date_and_the_delivery_only() {
    let mut changed = settled(vec![], settings(), "done").await;

    take_now(&mut changed, "doneAt");
    assert_eq!(changed, doc! { "status": "done", "attempt": 5 });
}

#[fixture::test]
async fn a_retry_writes_its_due_time_and_error_only() {
    let initial = Duration::from_secs(3_600);
    let backoff =
        Backoff { kind: BackoffKind::Fixed, initial, factor: 1.0, max: initial, jitter: 0.0 };
    let settings = Settings { backoff, ..settings() };

    let mut changed =
        settled(vec![Fault::Answer(PublishFailure::Retryable)], settings, "pending").await;

    let due = changed.remove("visibleAt").and_then(|due| due.as_datetime().copied()).unwrap();
    let failed = *changed.get_datetime("lastErrorAt").unwrap();
    assert_eq!(due.timestamp_millis() - failed.timestamp_millis(), 3_600_000, "by one clock");
    take_now(&mut changed, "lastErrorAt");
    assert_eq!(changed, doc! { "attempt": 5, "lastError": "scripted Retryable" });
}

#[fixture::test]
async fn the_last_failure_writes_the_death_and_the_failure() {
    let settings = Settings { max_attempts: 5, on_dead: OnDead::Block, ..settings() };

    let mut changed =
        settled(vec![Fault::Answer(PublishFailure::Retryable)], settings, "dead").await;

    take_now(&mut changed, "deadAt");
    take_now(&mut changed, "lastErrorAt");
    let reason = "attempts exhausted: 5 deliveries failed, the last one with: scripted Retryable";
    let wanted = doc! {
        "status": "dead", "attempt": 5, "deadReason": reason, "lastError": "scripted Retryable", "blocks": true,
    };
    assert_eq!(changed, wanted);
}

#[fixture::test]
async fn a_death_at_once_keeps_the_last_error() {
    let mut changed =
        settled(vec![Fault::Answer(PublishFailure::Rejected)], settings(), "dead").await;

    take_now(&mut changed, "deadAt");
    let wanted =
        doc! { "status": "dead", "attempt": 5, "deadReason": "refused: scripted Rejected" };
    assert_eq!(changed, wanted);
}

#[fixture::test]
async fn a_released_record_is_as_if_never_leased() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script("head", [Fault::HoldThenAnswer(PublishFailure::SinkDown)]);
    let mut head = failed_record("head");
    head.insert("key", "k");
    let mut behind = record("behind", "k");
    behind.insert("x-own", 1);
    outbox.insert([head, behind]).await;
    let before = [outbox.record("head").await, outbox.record("behind").await];

    let relay = start(&outbox.collections, sink.clone(), settings());
    until_under_way(&sink, "head").await;
    outbox.until_count(doc! { "leaseId": { "$exists": true } }, 1).await;
    sink.set_down(true);
    sink.release();
    outbox.until_count(doc! { "leaseId": null }, 2).await;

    for before in before {
        let after = outbox.record(before.get_str("_id").unwrap()).await;
        let (mut changed, gone) = changes(&before, &after);
        if !before.contains_key("attempt") {
            // Absent is 0.
            let attempt = changed.remove("attempt");
            assert!(attempt.is_none_or(|attempt| attempt == 0.into()), "{after}");
        }
        assert_eq!((changed, gone), (doc! {}, Vec::<String>::new()));
    }
    relay.stop().await;
}

/// Only retention or a requested redelivery changes it again.
#[fixture::test]
async fn a_done_record_is_never_touched_again() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let mut odd = failed_record("done");
    // As a crash between two writes of a naive relay might leave it.
    odd.extend(doc! {
        "status": "done", "leaseId": bson::Uuid::new(), "leaseUntil": DateTime::from_millis(9),
        "seq": "odd", "partition": 999,
    });
    outbox.insert([odd, record("next", "done")]).await;
    let before = outbox.record("done").await;

    let relay = start(&outbox.collections, sink.clone(), settings());
    outbox.until_count(doc! { "_id": "next", "status": "done" }, 1).await;
    rounds(&outbox, &sink).await;

    assert_eq!(outbox.record("done").await, before);
    relay.stop().await;
}

/// Retention `"0s"`: delivered records are deleted, and no others.
#[fixture::test]
async fn done_records_are_deleted_at_once_when_retention_is_zero() {
    let outbox = TestOutbox::restricted_for(Duration::ZERO).await;
    let sink = TestSink::default();
    sink.script("fails once", vec![Fault::Answer(PublishFailure::Retryable)]);
    sink.script("dies", vec![Fault::Answer(PublishFailure::Rejected)]);
    outbox.insert([record("fails once", "a"), record("dies", "b"), record("goes", "c")]).await;
    let (owner, share) = watch::channel(OwnedPartitions::of(0..=255));
    let parts = parts(&outbox.collections, sink.clone(), settings(), share, Wakeup::default());

    let relay = run(RelayParts { delete_done: true, ..parts }, owner);

    outbox.until_count(doc! { "status": "pending" }, 0).await;
    outbox.until_count(doc! {}, 1).await;
    relay.stop().await;
    assert_eq!(outbox.record("dies").await.get_str("status").unwrap(), "dead");
    let mut delivered = sink.ids();
    delivered.sort();
    assert_eq!(delivered, ["fails once", "goes"]);
}
