//! The published JSON Schema of a record, compared with the checks of the library and with MongoDB's validator.

use bson::doc;
use jsonschema::Validator;
use postrider::schema::Validator as Validation;
use serde_json::{Value, json};

use crate::cases::{cases, conformance_file, document, name, record};
use crate::support::outbox::{TestOutbox, mongodb_uri};

fn schema() -> Validator {
    let schema = conformance_file("record.schema.json");
    jsonschema::draft202012::meta::validate(&schema).unwrap();
    jsonschema::draft202012::new(&schema).unwrap()
}

/// Values of every kind, in canonical extended JSON.
fn values() -> Vec<Value> {
    let binary = |subtype: &str, base64: &str| json!({ "$binary": { "base64": base64, "subType": subtype } });
    vec![
        json!(null),
        json!(true),
        json!("text"),
        json!(""),
        json!({}),
        json!({ "a": { "$numberInt": "1" } }),
        json!([]),
        json!([{ "$numberInt": "1" }]),
        json!({ "$numberInt": "-7" }),
        json!({ "$numberLong": "9007199254740993" }),
        json!({ "$numberDouble": "1.5" }),
        json!({ "$numberDecimal": "1.50" }),
        json!({ "$date": { "$numberLong": "-1" } }),
        json!({ "$oid": "0123456789abcdef01234567" }),
        binary("00", "AA=="),
        binary("03", "ABEiM0RVRneImaq7zN3u/w=="),
        binary("04", "ABEiM0RVRneImaq7zN3u/w=="),
        binary("04", "AA=="),
        binary("80", "AA=="),
        json!({ "$timestamp": { "t": 1, "i": 1 } }),
        json!({ "$regularExpression": { "pattern": "a", "options": "" } }),
        json!({ "$minKey": 1 }),
        json!({ "$maxKey": 1 }),
        json!({ "$symbol": "s" }),
        json!({ "$code": "x" }),
        json!({ "$undefined": true }),
    ]
}

/// Each field of a record, with values of every kind.
fn records() -> Vec<Value> {
    let mut records = Vec::new();
    let fields = [
        "id",
        "key",
        "type",
        "payload",
        "contentType",
        "headers",
        "destination",
        "tenantId",
        "createdAt",
        "visibleAt",
        "dedupKey",
        "status",
        "other",
    ];
    for value in values() {
        for field in fields {
            let mut record = json!({ "type": "T", "payload": null });
            record[field] = value.clone();
            records.push(record);
        }
        records.push(json!({ "type": "T", "payload": null, "headers": { "h": value } }));
    }
    records
}

#[test]
fn schema_accepts_what_the_library_accepts_and_nothing_else() {
    let schema = schema();
    let (mut accepted, mut refused) = (0, 0);

    for record_json in records() {
        let record = record(&document(&record_json));
        let is_accepted = record.is_some_and(|record| record.into_document().is_ok());

        assert_eq!(schema.is_valid(&record_json), is_accepted, "{record_json}");
        *(if is_accepted { &mut accepted } else { &mut refused }) += 1;
    }

    assert!(accepted > 50 && refused > 50, "{accepted} {refused}");
}

#[test]
fn schema_agrees_with_every_case() {
    let schema = schema();

    for case in cases("enqueued") {
        assert!(schema.is_valid(&case["record"]), "{}", name(&case));
    }
    for case in cases("refused").iter().filter(|case| !case.contains_key("hook")) {
        assert!(!schema.is_valid(&case["record"]), "{}", name(case));
    }
}

/// The validator may accept more (an empty type, a UUID of subtype 3), since other producers may write it.
#[fixture::test]
async fn validator_accepts_whatever_the_library_accepts() {
    let test = TestOutbox::validated(&mongodb_uri(), Validation::Error).await;
    let mut inserted = 0;

    for record_json in records() {
        let Some(record) = record(&document(&record_json)) else { continue };
        let Ok(document) = record.into_document() else { continue };
        test.records().delete_many(doc! {}).await.unwrap();
        let written = test.records().insert_one(document).await;

        assert!(written.is_ok(), "{record_json}: {written:?}");
        inserted += 1;
    }

    assert!(inserted > 50);
    test.client.database(&test.database).drop().await.unwrap();
}
