//! Standard output: a line for each message, with the documented fields only.

use std::collections::BTreeMap;

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document, Uuid, doc};
use serde_json::{Value, json};

use crate::destinations::brokers::record;
use crate::support::outbox::TestOutbox;
use crate::support::process::Postrider;
use crate::support::queue::{mongo_settings, stdout_sink};

/// The fields before the payload, in their order.
const FIELDS: [&str; 7] =
    ["id", "key", "type", "destination", "contentType", "headers", "timestamp"];

/// The lines of a relay that also logs as much as it can.
async fn lines(outbox: &TestOutbox, count: u64) -> Vec<Value> {
    let log = vec!["log.level=trace".to_owned()];
    let settings = [mongo_settings(&outbox.database), stdout_sink(), log].concat();
    let mut postrider = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, count).await;
    let ended = postrider.stop().await;
    for line in ended.stderr.lines() {
        let logged: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"));
        assert!(logged["level"].is_string() && logged["payload"].is_null(), "{line}");
    }
    assert!(ended.stderr.contains("stopped; all records in flight were "), "{}", ended.stderr);
    ended.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[fixture::test]
async fn a_line_has_exactly_the_documented_fields() {
    let outbox = TestOutbox::new().await;
    let uuid = Uuid::parse_str("6f1c0ffe-e012-4456-89ab-cdef00112233").unwrap();
    let of = |id: &str, more| record(id, "OrderCreated", "k", more);
    let all = doc! {
        "destination": "orders", "tenantId": "t", "contentType": "application/vnd.shop+json",
        "createdAt": DateTime::from_millis(1_700_000_000_123), "unknown": 1, "xOwn": 2,
        "headers": {
            "n": 7, "tenant-id": "forged", "traceparent": "00-1-2-01", "null": Bson::Null,
        },
    };
    let mut least = of("", doc! {});
    least.insert("_id", uuid);
    least.remove("key");
    least.remove("partition");
    let binary = Binary { subtype: BinarySubtype::Generic, bytes: vec![0, 255] };
    let records = [
        of("all", all),
        least,
        of("text", doc! { "payload": "a\n\"b\"\u{2028}" }),
        of("bytes", doc! { "payload": binary, "headers": {} }),
        of("null", doc! { "payload": Bson::Null }),
    ];
    outbox.insert(records).await;

    let lines = lines(&outbox, 5).await;

    let id_of_least = "6f1c0ffe-e012-4456-89ab-cdef00112233";
    let found: BTreeMap<&str, &Value> =
        lines.iter().map(|line| (line["id"].as_str().unwrap(), line)).collect();
    assert_eq!((found.len(), lines.len()), (5, 5));
    for (id, line) in &found {
        let payload = if *id == "bytes" { "payloadBase64" } else { "payload" };
        let fields: Vec<&str> = line.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(fields, [&FIELDS[..], &[payload]].concat());
    }
    let expected = json!({
        "id": "all", "key": "k", "type": "OrderCreated", "destination": "orders",
        "contentType": "application/vnd.shop+json",
        "headers": { "n": 7, "tenant-id": "t", "traceparent": "00-1-2-01", "null": null },
        "timestamp": "2023-11-14T22:13:20.123Z",
        "payload": { "id": "all" },
    });
    assert_eq!(found["all"], &expected);
    let seconds = outbox.record(uuid).await.get_timestamp("seq").unwrap().time;
    let seq = DateTime::from_millis(i64::from(seconds) * 1_000).try_to_rfc3339_string().unwrap();
    let expected = json!({
        "id": id_of_least, "key": null, "type": "OrderCreated", "destination": "",
        "contentType": "application/json", "headers": {}, "timestamp": seq, "payload": { "id": "" },
    });
    assert_eq!(found[id_of_least], &expected);
    assert_eq!(found["text"]["payload"], "a\n\"b\"\u{2028}");
    assert_eq!(found["bytes"]["payloadBase64"], "AP8=");
    assert_eq!(found["null"]["payload"], Value::Null);
}

#[fixture::test]
async fn lines_of_many_keys_stay_whole_and_ordered_by_key() {
    const KEYS: usize = 50;
    const EACH: usize = 10;
    let outbox = TestOutbox::new().await;
    // Longer than a pipe's buffer.
    let text = "x".repeat(70_000);
    let records = (0..KEYS * EACH).map(|number| {
        let key = format!("key {}", number % KEYS);
        record(&format!("{number:03}"), "T", &key, doc! { "payload": &text })
    });
    outbox.insert(records.collect::<Vec<Document>>()).await;

    let lines = lines(&outbox, (KEYS * EACH) as u64).await;

    let mut by_key: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in &lines {
        assert!(line["payload"] == text);
        let of = |field: &str| line[field].as_str().unwrap();
        by_key.entry(of("key")).or_default().push(of("id"));
    }
    assert_eq!(by_key.len(), KEYS);
    for (key, ids) in by_key {
        assert!(ids.len() == EACH && ids.is_sorted(), "{key}: {ids:?}");
    }
}
