//! The file of cases, and records made of it.

use std::collections::BTreeSet;
use std::path::Path;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use postrider::outbox::{EnqueueRefusal, NewRecord, Outbox};
use serde_json::{Map, Value};

use crate::support::outbox::TestOutbox;

/// One case.
pub type Case = Map<String, Value>;

/// A file next to the cases.
pub fn conformance_file(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/conformance").join(name);
    let text = std::fs::read_to_string(&path).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The cases of a section, of which there is at least one.
pub fn cases(section: &str) -> Vec<Case> {
    let file = conformance_file("cases.json");
    assert_eq!(file["format"], 1);
    let cases: Vec<Case> = serde_json::from_value(file[section].clone()).unwrap();
    let names: BTreeSet<&str> = cases.iter().map(name).collect();
    assert!(!cases.is_empty() && names.len() == cases.len(), "{section}");
    cases
}

/// The name of a case.
pub fn name(case: &Case) -> &str {
    case["name"].as_str().unwrap()
}

/// A value in canonical extended JSON.
pub fn bson(value: &Value) -> Bson {
    Bson::try_from(value.clone()).unwrap()
}

/// The same for a document.
pub fn document(value: &Value) -> Document {
    match bson(value) {
        Bson::Document(document) => document,
        other => panic!("expected a document: {other}"),
    }
}

/// The text of these UTF-16 code units; `None` for a lone surrogate, which no `String` can hold.
pub fn text(units: &Value) -> Option<String> {
    let units: Vec<u16> = serde_json::from_value(units.clone()).unwrap();
    String::from_utf16(&units).ok()
}

/// A value as its bytes: types and the order of fields count, and minus zero is not zero.
pub fn bytes(value: impl Into<Bson>) -> Vec<u8> {
    RawDocumentBuf::try_from(&doc! { "value": value.into() }).unwrap().into_bytes()
}

/// Makes the record of a case; `None` if the types of Rust exclude it.
pub fn record(fields: &Document) -> Option<NewRecord> {
    let text = |field: &str| match fields.get(field) {
        None | Some(Bson::Null) => Some(None),
        Some(Bson::String(text)) => Some(Some(text.clone())),
        Some(_) => None,
    };
    let date = |field: &str| match fields.get(field) {
        None | Some(Bson::Null) => Some(None),
        Some(Bson::DateTime(date)) => Some(Some(*date)),
        Some(_) => None,
    };
    let mut record = NewRecord::new(text("type")??, fields.get("payload")?.clone());
    for (field, value) in fields {
        record = match field.as_str() {
            "type" | "payload" => record,
            "id" if value == &Bson::Null => record,
            "id" => record.id(value.clone()),
            "headers" if value == &Bson::Null => record,
            "headers" => value
                .as_document()?
                .into_iter()
                .fold(record, |record, (name, value)| record.header(name, value.clone())),
            "createdAt" | "visibleAt" => match (field.as_str(), date(field)?) {
                (_, None) => record,
                ("createdAt", Some(date)) => record.created_at(date),
                (_, Some(date)) => record.scheduled_for(date),
            },
            "key" | "contentType" | "destination" | "tenantId" | "dedupKey" => {
                match (field.as_str(), text(field)?) {
                    (_, None) => record,
                    ("key", Some(text)) => record.key(text),
                    ("contentType", Some(text)) => record.content_type(text),
                    ("destination", Some(text)) => record.destination(text),
                    ("tenantId", Some(text)) => record.tenant_id(text),
                    (_, Some(text)) => record.dedup_key(text),
                }
            }
            _ => return None,
        };
    }
    Some(record)
}

/// The outbox of a case, on the collections of a test.
pub fn producer(test: &TestOutbox, case: &Case) -> Outbox {
    let prefix = case.get("collectionPrefix").map_or("", |prefix| prefix.as_str().unwrap());
    let outbox = Outbox::new(&test.client.database(&test.database), prefix);
    match case.get("hook") {
        None => outbox,
        Some(headers) => {
            let headers = document(headers);
            outbox.with_trace_headers(move || headers.clone())
        }
    }
}

/// The field that a refusal names.
pub fn refused_field(error: &mongodb::error::Error) -> Option<&str> {
    let refusal = error.get_custom::<EnqueueRefusal>()?;
    assert!(refusal.to_string().contains(&format!(" {}: ", refusal.field)), "{refusal}");
    Some(&refusal.field)
}
