//! The preset `debezium` against what Debezium's own router emits: `debezium/expected.json`.

use bson::{Bson, Document};
use serde_json::{Value, json};

use crate::util::TestSource;

const EXPECTED: &str = include_str!("debezium/expected.json");

/// An id before those of the cases.
const BEFORE: &str = "64ffffffffffffffffffffff";

const PLACEMENT: &str = "collection.fields.additional.placement";

/// The cases that `these` picks by name and options.
fn cases(these: impl Fn(&str, &Value) -> bool) -> Vec<Value> {
    let all: Vec<Value> = serde_json::from_str(EXPECTED).unwrap();
    let picked = all.into_iter().filter(|case| these(name(case), &case["options"]));
    let picked: Vec<Value> = picked.collect();
    assert!(!picked.is_empty());
    picked
}

fn name(case: &Value) -> &str {
    case["case"].as_str().unwrap()
}

fn document(case: &Value) -> Document {
    let json: Value = serde_json::from_str(case["document"].as_str().unwrap()).unwrap();
    match Bson::try_from(json).unwrap() {
        Bson::Document(document) => document,
        other => panic!("{other} is not a document"),
    }
}

/// Copies the documents of the cases, and returns the report.
async fn adopted(test: &TestSource, cases: &[Value]) -> Value {
    test.insert(cases.iter().map(document).collect()).await;
    let once = ["--once", "--old-relay-stopped", "--from", BEFORE];
    test.adopt(&once).await.with_code(0).json()
}

/// Compares the record of a case with what the router emitted.
fn assert_same(case: &Value, record: &Document) {
    let name = name(case);
    assert_eq!(case.get("error"), None, "{name}: the router fails");
    assert_eq!(record.get_str("destination").ok(), case["topic"].as_str(), "{name}");
    assert_eq!(record.get_str("key").ok(), case["key"].as_str(), "{name}");
    assert_eq!(headers(record), emitted_headers(case), "{name}");
    let payload = record.get("payload").unwrap();
    let Some(value) = case["value"].as_str() else {
        assert_eq!(payload, &Bson::Null, "{name}");
        return;
    };
    match payload {
        Bson::Binary(binary) => {
            // Kafka Connect's JSON converter writes bytes as base64; its byte converters as they are.
            let base64 = Bson::Binary(binary.clone()).into_canonical_extjson();
            assert_eq!(json!(value.trim_matches('"')), base64["$binary"]["base64"], "{name}");
        }
        Bson::String(text) => match (serde_json::from_str(text), serde_json::from_str(value)) {
            // Spaces, and the digits of doubles, are the writer's.
            (Ok(sent), Ok(emitted)) => {
                assert_eq!(with_numbers(sent), with_numbers(emitted), "{name}");
                let is_text = case["document"].as_str().unwrap().contains(r#""payload": ""#);
                assert!(!is_text || text == value, "{name}: {text}");
            }
            _ => assert_eq!(text, value, "{name}"),
        },
        other => {
            let emitted: Value = serde_json::from_str(value).unwrap();
            assert_eq!(other.clone().into_relaxed_extjson(), emitted, "{name}");
        }
    }
}

/// The headers as Kafka's sink writes them. (Debezium's null headers are absent here.)
fn headers(record: &Document) -> Vec<(String, String)> {
    let headers = record.get_document("headers").unwrap().iter().map(|(name, value)| {
        let text = match value {
            Bson::String(text) => text.clone(),
            Bson::ObjectId(id) => id.to_hex(),
            other => other.clone().into_relaxed_extjson().to_string(),
        };
        (name.clone(), text)
    });
    sorted(headers.collect())
}

fn emitted_headers(case: &Value) -> Vec<(String, String)> {
    let headers = case["headers"].as_object().unwrap().iter();
    sorted(
        headers
            .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
            .collect(),
    )
}

fn sorted(mut headers: Vec<(String, String)>) -> Vec<(String, String)> {
    headers.sort();
    headers
}

/// The same JSON with the texts of `$numberDouble` as numbers: `1.0E25` is `1e25`.
fn with_numbers(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            if let Some(Value::String(text)) = fields.get("$numberDouble") {
                let number: f64 = text.parse().unwrap();
                return json!({ "$numberDouble": format!("{number:?}") });
            }
            fields.into_iter().map(|(name, value)| (name, with_numbers(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(with_numbers).collect(),
        other => other,
    }
}

/// The records of the cases, each with its own.
async fn assert_all_same(test: &TestSource, cases: &[Value]) {
    let records = test.records().await;
    for case in cases {
        let id = document(case).get("_id").unwrap().clone();
        let id = if name(case) == "renamed" { "e-1".into() } else { id };
        let record = records.iter().find(|record| record.get("_id") == Some(&id));
        assert_same(case, record.unwrap_or_else(|| panic!("{}: is not copied", name(case))));
    }
    assert_eq!(records.len(), cases.len());
}

#[fixture::test]
async fn debezium_messages_are_those_of_its_router() {
    let is_default = |options: &Value| options == &json!({});
    let all = cases(|name, options| is_default(options) || name == "payload_null_tombstone");
    let test = TestSource::new("debezium", &[]).await;

    let report = adopted(&test, &all).await;

    // The router fails without these two; Postrider's order needs the key, and its routes the type.
    let refused = ["key_absent", "payload_absent", "key_null", "type_absent"];
    assert_eq!(report["skipped"], json!({ "malformed": refused.len() }), "{report:#}");
    let copied: Vec<Value> =
        all.into_iter().filter(|case| !refused.contains(&name(case))).collect();
    assert!(copied.len() > 15, "{}", copied.len());
    assert_all_same(&test, &copied).await;
}

#[fixture::test]
async fn debezium_additional_fields_become_headers() {
    let more = [
        "adopt.fields.header.eventType=type",
        "adopt.fields.header.tenant=tenant",
        "adopt.fields.header.x-retries=retries",
        "adopt.fields.header.order=order",
    ];
    let placed = cases(|name, _| name == "placement_header");
    assert_eq!(
        placed[0]["options"][PLACEMENT],
        "type:header:eventType,tenant:header,retries:header:x-retries,order:header"
    );
    let test = TestSource::new("debezium", &more).await;
    adopted(&test, &placed).await;
    assert_all_same(&test, &placed).await;

    let null = cases(|name, _| name == "placement_null");
    let test = TestSource::new("debezium", &more[1..2]).await;
    adopted(&test, &null).await;
    assert_all_same(&test, &null).await;
}

#[fixture::test]
async fn debezium_options_have_their_fields_in_the_mapping() {
    let more = [
        "adopt.fields.id=eventId",
        "adopt.fields.header.id=eventId",
        "adopt.fields.key=orderId",
        "adopt.fields.type=kind",
        "adopt.fields.payload=data",
        "adopt.fields.destination==shop.{category}.events",
    ];
    let renamed = cases(|name, _| name == "renamed");
    let test = TestSource::new("debezium", &more).await;

    adopted(&test, &renamed).await;

    assert_all_same(&test, &renamed).await;
    assert_eq!(test.records().await[0].get_str("type").unwrap(), "Paid");
}

#[fixture::test]
async fn debezium_payload_that_is_expanded_is_one_of_bson() {
    // Not `expand_all_types`: dates, ids, decimals and binaries differ (docs/adopt.md).
    let expanded = cases(|name, _| name.starts_with("expand_") && name != "expand_all_types");
    let test = TestSource::new("debezium", &["adopt.fields.payload_form=bson"]).await;

    adopted(&test, &expanded).await;

    assert_all_same(&test, &expanded).await;
}
