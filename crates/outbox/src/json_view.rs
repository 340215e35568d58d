//! Converts stored documents to JSON, for operators and programs.

use bson::{Bson, Document};
use postrider_store::dates::rfc3339;
use serde_json::{Map, Value, json};

use crate::ids::RecordId;
use crate::undecoded::DecodedRecord;

/// A stored document as JSON, with its own field names, `_id` as `id`.
pub fn record(document: &Document) -> Value {
    let fields = document.iter().map(|(name, field)| {
        let name = if name == "_id" { "id" } else { name };
        (name.to_owned(), value(field))
    });
    Value::Object(fields.collect::<Map<String, Value>>())
}

/// A record, valid or not, as JSON: its flaws are in `invalid`, and an `_id` of an invalid kind is the
/// text by which commands know the record.
pub fn decoded(found: &DecodedRecord) -> Value {
    let mut fields = record(&found.document);
    if found.id.decoded().is_none() {
        fields["id"] = json!(found.id.text());
    }
    if !found.invalid.is_empty() {
        fields["invalid"] = json!(found.invalid);
    }
    fields
}

/// Dates are RFC 3339, UUIDs and ObjectIds text, timestamps `{t, i}`; the rest is relaxed
/// extended JSON.
pub fn value(stored: &Bson) -> Value {
    match stored {
        Bson::DateTime(date) => match rfc3339(*date) {
            Some(text) => json!(text),
            // Outside the years that RFC 3339 has.
            None => stored.clone().into_canonical_extjson(),
        },
        Bson::Timestamp(time) => json!({ "t": time.time, "i": time.increment }),
        Bson::Document(document) => {
            let fields = document.iter().map(|(name, field)| (name.clone(), value(field)));
            Value::Object(fields.collect())
        }
        Bson::Array(items) => Value::Array(items.iter().map(value).collect()),
        Bson::Binary(_) | Bson::ObjectId(_) => match RecordId::from(stored.clone()) {
            RecordId::Other(other) => other.into_relaxed_extjson(),
            id => json!(id.to_string()),
        },
        other => other.clone().into_relaxed_extjson(),
    }
}

#[cfg(test)]
mod tests {
    use bson::{DateTime, Timestamp, doc};

    use super::*;

    #[test]
    fn record_has_its_own_field_names_and_json_forms() {
        let shown = record(&doc! {
            "_id": bson::Uuid::parse_str("00112233-4455-6677-8899-aabbccddeeff").unwrap(),
            "seq": Timestamp { time: 5, increment: 6 },
            "createdAt": DateTime::from_millis(0),
            "payload": { "n": 1_i64, "at": DateTime::from_millis(1) },
            "visibleAt": DateTime::from_millis(i64::MAX),
        });

        assert_eq!(
            shown,
            json!({
                "id": "00112233-4455-6677-8899-aabbccddeeff",
                "seq": { "t": 5, "i": 6 },
                "createdAt": "1970-01-01T00:00:00Z",
                "payload": { "n": 1, "at": "1970-01-01T00:00:00.001Z" },
                // Beyond RFC 3339.
                "visibleAt": { "$date": { "$numberLong": i64::MAX.to_string() } },
            })
        );
    }
}
