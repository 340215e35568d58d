//! Each preset, with documents in every state, as the libraries write them.
//!
//! Sources: namastack/namastack-outbox `MongoOutboxRecordEntity.kt` (311d1d7c6a90a986a8c84df868c603197540d744);
//! dotnetcore/CAP `StorageMessage.cs` (3f144b57c49ecb3b8388368f42115790ca45e39c) and `IDataStorage.MongoDB.cs`
//! (07f6bb5581a311c121d9b70567c7eda43793852f); the documents of Debezium's MongoDB router are those of the application.

use bson::oid::ObjectId;
use bson::{Bson, DateTime, Document, doc};

use crate::util::TestSource;

pub fn namastack(id: &str, key: &str, status: &str, second: i64) -> Document {
    let at = DateTime::from_millis(1_700_000_000_000 + second * 1_000);
    doc! {
        "_id": id, "status": status, "recordKey": key, "recordType": "com.shop.OrderCreated",
        "payload": r#"{"order": 1.50}"#, "context": r#"{"traceparent": "00-1"}"#, "partitionNo": 7,
        "createdAt": at, "completedAt": null, "failureCount": 0, "failureReason": null,
        "nextRetryAt": at, "handlerId": "orders", "_class": "io.namastack.outbox.MongoOutboxRecordEntity",
    }
}

pub fn cap(
    id: i64,
    status: &str,
    retries: i32,
    expires: Option<DateTime>,
    key: Option<&str>,
) -> Document {
    let mut headers = serde_json::json!({ "cap-msg-id": id.to_string(), "cap-msg-name": "order.created", "cap-corr-seq": "0" });
    if let Some(key) = key {
        headers["cap-kafka-key"] = key.into();
    }
    let content = serde_json::json!({ "Headers": headers, "Value": { "order": id, "total": 2.5 } });
    doc! {
        "_id": id, "Version": "v1", "Name": "order.created", "Content": content.to_string(),
        "Added": DateTime::from_millis(1_700_000_000_000 - id), "ExpiresAt": expires, "Retries": retries,
        "StatusName": status, "_lockToken": ObjectId::from_bytes([0; 12]),
    }
}

#[fixture::test]
async fn namastack_documents_of_one_handler_are_copied_by_their_time() {
    let test = TestSource::new("namastack", &["adopt.handler=orders"]).await;
    let mut other = namastack("other", "k", "NEW", 0);
    other.insert("handlerId", "mails");
    let mut malformed = namastack("broken", "k", "NEW", 0);
    malformed.insert("payload", "{");
    let mut keyless = namastack("keyless", "k", "NEW", 0);
    keyless.remove("recordKey");
    test.insert(vec![
        namastack("b", "k", "NEW", 2),
        namastack("a", "k", "NEW", 3),
        namastack("c", "k", "NEW", 1),
        namastack("done", "k", "COMPLETED", 0),
        namastack("failed", "k", "FAILED", 0),
        namastack("odd", "k", "PAUSED", 0),
        malformed,
        keyless,
        other,
    ])
    .await;
    let before = test.source("odd").await;

    let dry = test.adopt(&["--dry-run"]).await.with_code(0).json();
    assert_eq!(test.records().await.len(), 0);
    let report = test.once().await;

    assert_eq!(
        (&dry["copied"], &dry["skipped"]),
        (&report["copied"], &report["skipped"]),
        "{dry:#}"
    );
    assert_eq!(report["copied"], 3, "{report:#}");
    let skipped = serde_json::json!({ "unknown_status": 1, "malformed": 2, "failed": 1 });
    assert_eq!(report["skipped"], skipped, "{report:#}");
    let details = report["documents"].to_string();
    assert!(
        details.contains("status = PAUSED") && details.contains("the key is absent"),
        "{details}"
    );
    assert_eq!(test.ids().await, ["c", "b", "a"].map(Bson::from));
    let record = &test.records().await[0];
    assert_eq!(record.get_str("payload").unwrap(), r#"{"order": 1.50}"#);
    assert_eq!(record.get_str("key").unwrap(), "k");
    assert_eq!(record.get_str("type").unwrap(), "com.shop.OrderCreated");
    assert_eq!(record.get_document("headers").unwrap(), &doc! { "traceparent": "00-1" });
    let marked = test.source("c").await;
    assert_eq!(marked.get_str("status").unwrap(), "COMPLETED");
    assert!(marked.get_datetime("completedAt").is_ok());
    assert_eq!(test.source("odd").await, before);
    assert_eq!(test.source("other").await.get_str("status").unwrap(), "NEW");
    assert_eq!(test.once().await["copied"], 0);
}

#[fixture::test]
async fn failed_documents_are_copied_on_request_only() {
    let test =
        TestSource::new("namastack", &["adopt.handler=orders", "adopt.copy_failed=true"]).await;
    test.insert(vec![namastack("failed", "k", "FAILED", 0)]).await;

    assert_eq!(test.once().await["copied"], 1);
    assert_eq!(test.source("failed").await.get_str("status").unwrap(), "COMPLETED");
}

/// `Value` is sent as CAP wrote it: a text stays a text, and digits stay.
#[fixture::test]
async fn values_of_cap_stay_as_they_are_written() {
    let test = TestSource::new("cap", &[]).await;
    let values = [
        r#""hello""#,
        "1.10",
        "12345678901234567890123",
        r#"{"$numberLong": "5"}"#,
        r#"{"b": 1,  "a": 2.0}"#,
        "[]",
        "null",
    ];
    let written = values.iter().zip(1_i64..).map(|(value, id)| {
        let mut document = cap(id, "Scheduled", 0, None, None);
        document.insert("Added", DateTime::from_millis(id));
        let headers = r#"{"cap-msg-name": "order.created"}"#;
        document.insert("Content", format!(r#"{{"Headers": {headers}, "Value": {value}}}"#));
        document
    });
    test.insert(written.collect()).await;

    assert_eq!(test.once().await["copied"], values.len());

    let records = test.records().await;
    let payloads: Vec<&Bson> =
        records.iter().map(|record| record.get("payload").unwrap()).collect();
    let expected: Vec<Bson> = values
        .iter()
        .map(|value| if *value == "null" { Bson::Null } else { (*value).into() })
        .collect();
    assert_eq!(payloads, expected.iter().collect::<Vec<_>>());
    assert_eq!(records[0].get_str("contentType").unwrap(), "application/json");
}

/// A header or key that is lost without a word would be another message.
#[fixture::test]
async fn cap_messages_whose_headers_or_own_key_cannot_be_read_are_skipped() {
    let test = TestSource::new("cap", &["adopt.fields.key=Content.Value.id"]).await;
    let contents = [
        r#"{"Headers": {"d": {"$date": "x"}}, "Value": {"id": 1}}"#,
        r#"{"Headers": {"$oid": "zz", "cap-msg-id": "36"}, "Value": {"id": 1}}"#,
        r#"{"Headers": {"a": "\ud800"}, "Value": {"id": 1}}"#,
        r#"{"Headers": {"n": 12345678901234567890123}, "Value": {"id": 1}}"#,
        r#"{"Headers": {}, "Value": {"ID": "x"}}"#,
        r#"{"Headers": {}, "Value": {"id": {"$oid": "x"}}}"#,
        "plain",
        r#"{"Headers": {"n": 5}, "Value": {"id": 1}}"#,
    ];
    let documents = contents.iter().zip(1_i64..).map(|(content, id)| {
        let mut document = cap(id, "Scheduled", 0, None, None);
        document.insert("Content", *content);
        document
    });
    test.insert(documents.collect()).await;

    let report = test.once().await;

    assert_eq!(report["copied"], 1, "{report:#}");
    assert_eq!(report["skipped"], serde_json::json!({ "malformed": 7 }), "{report:#}");
    let details = report["documents"].to_string();
    for detail in
        ["the headers", "the key is absent", "the payload (Content) cannot be read as JSON"]
    {
        assert!(details.contains(detail), "{detail}: {report:#}");
    }
}

#[fixture::test]
async fn cap_messages_are_copied_with_headers_and_due_times() {
    let test = TestSource::new("cap", &[]).await;
    let day = 86_400_000;
    let (past, future) =
        (DateTime::from_millis(1), DateTime::from_millis(DateTime::now().timestamp_millis() + day));
    test.insert(vec![
        cap(1, "Scheduled", 0, None, Some("order-1")),
        cap(2, "Failed", 49, Some(future), None),
        cap(3, "Failed", 50, Some(future), None),
        cap(4, "Delayed", 0, Some(future), None),
        cap(5, "Queued", 0, Some(past), None),
        cap(6, "Succeeded", 0, Some(future), None),
        cap(7, "Processing", 0, None, None),
    ])
    .await;

    let report = test.once().await;

    assert_eq!(report["copied"], 4, "{report:#}");
    assert_eq!(
        report["skipped"],
        serde_json::json!({ "unknown_status": 1, "failed": 1 }),
        "{report:#}"
    );
    // By `Added`, which falls with the id.
    assert_eq!(test.ids().await, [5_i64, 4, 2, 1].map(Bson::from));
    let records = test.records().await;
    let first = &records[3];
    assert_eq!(first.get_str("key").unwrap(), "order-1");
    assert_eq!(first.get_str("type").unwrap(), "order.created");
    assert_eq!(first.get_str("payload").unwrap(), r#"{"order":1,"total":2.5}"#);
    assert_eq!(first.get_document("headers").unwrap().get_str("cap-msg-id").unwrap(), "1");
    assert!(!records[2].contains_key("key"));
    assert_eq!(records[1].get_str("status").unwrap(), "scheduled");
    assert_eq!(records[1].get_datetime("visibleAt").unwrap(), &future);
    assert_eq!(records[0].get_str("status").unwrap(), "pending");
    let marked = test.source(1_i64).await;
    assert_eq!(marked.get_str("StatusName").unwrap(), "Succeeded");
    assert!(*marked.get_datetime("ExpiresAt").unwrap() > DateTime::now());
    assert_eq!(test.source(3_i64).await.get_str("StatusName").unwrap(), "Failed");
}

#[fixture::test]
async fn go_article_documents_need_type_and_key() {
    let test = TestSource::new("go-article", &["adopt.fields.type=data.type"]).await;
    let refused = test.adopt(&["--once", "--old-relay-stopped"]).await.with_code(2);
    assert!(refused.stderr.contains("adopt.fields.key: is not set"), "{refused}");

    let more = ["adopt.fields.type=data.type", "adopt.fields.key=data.order"];
    let test = TestSource { more: more.map(str::to_owned).to_vec(), ..test };
    let data = |order: i32| doc! { "type": "OrderCreated", "order": order };
    test.insert(vec![
        doc! { "_id": ObjectId::new(), "data": data(1), "published": false },
        doc! { "_id": ObjectId::new(), "data": data(2), "published": true },
        doc! { "_id": ObjectId::new(), "data": data(3) },
        doc! { "_id": ObjectId::new(), "data": data(4), "published": false },
    ])
    .await;

    let report = test.once().await;

    assert_eq!(report["copied"], 2, "{report:#}");
    assert_eq!(report["skipped"], serde_json::json!({ "unknown_status": 1 }), "{report:#}");
    let records = test.records().await;
    assert_eq!(records[0].get_document("payload").unwrap(), &data(1));
    assert_eq!(records[1].get_str("key").unwrap(), "4");
    let id = records[0].get("_id").unwrap().clone();
    assert!(test.source(id).await.get_bool("published").unwrap());
}

#[fixture::test]
async fn debezium_documents_keep_their_topic_and_extended_json() {
    let test = TestSource::new("debezium", &[]).await;
    let (first, id) = (ObjectId::new(), ObjectId::new());
    let order = ObjectId::new();
    let document = |id| {
        doc! {
            "_id": id, "aggregatetype": "Order", "aggregateid": order, "type": "OrderCreated",
            "payload": { "total": 1 },
        }
    };
    test.insert(vec![document(first), document(id)]).await;
    let refused = test.adopt(&["--once", "--old-relay-stopped"]).await.with_code(1);
    assert!(refused.stderr.contains("--from"), "{refused}");

    let from = first.to_hex();
    let once = ["--once", "--old-relay-stopped", "--from", &from];
    let report = test.adopt(&once).await.with_code(0).json();
    let again = test.adopt(&once).await.with_code(0).json();

    assert_eq!((&report["copied"], &again["copied"]), (&1.into(), &0.into()), "{again:#}");
    assert_eq!(again["skipped"], serde_json::json!({ "duplicate": 1 }));
    let records = test.records().await;
    assert_eq!(records[0].get_str("destination").unwrap(), "outbox.event.Order");
    assert_eq!(records[0].get_str("key").unwrap(), order.to_hex());
    assert_eq!(records[0].get_str("payload").unwrap(), r#"{"total":{"$numberInt":"1"}}"#);
    assert_eq!(records[0].get_document("headers").unwrap(), &doc! { "id": id.to_hex() });
    assert_eq!(test.source(id).await, document(id));
}

#[fixture::test]
async fn koan_documents_are_copied_by_a_mapping() {
    let more = [
        "adopt.fields.key=EntityId",
        "adopt.fields.type==koan.{EntityType}.{Operation}",
        "adopt.fields.payload=PayloadJson",
        "adopt.fields.payload_form=json",
        "adopt.fields.headers=Headers",
        "adopt.fields.time=OccurredAt",
        "adopt.fields.status=Status",
        r#"adopt.fields.undelivered=["Pending"]"#,
        r#"adopt.fields.delivered=["Done"]"#,
        r#"adopt.fields.failed=["Dead"]"#,
    ];
    let test = TestSource::new("fields", &more).await;
    let document = |id: &str, status: &str, second: i64| {
        doc! {
            "_id": id, "OccurredAt": DateTime::from_millis(second * 1_000), "EntityType": "Order", "Operation": "Upsert",
            "EntityId": "o-1", "PayloadJson": r#"{"a":1}"#, "Headers": null, "PartitionKey": "Order",
            "DedupKey": null, "Attempt": 1, "VisibleAt": DateTime::from_millis(0), "LeaseId": null, "LeaseUntil": null,
            "Status": status, "DeadReason": null,
        }
    };
    test.insert(vec![
        document("2", "Pending", 2),
        document("1", "Pending", 1),
        document("3", "Done", 0),
        document("4", "Dead", 0),
    ])
    .await;

    let report = test.once().await;

    assert_eq!(report["copied"], 2, "{report:#}");
    let records = test.records().await;
    assert_eq!(test.ids().await, ["1", "2"].map(Bson::from));
    assert_eq!(records[0].get_str("type").unwrap(), "koan.Order.Upsert");
    assert_eq!(records[0].get_str("key").unwrap(), "o-1");
    assert_eq!(test.source("1").await.get_str("Status").unwrap(), "Done");
}
