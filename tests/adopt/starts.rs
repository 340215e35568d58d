//! Where the bridge begins, and how it ends before its end.

use std::time::Duration;

use bson::oid::ObjectId;
use bson::{Bson, doc};
use serde_json::json;

use crate::support::outbox::{eventually, record};
use crate::support::process::{Ended, Signal};
use crate::util::{TestSource, debezium};

/// Each text is the id of a type that the source uses.
#[fixture::test]
async fn id_of_from_has_the_type_of_the_source() {
    let of_uuid_text = "5f0c2a6e-8f43-4f6e-9d0a-1a2b3c4d5e6f";
    let later = "6f0c2a6e-8f43-4f6e-9d0a-1a2b3c4d5e6f";
    let test = TestSource::new("debezium", &[]).await;
    test.insert(vec![debezium(of_uuid_text, "k"), debezium(later, "k")]).await;
    let once = async |from| test.adopt(&["--once", "--old-relay-stopped", "--from", from]).await;

    let unknown = once("nonsense").await.with_code(1);
    assert!(unknown.stderr.contains("--from nonsense: no document has this _id"), "{unknown}");
    assert!(unknown.stderr.contains(of_uuid_text), "{unknown}");
    let report = once(of_uuid_text).await.with_code(0).json();

    assert_eq!(report["copied"], 1, "{report:#}");
    assert_eq!(test.ids().await, [Bson::from(later)]);
    let report = once("str:5").await.with_code(0).json();
    assert_eq!(report["skipped"], json!({ "duplicate": 1 }), "{report:#}");
}

#[fixture::test]
async fn deleted_document_is_a_start_where_its_type_is_that_of_the_source() {
    let ids: [ObjectId; 3] = std::array::from_fn(|_| ObjectId::new());
    let test = TestSource::new("debezium", &[]).await;
    test.insert(vec![debezium(ids[0], "k"), debezium(ids[2], "k")]).await;
    let deleted = ids[1].to_hex();
    let arguments = ["--once", "--old-relay-stopped", "--from"];

    let report = test.adopt(&[&arguments[..], &[&deleted]].concat()).await.with_code(0).json();
    assert_eq!(report["copied"], 1);
    assert_eq!(test.ids().await, [Bson::from(ids[2])]);

    let wrong = test.adopt(&[&arguments[..], &["2026-01-31"]].concat()).await.with_code(1);
    assert!(wrong.stderr.contains("a time such as 2026-01-31T12:00:00Z"), "{wrong}");
}

#[fixture::test]
async fn time_that_lies_in_the_future_is_refused() {
    let test = TestSource::new("debezium", &[]).await;
    test.insert(vec![debezium(1, "k")]).await;

    for future in ["2200-01-01T00:00:00Z", "2126-01-01T00:00:00Z"] {
        let refused = test.adopt(&["--old-relay-stopped", "--from", future]).await.with_code(1);
        assert!(refused.stderr.contains("lies in the future"), "{refused}");
    }
}

/// The filter makes the scan slower than a lease.
#[fixture::test]
async fn two_bridges_copy_although_the_scan_takes_longer_than_a_lease() {
    let slow = r#"adopt.fields.filter={"$where": "sleep(4000) || true"}"#;
    let test = TestSource::with_fields(&[slow]).await;
    test.insert((1..=4).map(|id| doc! { "_id": id, "k": "k", "p": id, "s": "new" }).collect())
        .await;

    let mut first = test.start(&["--old-relay-stopped"], "");
    let mut second = test.start(&["--old-relay-stopped"], "");
    test.until_copied(4).await;

    let ended = [first.stop().await, second.stop().await];
    let copied = |ended: &Ended| ended.json()["copied"].as_u64().unwrap();
    assert_eq!(ended.iter().map(copied).sum::<u64>(), 4);
}

#[fixture::test]
async fn another_mapping_scans_again() {
    let mut test = TestSource::with_fields(&[]).await;
    test.insert(vec![
        doc! { "_id": 1, "k": "k", "p": 1, "s": "new" },
        doc! { "_id": 2, "k": "k", "p": 2, "s": "odd" },
    ])
    .await;
    let mut bridge = test.receiving(&[]).await;
    bridge.stop().await;
    assert_eq!(test.ids().await, [Bson::from(1_i64)]);

    test.more.push(r#"adopt.fields.undelivered=["new", "odd"]"#.to_owned());
    let mut bridge = test.receiving(&[]).await;
    test.until_copied(2).await;
    bridge.stop().await;

    // The same mapping continues.
    test.insert(vec![doc! { "_id": 3, "k": "k", "p": 3, "s": "new" }]).await;
    let mut bridge = test.start(&["--old-relay-stopped"], "");
    test.until_copied(3).await;
    let ended = bridge.stop().await;
    assert!(!ended.stderr.contains("scanning the other outbox"), "{ended}");
}

#[fixture::test]
async fn signal_ends_a_single_copy_with_its_report() {
    let slow = r#"adopt.fields.filter={"$where": "sleep(this._id > 1200 ? 20000 : 0) || true"}"#;
    let test = TestSource::with_fields(&[slow]).await;
    test.insert(vec![doc! { "_id": 1300, "k": "k", "p": 1, "s": "new" }]).await;
    let mut once = test.start(&["--old-relay-stopped", "--once"], "");
    until_owned(&test).await;

    once.signal(Signal::TERM);
    let ended = once.until_ended(Duration::from_secs(15)).await.with_code(1);

    assert_eq!(ended.json()["copied"], 0, "{ended}");
    assert!(ended.stderr.contains("start it again to copy the rest"), "{ended}");
}

/// Types of one text are two ids.
#[fixture::test]
async fn ids_of_two_types_with_one_text_are_two_records() {
    let test = TestSource::with_fields(&[]).await;
    test.outbox.insert([record("1", "k")]).await;
    test.insert(vec![
        doc! { "_id": 1, "k": "k", "p": 1, "s": "new" },
        doc! { "_id": "1", "k": "k", "p": 2, "s": "new" },
    ])
    .await;

    let report = test.once().await;

    assert_eq!(report["copied"], 1, "{report:#}");
    assert_eq!(report["skipped"], json!({ "duplicate": 1 }), "{report:#}");
    assert_eq!(test.source(1).await.get_str("s").unwrap(), "done");
    assert_eq!(test.source("1").await.get_str("s").unwrap(), "new");
}

async fn until_owned(test: &TestSource) {
    eventually("the lease", async || {
        let control = test.outbox.admin.collection("outbox_control");
        let owned = doc! { "_id": { "$regex": "^adopt:" }, "ownedUntil": { "$ne": null } };
        control.find_one(owned).await.unwrap().is_some()
    })
    .await;
}

/// Each document is read 300 ms after the one before.
async fn slowly_scanned(more: &[&str]) -> TestSource {
    let slow = [r#"adopt.fields.filter={"$where": "sleep(300) || true"}"#];
    let test = TestSource::with_fields(&[&slow[..], more].concat()).await;
    test.insert((1..=9).map(|id| doc! { "_id": id, "k": "k", "p": id, "s": "new" }).collect())
        .await;
    test
}

/// It was there before, and has its place.
#[fixture::test]
async fn document_that_is_touched_during_the_scan_keeps_its_place() {
    let test = slowly_scanned(&[]).await;
    let mut bridge = test.start(&["--old-relay-stopped"], "");
    bridge.until_logged("scanning the other outbox").await;
    let touched = doc! { "$set": { "touched": true } };
    test.documents().update_one(doc! { "_id": 7 }, touched).await.unwrap();

    test.until_copied(9).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, (1..=9_i64).map(Bson::from).collect::<Vec<_>>());
}

/// The change stream has it, which a single copy does not read: it scans again.
#[fixture::test]
async fn document_that_becomes_undelivered_during_a_single_copy_is_copied() {
    let test = slowly_scanned(&[]).await;
    test.insert(vec![doc! { "_id": 10, "k": "k", "p": 10, "s": "odd" }]).await;
    let mut once = test.start(&["--old-relay-stopped", "--once"], "");
    until_owned(&test).await;
    let new = doc! { "$set": { "s": "new" } };
    test.documents().update_one(doc! { "_id": 10 }, new).await.unwrap();

    let ended = once.until_ended(Duration::from_secs(60)).await.with_code(0);

    assert_eq!((&ended.json()["copied"], &ended.json()["skipped"]), (&json!(10), &json!({})));
}

/// What MongoDB refuses does not renew the lease with it.
#[fixture::test(long)]
async fn two_bridges_copy_behind_many_refused_documents() {
    let test = TestSource::with_fields(&[]).await;
    let document = |id: i32| doc! { "_id": id, "k": "k", "p": id, "s": "new" };
    test.insert((0..1_000).map(document).collect()).await;
    test.insert((2_000..2_003).map(document).collect()).await;
    let database = test.outbox.client.database(&test.outbox.database);
    let unchanged = doc! { "$or": [{ "_id": { "$gte": 2_000 } }, { "s": "new" }] };
    let change = doc! { "collMod": &test.collection, "validator": unchanged };
    database.run_command(change).await.unwrap();

    let mut first = test.start(&["--old-relay-stopped"], "");
    let mut second = test.start(&["--old-relay-stopped"], "");
    // A busy machine takes a minute for each half of them.
    let refused = "postrider_adopt_skipped_total{reason=\"refused\"}";
    eventually("half of the refusals", async || {
        let counts = [first.metric(refused).await, second.metric(refused).await];
        counts.into_iter().flatten().sum::<f64>() >= 500.0
    })
    .await;
    test.until_copied(3).await;

    first.stop().await;
    second.stop().await;
}

/// A rotation by name: the collection is renamed, and a new one takes its name.
#[fixture::test]
async fn documents_inserted_before_their_collection_ends_are_copied() {
    let test = TestSource::new("debezium", &[]).await;
    test.insert(vec![debezium(1, "k")]).await;
    let from = ["--old-relay-stopped", "--from", "now"];
    let mut bridge = test.receiving(&from[1..]).await;
    bridge.stop().await;
    test.insert((2..=4).map(|id| debezium(id, "k")).collect()).await;
    test.documents().drop().await.unwrap();
    test.insert(vec![debezium(9, "k")]).await;

    let ended = test.adopt(&from).await.with_code(1);

    assert!(ended.stderr.contains("cannot be resumed"), "{ended}");
    assert_eq!(test.ids().await, [2_i64, 3, 4].map(Bson::from));
}

#[fixture::test]
async fn ids_of_several_types_cannot_be_a_start() {
    let test = TestSource::new("debezium", &[]).await;
    test.insert(vec![debezium(1, "k"), debezium("x", "k"), debezium(ObjectId::new(), "k")]).await;

    let refused = test.adopt(&["--once", "--old-relay-stopped", "--from", "1"]).await.with_code(1);

    assert!(refused.stderr.contains("have several types"), "{refused}");
    let negative = test.adopt(&["--once", "--old-relay-stopped", "--from", "-5"]).await;
    assert!(negative.with_code(1).stderr.contains("have several types"));
}

#[fixture::test]
async fn dry_run_shows_what_was_copied_before() {
    let test = TestSource::new("debezium", &[]).await;
    test.insert((1..=3).map(|id| debezium(id, "k")).collect()).await;
    let from = ["--old-relay-stopped", "--once", "--from", "1"];
    assert_eq!(test.adopt(&from).await.with_code(0).json()["copied"], 2);
    test.insert(vec![debezium(4, "k")]).await;

    let report = test.adopt(&["--dry-run", "--from", "1"]).await.with_code(0).json();

    assert_eq!(report["copied"], 1, "{report:#}");
    assert_eq!(report["skipped"], json!({ "duplicate": 2 }), "{report:#}");
}
