//! A record's place: a valid partition and a `seq` before the first delivery, and promotion when
//! due.

use std::time::Duration;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use postrider::relay::settings::Settings;

use crate::support::outbox::{TestOutbox, insert_raw, record};
use crate::support::relay::{settings, start, start_counted};
use crate::support::sink::TestSink;

fn without(mut record: Document, field: &str) -> Document {
    record.remove(field);
    record
}

/// A record of a key of this name, scheduled for this time.
fn scheduled(id: &str, key: &str, visible_at: impl Into<Bson>) -> Document {
    let mut record = record(id, key);
    record.extend(doc! { "status": "scheduled", "visibleAt": visible_at.into() });
    record
}

#[fixture::test]
async fn invalid_partitions_are_corrected_and_keep_the_order() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    for (number, is_valid) in [true, false, true, false, false, true].into_iter().enumerate() {
        let mut record = record(&number.to_string(), "order-123");
        if !is_valid {
            record.insert("partition", -1);
        }
        outbox.insert([record]).await;
    }
    let mut out_of_range = record("odd", "user-456");
    out_of_range.insert("partition", 256);
    outbox.insert([out_of_range]).await;

    let (relay, figures) = start_counted(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 7).await;
    let of_key: Vec<String> = sink.ids().into_iter().filter(|id| id != "odd").collect();
    assert_eq!(of_key, ["0", "1", "2", "3", "4", "5"]);
    assert_eq!(outbox.count(doc! { "partition": 189, "key": "order-123" }).await, 6);
    assert_eq!(outbox.record("odd").await.get_i32("partition").unwrap(), 22);
    let figures = figures.render();
    let counted = figures.lines().find(|line| {
        line.starts_with("postrider_records_repaired_total") && line.contains("partition")
    });
    assert!(counted.is_some_and(|line| line.ends_with(" 4")), "{counted:?}");
    relay.stop().await;
}

#[fixture::test]
async fn records_without_a_seq_get_one_and_are_counted() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    insert_raw(&outbox.admin, without(record("absent", "a"), "seq")).await;
    let mut both = record("both", "b");
    both.insert("seq", "first");
    insert_raw(&outbox.admin, without(both, "partition")).await;
    outbox.insert([record("zero", "c")]).await;
    // As an upsert's `$setOnInsert` leaves it.
    let zero = doc! { "$set": { "seq": Timestamp { time: 0, increment: 0 } } };
    outbox.records().update_one(doc! { "_id": "zero" }, zero).await.unwrap();

    let (relay, figures) = start_counted(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 3).await;
    let given = doc! { "seq": { "$gt": Timestamp { time: 1, increment: 0 } } };
    assert_eq!(outbox.count(given).await, 3);
    let figures = figures.render();
    let counted = figures.lines().find(|line| {
        line.starts_with("postrider_records_repaired_total") && line.contains("\"seq\"")
    });
    assert!(counted.is_some_and(|line| line.ends_with(" 3")), "{counted:?}");
    relay.stop().await;
}

#[fixture::test]
async fn a_scheduled_record_takes_its_place_at_the_moment_it_is_due() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let due = DateTime::from_millis(DateTime::now().timestamp_millis() + 1_500);
    let whenever = scheduled("whenever", "c", "soon");
    outbox.insert([scheduled("scheduled", "a", due), record("behind", "a"), whenever]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 3).await;
    let order: Vec<String> = sink.ids().into_iter().filter(|id| id != "whenever").collect();
    assert_eq!(order, ["behind", "scheduled"], "it holds back nobody before it is due");
    let scheduled = outbox.record("scheduled").await;
    let behind = outbox.record("behind").await;
    assert!(scheduled.get_timestamp("seq").unwrap() > behind.get_timestamp("seq").unwrap());
    assert!(*scheduled.get_datetime("doneAt").unwrap() >= due, "{scheduled}");
    relay.stop().await;
}

/// Values of all kinds: some sort before a date, some after it.
#[fixture::test]
async fn a_scheduled_record_without_a_date_is_due_at_once() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let after_dates = Timestamp { time: u32::MAX, increment: 1 };
    let kinds = [("before", "soon".into()), ("after", after_dates.into()), ("last", Bson::MaxKey)];
    outbox.insert(kinds.map(|(id, visible_at)| scheduled(id, id, visible_at))).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 3).await;
    relay.stop().await;
}

/// The relay knows when the next one is due, and does not wait for its timer.
#[fixture::test]
async fn a_scheduled_record_is_delivered_when_due_without_the_timer() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let due = DateTime::from_millis(DateTime::now().timestamp_millis() + 1_000);
    outbox.insert([scheduled("scheduled", "a", due)]).await;
    let settings = Settings { poll_interval: Duration::from_secs(600), ..settings() };

    let relay = start(&outbox.collections, sink.clone(), settings);

    outbox.until_count(doc! { "status": "done" }, 1).await;
    relay.stop().await;
}
