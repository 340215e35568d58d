//! What disturbs a bridge: late commits, two owners, kills, other writers.

use std::time::Duration;

use bson::{Bson, DateTime, doc};
use postrider::schema::roles::{ADOPT, SOURCE_ACTIONS};

use crate::oplog::own_set;
use crate::presets::namastack;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Postrider, Signal};
use crate::support::roles;
use crate::util::{TestSource, debezium};

async fn source() -> TestSource {
    TestSource::new("namastack", &["adopt.handler=orders"]).await
}

fn start(test: &TestSource, fail_points: Option<&str>) -> Postrider {
    test.start(&["--old-relay-stopped"], fail_points.unwrap_or_default())
}

#[fixture::test]
async fn documents_that_arrive_are_copied_in_the_order_of_their_commits() {
    let test = source().await;
    let mut late = test.outbox.client.start_session().await.unwrap();
    late.start_transaction().await.unwrap();
    // Open while the bridge scans; its time is before all others.
    let documents = test.documents();
    test.insert(vec![namastack("a", "k", "NEW", 5)]).await;
    documents.insert_one(namastack("late", "k", "NEW", 0)).session(&mut late).await.unwrap();
    let mut bridge = test.receiving(&[]).await;
    test.insert(vec![namastack("b", "k", "NEW", 9)]).await;
    test.until_copied(2).await;
    late.commit_transaction().await.unwrap();
    test.until_copied(3).await;
    test.insert(vec![namastack("c", "k", "NEW", 1)]).await;
    test.until_copied(4).await;
    // Changed back by an operator.
    test.insert(vec![namastack("odd", "k", "PAUSED", 1)]).await;
    documents
        .update_one(doc! { "_id": "odd" }, doc! { "$set": { "status": "NEW" } })
        .await
        .unwrap();
    test.until_copied(5).await;

    let ended = bridge.stop().await;

    assert_eq!(ended.code, Some(0), "{ended}");
    assert_eq!(test.ids().await, ["a", "b", "late", "c", "odd"].map(Bson::from));
}

/// What is committed while a scan reads has the order of its commits, not that of its time.
#[fixture::test]
async fn documents_that_arrive_during_a_scan_are_copied_in_the_order_of_their_commits() {
    let test = source().await;
    test.insert(vec![namastack("b", "k", "NEW", 9), namastack("a", "k", "NEW", 8)]).await;
    let mut bridge = start(&test, Some("adopt::before_scan=sleep(3000)"));
    bridge.until_logged("scanning the other outbox").await;
    for (id, second) in [("c", 5), ("d", 1), ("e", 3)] {
        test.insert(vec![namastack(id, "k", "NEW", second)]).await;
    }
    test.until_copied(5).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, ["a", "b", "c", "d", "e"].map(Bson::from));
}

#[fixture::test(long)]
async fn killed_bridge_is_replaced_and_each_document_copied_once() {
    for place in ["adopt::before_commit", "adopt::after_commit"] {
        let mut test = source().await;
        test.more.push("adopt.batch_size=10".to_owned());
        let document = |at: i64| namastack(&format!("{at:03}"), &format!("k{}", at % 3), "NEW", at);
        test.insert((0..50).map(document).collect()).await;

        let mut killed = start(&test, Some(&format!("{place}=2*off->return")));
        let ended = killed.until_ended(Duration::from_secs(30)).await;
        assert_eq!(ended.code, None, "{ended}");
        let mut second = start(&test, None);
        let third = start(&test, None);
        test.until_copied(50).await;
        test.insert((50..60).map(document).collect()).await;
        test.until_copied(60).await;
        let ids: Vec<Bson> = (0..60).map(|at| Bson::from(format!("{at:03}"))).collect();
        assert_eq!(test.ids().await, ids, "{place}");

        second.signal(Signal::KILL);
        second.until_ended(Duration::from_secs(10)).await;
        test.insert((60..70).map(document).collect()).await;
        test.until_copied(70).await;
        let left = test.documents().count_documents(doc! { "status": "NEW" }).await.unwrap();
        assert_eq!((left, test.records().await.len()), (0, 70), "{place}");
        drop(third);
    }
}

#[fixture::test]
async fn user_with_the_role_may_copy_and_replace_a_killed_bridge() {
    let outbox = TestOutbox::restricted().await;
    let name = outbox.database.clone();
    let mut test = TestSource::of(outbox, "namastack", &["adopt.handler=orders"]);
    test.collection = "old_outbox_records".to_owned();
    let database = test.outbox.client.database(&name);
    let mut privileges = roles::privileges(&ADOPT, &name, "", Duration::MAX);
    let on = |collection: &str| doc! { "db": &name, "collection": collection };
    let of_source = SOURCE_ACTIONS.to_vec();
    privileges.extend([
        doc! { "resource": on("old_outbox_records"), "actions": of_source },
        doc! { "resource": on("old_outbox_instances"), "actions": ["find"] },
    ]);
    roles::permit(&database, ADOPT.name, privileges).await.unwrap();
    test.more.extend([
        format!("mongo.uri={}", roles::uri_of(&ADOPT, &name)),
        "outbox.auto_init_schema=false".to_owned(),
    ]);
    test.insert(vec![namastack("a", "k", "NEW", 1)]).await;

    let mut killed = start(&test, Some("adopt::before_commit=return"));
    let ended = killed.until_ended(Duration::from_secs(30)).await;
    assert_eq!(ended.code, None, "{ended}");
    let mut bridge = test.receiving(&[]).await;
    test.insert(vec![namastack("b", "k", "NEW", 0)]).await;
    test.until_copied(2).await;

    let ended = bridge.stop().await;

    assert_eq!(test.ids().await, ["a", "b"].map(Bson::from));
    // (It looks before it writes, and so meets no refusal on its way.)
    assert!(!ended.stderr.contains("failed"), "{ended}");
}

#[fixture::test]
async fn documents_without_a_status_are_continued_from_the_stored_token() {
    let test = TestSource::new("debezium", &[]).await;
    let document = |id: i32| debezium(id, "k");
    let run = |more: &[&str]| test.start(&[&["--old-relay-stopped"], more].concat(), "");
    test.insert(vec![document(1)]).await;
    let mut unplaced = run(&[]);
    let ended = unplaced.until_ended(Duration::from_secs(30)).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("--from now"), "{ended}");

    let mut bridge = test.receiving(&["--from", "now"]).await;
    // Deleted by its producer at once.
    test.insert(vec![document(2)]).await;
    test.documents().delete_one(doc! { "_id": 2 }).await.unwrap();
    test.until_copied(1).await;
    bridge.signal(Signal::KILL);
    bridge.until_ended(Duration::from_secs(10)).await;
    test.insert(vec![document(3)]).await;
    test.documents().delete_one(doc! { "_id": 3 }).await.unwrap();
    // The same arguments: the stored resume token goes before them.
    let mut bridge = run(&["--from", "now"]);
    test.until_copied(2).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, [2_i64, 3].map(Bson::from));

    // A lost resume token: the collection is dropped.
    let mut bridge = test.receiving(&[]).await;
    test.documents().drop().await.unwrap();
    let ended = bridge.until_ended(Duration::from_secs(30)).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("cannot be resumed"), "{ended}");
}

#[fixture::test]
async fn lost_stream_of_documents_with_a_status_leads_to_a_scan() {
    let test = source().await;
    test.insert(vec![namastack("done", "k", "COMPLETED", 1)]).await;
    let mut bridge = test.receiving(&[]).await;
    test.documents().drop().await.unwrap();
    bridge.until_logged("there is no collection").await;
    test.insert(vec![namastack("b", "k", "NEW", 2), namastack("a", "k", "NEW", 3)]).await;
    test.until_copied(2).await;
    assert_eq!(test.ids().await, ["b", "a"].map(Bson::from));
    let series = r#"postrider_adopt_scans_total{reason="lost_stream"}"#;
    bridge.until_metric(series, |value| value >= 1.0).await;
    bridge.stop().await;
}

/// The documents of another handler are another relay's, also those that arrive.
#[fixture::test]
async fn documents_of_another_handler_are_left_when_they_arrive() {
    let test = source().await;
    test.insert(vec![namastack("done", "k", "COMPLETED", 0)]).await;
    let mut bridge = test.receiving(&[]).await;
    let mut other = namastack("mail", "k", "NEW", 1);
    other.insert("handlerId", "mails");
    test.insert(vec![other, namastack("a", "k", "NEW", 2)]).await;
    test.until_copied(1).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, ["a"].map(Bson::from));
    assert_eq!(test.source("mail").await.get_str("status").unwrap(), "NEW");
}

/// MongoDB has committed, and its answer does not say so.
#[fixture::test]
async fn copy_whose_commit_is_unknown_is_counted_once() {
    let with_status = |id: i64| namastack(&id.to_string(), "k", "NEW", id);
    for (preset, more, from) in
        [("namastack", &["adopt.handler=orders"][..], &[][..]), ("debezium", &[], &["--from", "0"])]
    {
        let (set, test) = own_set(preset, more).await;
        let has_status = preset == "namastack";
        let documents = (0..4)
            .map(|id| if has_status { with_status(id) } else { debezium(id.to_string(), "k") });
        test.insert(documents.collect()).await;
        let unsatisfiable =
            doc! { "code": 100, "codeName": "UnsatisfiableWriteConcern", "errmsg": "-" };
        let fail = doc! {
            "configureFailPoint": "failCommand",
            "mode": { "times": 1 },
            "data": { "failCommands": ["commitTransaction"], "writeConcernError": unsatisfiable },
        };
        set.direct(0).database("admin").run_command(fail).await.unwrap();

        let once = [&["--once", "--old-relay-stopped"], from].concat();
        let report = test.adopt(&once).await.with_code(0).json();

        assert_eq!(report["copied"], if has_status { 4 } else { 3 }, "{report:#}");
        assert_eq!(report["skipped"], serde_json::json!({}), "{report:#}");
        let entered =
            doc! { "waitForFailPoint": "failCommand", "timesEntered": 1, "maxTimeMS": 1_000 };
        set.direct(0).database("admin").run_command(entered).await.unwrap();
    }
}

#[fixture::test]
async fn bridge_reports_each_loss_of_its_lease() {
    const STANDBY: &str = "another process copies this source";
    let test = source().await;
    test.insert(vec![namastack("done", "k", "COMPLETED", 0)]).await;
    let mut bridge = start(&test, None);
    let control = test.outbox.admin.collection("outbox_control");
    for losses in 1..=2 {
        bridge.until_metric("postrider_adopt_owner", |value| value == 1.0).await;
        let bridges = doc! { "_id": { "$regex": "^adopt:" } };
        let far = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
        let other = doc! { "$set": { "owner": "another", "ownedUntil": far } };
        control.update_one(bridges.clone(), other).await.unwrap();
        let is_reported = async || bridge.stderr().matches(STANDBY).count() == losses;
        eventually("the report", is_reported).await;
        let free = doc! { "$unset": { "ownedUntil": "" } };
        control.update_one(bridges, free).await.unwrap();
    }
    bridge.stop().await;
}

/// A producer that writes steadily does not keep the batch open.
#[fixture::test]
async fn documents_that_arrive_one_by_one_are_copied_meanwhile() {
    let test = source().await;
    test.insert(vec![namastack("done", "k", "COMPLETED", 0)]).await;
    let mut bridge = test.receiving(&[]).await;
    let mut written = 0_i64;
    while test.records().await.len() < 5 {
        assert!(written < 200, "nothing is copied while producers write");
        test.insert(vec![namastack(&format!("{written:03}"), "k", "NEW", written)]).await;
        written += 1;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    bridge.stop().await;
}

/// Two documents of a batch with one message id: the first is copied.
#[fixture::test]
async fn second_document_of_an_id_is_skipped() {
    let mut test = source().await;
    test.more.push("adopt.fields.id=recordKey".to_owned());
    test.insert(vec![namastack("a", "k", "NEW", 1), namastack("b", "k", "NEW", 2)]).await;

    let report = test.once().await;

    assert_eq!(report["copied"], 1, "{report:#}");
    assert_eq!(report["skipped"], serde_json::json!({ "duplicate": 1 }), "{report:#}");
    assert_eq!(test.source("b").await.get_str("status").unwrap(), "NEW");
}
