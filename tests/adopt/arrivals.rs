//! What a document may do between its insertion and its copy.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;

use crate::presets::namastack;
use crate::util::{TestSource, debezium};

fn routed(id: &str, event: &str) -> Document {
    let mut document = debezium(id, "k");
    document.insert("event", event);
    document
}

/// One transaction inserts it and changes it.
#[fixture::test]
async fn document_that_is_changed_after_its_insertion_is_copied_as_it_is() {
    let test = TestSource::new("namastack", &["adopt.handler=orders"]).await;
    test.insert(vec![namastack("done", "k", "COMPLETED", 0)]).await;
    let mut bridge = test.receiving(&[]).await;
    let documents = test.documents();
    let mut session = test.outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    documents.insert_one(namastack("a", "k", "NEW", 1)).session(&mut session).await.unwrap();
    let changed = doc! { "$set": { "payload": r#"{"order": 2}"# } };
    documents.update_one(doc! { "_id": "a" }, changed).session(&mut session).await.unwrap();
    session.commit_transaction().await.unwrap();

    test.until_copied(1).await;
    bridge.stop().await;

    assert_eq!(test.records().await[0].get_str("payload").unwrap(), r#"{"order": 2}"#);
}

/// The filter cannot be a condition on a change.
#[fixture::test]
async fn document_that_the_filter_does_not_select_is_left_when_it_arrives() {
    let more = ["adopt.handler=orders", r#"adopt.fields.filter={"partitionNo": 7}"#];
    let test = TestSource::new("namastack", &more).await;
    test.insert(vec![namastack("done", "k", "COMPLETED", 0)]).await;
    let mut bridge = test.receiving(&[]).await;
    let mut other = namastack("other", "k", "NEW", 1);
    other.insert("partitionNo", 8);
    test.insert(vec![other, namastack("a", "k", "NEW", 2)]).await;

    test.until_copied(1).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, [Bson::from("a")]);
    assert_eq!(test.source("other").await.get_str("status").unwrap(), "NEW");
}

/// A message whose document was deleted at once, and whose `_id` was used again.
#[fixture::test]
async fn each_insertion_of_an_id_is_a_message() {
    let test = TestSource::new("debezium", &["adopt.fields.id=event"]).await;
    test.insert(vec![routed("0", "0")]).await;
    let mut bridge = test.receiving(&["--from", "now"]).await;
    let mut session = test.outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    for event in ["a", "b", "c"] {
        let documents = test.documents();
        documents.insert_one(routed("1", event)).session(&mut session).await.unwrap();
        documents.delete_one(doc! { "_id": "1" }).session(&mut session).await.unwrap();
    }
    session.commit_transaction().await.unwrap();

    test.until_copied(3).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, ["a", "b", "c"].map(Bson::from));
}

/// As canonical extended JSON it is larger than MongoDB permits.
#[fixture::test]
async fn document_whose_record_would_be_too_large_is_skipped() {
    let test = TestSource::new("debezium", &["adopt.fields.id=event"]).await;
    let mut large = routed("1", "large");
    large.insert("payload", doc! { "numbers": vec![1; 900_000] });
    test.insert(vec![routed("0", "0"), large, routed("2", "b")]).await;

    let report = test.adopt(&["--once", "--old-relay-stopped", "--from", "0"]).await;
    let report = report.with_code(0).json();

    assert_eq!(report["copied"], 1, "{report:#}");
    let skipped = &report["documents"][0];
    assert_eq!(skipped["reason"], "malformed", "{report:#}");
    assert!(skipped["detail"].as_str().unwrap().contains("larger than 16 MB"), "{report:#}");
    assert_eq!(test.ids().await, [Bson::from("b")]);
}

/// The relay adds fields to a record: an error of 1,000 characters may have 4,000 bytes.
#[fixture::test]
async fn record_without_room_for_the_fields_of_the_relay_is_skipped() {
    let test = TestSource::new("debezium", &["adopt.fields.id=event"]).await;
    let mut large = routed("1", "large");
    large.insert("payload", "x".repeat((16 << 20) - (8 << 10)));
    test.insert(vec![routed("0", "0"), large]).await;

    let report = test.adopt(&["--once", "--old-relay-stopped", "--from", "0"]).await;

    let report = report.with_code(0).json();
    assert_eq!(report["skipped"], serde_json::json!({ "malformed": 1 }), "{report:#}");
}

/// The marks of the bridge are changes of the source, too.
#[fixture::test]
async fn mark_of_a_copied_document_is_not_read_again() {
    // By the size of what is around it, MongoDB reports the change of a nested status in another form.
    let more = "x".repeat(100);
    for (path, status) in [
        ("s", doc! { "s": 0 }),
        ("m.s", doc! { "m": { "s": 0 } }),
        ("m.s", doc! { "m": { "s": 0, "more": &more } }),
        ("a.b.s", doc! { "a": { "b": { "s": 0 }, "more": &more } }),
    ] {
        let more = [
            "adopt.fields.key=k",
            "adopt.fields.type==T",
            "adopt.fields.payload=p",
            &format!("adopt.fields.status={path}"),
            r#"adopt.fields.undelivered=["0"]"#,
            r#"adopt.fields.delivered=["1"]"#,
        ];
        let test = TestSource::new("fields", &more).await;
        test.insert(vec![doc! { "_id": 0 }]).await;
        let mut bridge = test.receiving(&[]).await;
        let database = test.outbox.client.database(&test.outbox.database);
        database.run_command(doc! { "profile": 2 }).await.unwrap();
        for id in 1..=3 {
            let mut document = doc! { "_id": id, "k": "k", "p": 1 };
            document.extend(status.clone());
            test.insert(vec![document]).await;
            test.until_copied(usize::try_from(id).unwrap()).await;
        }
        bridge.stop().await;
        database.run_command(doc! { "profile": 0 }).await.unwrap();

        let profile = database.collection::<Document>("system.profile");
        let reads = doc! { "command.find": &test.collection };
        let reads = profile.find(reads).sort(doc! { "ts": 1 }).await.unwrap();
        let reads: Vec<Document> = reads.try_collect().await.unwrap();
        let ids = reads.iter().flat_map(|read| {
            let filter = read.get_document("command").unwrap().get_document("filter").unwrap();
            let by_id = filter.get_array("$and").unwrap()[1].as_document().unwrap();
            by_id.get_document("_id").unwrap().get_array("$in").unwrap().clone()
        });
        assert_eq!(ids.collect::<Vec<_>>(), [1, 2, 3].map(Bson::from), "{status}");
    }
}

/// Without escaped quotes, both ids are one text.
#[fixture::test]
async fn documents_with_ids_that_look_alike_are_both_copied() {
    let test = TestSource::with_fields(&["adopt.fields.id=n"]).await;
    test.insert(vec![doc! { "_id": 0, "s": "done" }]).await;
    let mut bridge = test.receiving(&[]).await;
    let ids = [doc! { "a": "1", "b": "2" }, doc! { "a": r#"1", "b": "2"# }];
    let documents = ids.into_iter().zip(1..).map(|(id, n)| {
        doc! { "_id": id, "n": n, "k": "k", "p": n, "s": "new" }
    });
    test.insert(documents.collect()).await;

    test.until_copied(2).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, [1_i64, 2].map(Bson::from));
}

/// It would make the owner scan again.
#[fixture::test]
async fn restart_of_another_process_leaves_the_token_of_the_owner() {
    let test = TestSource::new("namastack", &["adopt.handler=orders"]).await;
    test.insert(vec![namastack("done", "k", "COMPLETED", 0)]).await;
    let mut owner = test.receiving(&[]).await;

    let refused = test.adopt(&["--old-relay-stopped", "--restart"]).await.with_code(1);

    assert!(refused.stderr.contains("another process copies"), "{refused}");
    let control = test.outbox.admin.collection("outbox_control");
    let state = control.find_one(doc! { "_id": { "$regex": "^adopt:" } }).await.unwrap().unwrap();
    assert!(state.get_document("token").is_ok(), "{state}");
    owner.stop().await;
}

/// Without `--from` the rest of the scan would be missing.
#[fixture::test]
async fn bridge_that_died_in_its_first_scan_needs_its_start_again() {
    let test = TestSource::new("debezium", &["adopt.fields.id=event"]).await;
    test.insert(vec![routed("0", "0"), routed("1", "a")]).await;
    let from = ["--old-relay-stopped", "--from", "0"];
    let mut killed = test.start(&from, "adopt::before_scan=return");
    let ended = killed.until_ended(Duration::from_secs(30)).await;
    assert_eq!(ended.code, None, "{ended}");

    let refused = test.adopt(&["--old-relay-stopped"]).await.with_code(1);
    assert!(refused.stderr.contains("--from: is not set"), "{refused}");
    let mut bridge = test.receiving(&from[1..]).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, [Bson::from("a")]);
}
