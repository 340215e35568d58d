//! What the bridge refuses.

use bson::{Bson, DateTime, doc};

use crate::presets::namastack;
use crate::util::TestSource;

#[fixture::test]
async fn live_relay_of_namastack_is_refused_whatever_the_operator_says() {
    let mut test = TestSource::new("namastack", &["adopt.handler=orders"]).await;
    test.collection = "old_outbox_records".to_owned();
    test.insert(vec![namastack("a", "k", "NEW", 1)]).await;
    let database = test.outbox.client.database(&test.outbox.database);
    let instances = database.collection("old_outbox_instances");
    let beat = doc! { "_id": "i-1", "status": "ACTIVE", "lastHeartbeat": DateTime::now() };
    instances.insert_one(beat).await.unwrap();

    let refused = test.adopt(&["--once", "--old-relay-stopped"]).await.with_code(1);
    assert!(refused.stderr.contains("instance i-1"), "{refused}");
    assert_eq!(test.records().await.len(), 0);
    let old = doc! { "$set": { "lastHeartbeat": DateTime::from_millis(0) } };
    instances.update_one(doc! {}, old).await.unwrap();

    let report = test.adopt(&["--once"]).await.with_code(0).json();
    assert_eq!(report["copied"], 1);
}

/// (namastack removes the instances that end.)
#[fixture::test]
async fn relays_without_a_trace_must_be_said_to_be_stopped() {
    for (preset, more) in [("cap", &[][..]), ("namastack", &["adopt.handler=orders"])] {
        let test = TestSource::new(preset, more).await;

        let refused = test.adopt(&["--once"]).await.with_code(1);

        assert!(refused.stderr.contains("--old-relay-stopped: is not set"), "{refused}");
    }
}

#[fixture::test]
async fn views_and_time_series_and_capped_collections_are_refused() {
    let more = ["adopt.fields.key=data.k", "adopt.fields.type==T"];
    let mut test = TestSource::new("go-article", &more).await;
    let database = test.outbox.client.database(&test.outbox.database);
    let unpublished = doc! { "_id": 1, "data": { "k": "k" }, "published": false };
    database.create_collection("whole").await.unwrap();
    database.run_command(doc! { "create": "old_view", "viewOn": "whole" }).await.unwrap();
    let series = doc! { "create": "old_series", "timeseries": { "timeField": "t" } };
    database.run_command(series).await.unwrap();
    let capped = doc! { "create": "old_capped", "capped": true, "size": 100_000 };
    database.run_command(capped).await.unwrap();
    database.collection("old_capped").insert_one(unpublished).await.unwrap();

    for (collection, detail) in [
        ("old_view", "is a view"),
        ("old_series", "is a timeseries"),
        ("old_capped", "is a capped collection"),
    ] {
        test.collection = collection.to_owned();
        for arguments in [&["--old-relay-stopped"][..], &["--old-relay-stopped", "--once"]] {
            let refused = test.adopt(arguments).await.with_code(1);
            assert!(refused.stderr.contains(detail), "{refused}");
        }
    }
}

#[fixture::test]
async fn filter_that_mongodb_does_not_know_is_refused() {
    let more = [
        "adopt.fields.key=data.k",
        "adopt.fields.type==T",
        r#"adopt.fields.filter={"a": {"$near_to": 1}}"#,
    ];
    let test = TestSource::new("go-article", &more).await;
    test.insert(vec![doc! { "_id": 1 }]).await;

    let refused = test.adopt(&["--dry-run"]).await.with_code(1);

    assert!(
        refused.stderr.contains("adopt.fields.filter: MongoDB rejects the condition"),
        "{refused}"
    );
    assert!(refused.stderr.contains("$near_to"), "{refused}");
}

/// Everything that is wrong, at once.
#[fixture::test]
async fn mapping_whose_parts_contradict_each_other_is_refused() {
    let required = ["adopt.fields.key=k", "adopt.fields.type==T", "adopt.fields.payload=p"];
    for (more, expected) in [
        (
            &[
                "adopt.fields.status=s",
                r#"adopt.fields.undelivered=["new", "odd"]"#,
                r#"adopt.fields.failed=["odd", "dead"]"#,
                r#"adopt.fields.delivered=["done", "dead"]"#,
                "adopt.fields.retries=tries",
                "adopt.fields.done_at=s.at",
            ][..],
            &[
                r#"adopt.fields.failed: has the status "odd", which adopt.fields.undelivered has too"#,
                r#"adopt.fields.delivered: has the status "dead", which adopt.fields.failed has too"#,
                r#"adopt.fields.retries = "tries": has no effect without adopt.fields.max_retries"#,
                r#"adopt.fields.done_at = "s.at": overlaps adopt.fields.status"#,
            ][..],
        ),
        (
            &[
                r#"adopt.fields.undelivered=["new"]"#,
                "adopt.fields.max_retries=3",
                "adopt.fields.done_after=1h",
                "adopt.handler=orders",
                "adopt.fields.time=$now",
                "adopt.fields.header.x=a..b",
            ],
            &[
                "adopt.fields.undelivered: has no effect without adopt.fields.status",
                "adopt.fields.max_retries = 3: has no effect without adopt.fields.status",
                r#"adopt.fields.done_after = "1h": has no effect without adopt.fields.done_at"#,
                r#"adopt.handler = "orders": has no effect without --preset namastack"#,
                r#"adopt.fields.time = "$now": has an invalid path"#,
                r#"adopt.fields.header.x = "a..b": has an invalid path"#,
            ],
        ),
    ] {
        let test = TestSource::new("fields", &[&required[..], more].concat()).await;

        let refused = test.adopt(&["--dry-run"]).await.with_code(2);

        for text in expected {
            assert!(refused.stderr.contains(text), "{text}: {refused}");
        }
    }
}

#[fixture::test]
async fn source_that_is_absent_and_start_without_use_are_refused() {
    let test = TestSource::new("cap", &[]).await;
    for mode in ["--once", "--dry-run"] {
        let refused = test.adopt(&[mode, "--old-relay-stopped"]).await.with_code(1);
        assert!(refused.stderr.contains("adopt.collection = old_"), "{refused}");
    }
    test.insert(vec![doc! { "_id": 1, "StatusName": "Succeeded" }]).await;

    let refused = test.adopt(&["--dry-run", "--from", "now"]).await.with_code(2);

    assert!(refused.stderr.contains("remove --from"), "{refused}");
}

#[fixture::test]
async fn namastack_needs_a_handler_and_other_collections() {
    let mut test = TestSource::new("namastack", &[]).await;
    let refused = test.adopt(&["--dry-run"]).await.with_code(2);
    assert!(refused.stderr.contains("adopt.handler: is not set"), "{refused}");

    test.more.push("adopt.handler=orders".to_owned());
    test.collection = "outbox_records".to_owned();
    let refused = test.adopt(&["--dry-run"]).await.with_code(2);
    let is = "adopt.collection = \"outbox_records\": ";
    assert!(refused.stderr.contains(is), "{refused}");
    assert!(refused.stderr.contains("outbox.collection_prefix"), "{refused}");

    test.more.push("outbox.collection_prefix=new_".to_owned());
    test.insert(vec![namastack("a", "k", "NEW", 1)]).await;
    test.adopt(&["--dry-run"]).await.with_code(0);
}

#[fixture::test]
async fn faults_of_a_mapping_are_named_by_their_keys() {
    let more = ["adopt.fields.key=a..b", "adopt.fields.status=s", "adopt.fields.filter=x"];
    let test = TestSource::new("fields", &more).await;

    let refused = test.adopt(&["--dry-run"]).await.with_code(2);

    for key in [
        "fields.key",
        "fields.type",
        "fields.payload",
        "fields.undelivered",
        "fields.delivered",
        "fields.filter",
    ] {
        assert!(refused.stderr.contains(&format!("adopt.{key}")), "{key}: {refused}");
    }
}

/// A mark of another type would not be one of the source's words, and the old relay would send the document again.
#[fixture::test]
async fn document_whose_status_the_mark_does_not_fit_is_skipped() {
    let more = [
        "adopt.fields.key=k",
        "adopt.fields.type==T",
        "adopt.fields.payload=p",
        "adopt.fields.status=s",
        "adopt.fields.due=at",
        r#"adopt.fields.undelivered=["false"]"#,
        r#"adopt.fields.delayed=["5"]"#,
        r#"adopt.fields.delivered=["Done"]"#,
    ];
    let test = TestSource::new("fields", &more).await;
    let at = DateTime::now();
    test.insert(vec![
        doc! { "_id": 1, "k": "k", "p": 1, "s": false },
        doc! { "_id": 2, "k": "k", "p": 1, "s": 5, "at": at },
        doc! { "_id": 3, "k": "k", "p": 1, "s": "5", "at": at },
    ])
    .await;

    let report = test.once().await;

    assert_eq!(report["skipped"], serde_json::json!({ "malformed": 2 }), "{report:#}");
    assert_eq!(test.ids().await, [Bson::from(3_i64)]);
    assert_eq!(test.source(2).await.get_i32("s").unwrap(), 5);
}

/// The mark would be written over what was copied.
#[fixture::test]
async fn date_of_the_mark_must_not_be_what_is_copied() {
    for done_at in ["p", "p.at", "k", "_id"] {
        let test = TestSource::with_fields(&[&format!("adopt.fields.done_at={done_at}")]).await;

        let refused = test.adopt(&["--dry-run"]).await.with_code(2);

        let is = format!("adopt.fields.done_at = \"{done_at}\": is set when");
        assert!(refused.stderr.contains(&is), "{refused}");
    }
}

#[fixture::test]
async fn status_inside_of_a_text_cannot_be_marked() {
    let more = [
        "adopt.fields.key=k",
        "adopt.fields.type==T",
        "adopt.fields.payload=p",
        "adopt.fields.status=m.s",
        r#"adopt.fields.undelivered=["new"]"#,
        r#"adopt.fields.delivered=["done"]"#,
    ];
    let test = TestSource::new("fields", &more).await;
    test.insert(vec![doc! { "_id": 1, "k": "k", "p": 1, "m": r#"{"s": "new"}"# }]).await;

    let report = test.once().await;

    assert_eq!(report["skipped"], serde_json::json!({ "malformed": 1 }), "{report:#}");
}
