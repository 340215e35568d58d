//! A place in line: stamping and `seq` before the first delivery, and promotion when due.

use bson::{DateTime, Document, Timestamp, doc};
use metrics_exporter_prometheus::PrometheusBuilder;

use crate::support::outbox::{TestOutbox, insert_raw, record};
use crate::support::relay::{settings, start};
use crate::support::sink::TestSink;

fn without(mut record: Document, field: &str) -> Document {
    record.remove(field);
    record
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unstamped_records_are_stamped_and_counted_and_keep_their_place() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    for (number, stamped) in [true, false, true, false, false, true].into_iter().enumerate() {
        let record = record(&number.to_string(), "order-123");
        outbox.insert([if stamped { record } else { without(record, "partition") }]).await;
    }
    let mut out_of_range = record("odd", "user-456");
    out_of_range.insert("partition", 256);
    outbox.insert([out_of_range]).await;
    let recorder = PrometheusBuilder::new().build_recorder();

    let relay = metrics::with_local_recorder(&recorder, || {
        start(&outbox.collections, sink.clone(), settings())
    });

    outbox.until_count(doc! { "status": "done" }, 7).await;
    let of_key: Vec<String> = sink.ids().into_iter().filter(|id| id != "odd").collect();
    assert_eq!(of_key, ["0", "1", "2", "3", "4", "5"]);
    assert_eq!(outbox.count(doc! { "partition": 189, "key": "order-123" }).await, 6);
    assert_eq!(outbox.record("odd").await.get_i32("partition").unwrap(), 22);
    let figures = recorder.handle().render();
    let counted = figures.lines().find(|line| {
        line.starts_with("postrider_records_repaired_total") && line.contains("partition")
    });
    assert!(counted.is_some_and(|line| line.ends_with(" 4")), "{counted:?}");
    relay.stop().await;
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_without_a_seq_are_given_one_and_counted() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    insert_raw(&outbox.hand, without(record("absent", "a"), "seq")).await;
    let mut both = record("both", "b");
    both.insert("seq", "first");
    insert_raw(&outbox.hand, without(both, "partition")).await;
    outbox.insert([record("zero", "c")]).await;
    // As an upsert's `$setOnInsert` leaves it.
    let zero = doc! { "$set": { "seq": Timestamp { time: 0, increment: 0 } } };
    outbox.records().update_one(doc! { "_id": "zero" }, zero).await.unwrap();
    let recorder = PrometheusBuilder::new().build_recorder();

    let relay = metrics::with_local_recorder(&recorder, || {
        start(&outbox.collections, sink.clone(), settings())
    });

    outbox.until_count(doc! { "status": "done" }, 3).await;
    let given = doc! { "seq": { "$gt": Timestamp { time: 1, increment: 0 } } };
    assert_eq!(outbox.count(given).await, 3);
    let figures = recorder.handle().render();
    let counted = figures.lines().find(|line| {
        line.starts_with("postrider_records_repaired_total") && line.contains("\"seq\"")
    });
    assert!(counted.is_some_and(|line| line.ends_with(" 3")), "{counted:?}");
    relay.stop().await;
    outbox.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scheduled_record_takes_its_place_at_the_moment_it_is_due() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let due = DateTime::from_millis(DateTime::now().timestamp_millis() + 1_500);
    let mut scheduled = record("scheduled", "a");
    scheduled.extend(doc! { "status": "scheduled", "visibleAt": due });
    let mut whenever = record("whenever", "c");
    whenever.extend(doc! { "status": "scheduled", "visibleAt": "soon" });
    outbox.insert([scheduled, record("behind", "a"), whenever]).await;

    let relay = start(&outbox.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 3).await;
    let order: Vec<String> = sink.ids().into_iter().filter(|id| id != "whenever").collect();
    assert_eq!(order, ["behind", "scheduled"], "it holds back nobody before it is due");
    let scheduled = outbox.record("scheduled").await;
    let behind = outbox.record("behind").await;
    assert!(scheduled.get_timestamp("seq").unwrap() > behind.get_timestamp("seq").unwrap());
    assert!(*scheduled.get_datetime("doneAt").unwrap() >= due, "{scheduled}");
    relay.stop().await;
    outbox.drop().await;
}
