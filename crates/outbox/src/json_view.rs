//! Stored documents as JSON, for operators and programs.
//!
//! Dates are RFC 3339, UUIDs and ObjectIds text, timestamps `{t, i}`, decimals numbers with all their digits; the rest
//! is relaxed extended JSON. (Messages are relaxed extended JSON throughout: [`crate::payload`].)

use bson::{Bson, Document};
use postrider_store::dates::rfc3339;
use serde::ser::{Serialize, Serializer};
use serde_json::json;

use crate::ids::RecordId;
use crate::number::to_literal;
use crate::undecoded::DecodedRecord;

/// A stored document, which serde writes as JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredDocument(Document);

/// A stored document as JSON, with its own field names, `_id` as `id`.
pub fn record(document: &Document) -> StoredDocument {
    let fields = document.iter().map(|(name, field)| {
        let name = if name == "_id" { "id" } else { name };
        (name.to_owned(), field.clone())
    });
    StoredDocument(fields.collect())
}

/// A record, valid or not, as JSON: its flaws are in `invalid`, and an `_id` of an invalid kind is the
/// text by which commands know the record.
pub fn decoded(found: &DecodedRecord) -> StoredDocument {
    let mut fields = record(&found.document);
    if found.id.decoded().is_none() {
        fields.0.insert("id", found.id.text());
    }
    if !found.invalid.is_empty() {
        fields.0.insert("invalid", found.invalid.clone());
    }
    fields
}

impl Serialize for StoredDocument {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize_document(&self.0, to)
    }
}

/// Writes the fields of a document.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize_document<S: Serializer>(stored: &Document, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(stored.iter().map(|(name, value)| (name, StoredValue(value))))
}

/// Writes a value. (A serializer of another format than JSON gets a decimal as `serde_json::value::RawValue`.)
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<S: Serializer>(stored: &Bson, to: S) -> Result<S::Ok, S::Error> {
    match stored {
        Bson::Null => to.serialize_unit(),
        Bson::Boolean(value) => to.serialize_bool(*value),
        Bson::Int32(integer) => to.serialize_i32(*integer),
        Bson::Int64(integer) => to.serialize_i64(*integer),
        Bson::Double(number) if number.is_finite() => to.serialize_f64(*number),
        Bson::String(text) => to.serialize_str(text),
        Bson::Document(document) => serialize_document(document, to),
        Bson::Array(items) => to.collect_seq(items.iter().map(StoredValue)),
        Bson::DateTime(date) => match rfc3339(*date) {
            Some(text) => to.serialize_str(&text),
            // Outside the years that RFC 3339 has.
            None => stored.clone().into_canonical_extjson().serialize(to),
        },
        Bson::Timestamp(time) => json!({ "t": time.time, "i": time.increment }).serialize(to),
        Bson::Decimal128(decimal) => match to_literal(*decimal) {
            Some(number) => number.serialize(to),
            None => stored.clone().into_relaxed_extjson().serialize(to),
        },
        Bson::Binary(_) | Bson::ObjectId(_) => match RecordId::from(stored.clone()) {
            RecordId::Other(other) => other.into_relaxed_extjson().serialize(to),
            id => to.collect_str(&id),
        },
        other => other.clone().into_relaxed_extjson().serialize(to),
    }
}

/// A value as the text of its JSON.
pub fn text(stored: &Bson) -> String {
    // The names of documents are strings, so nothing can fail.
    serde_json::to_string(&StoredValue(stored)).unwrap_or_default()
}

/// A stored value, which serde writes as JSON.
#[derive(Clone, Copy, Debug)]
pub struct StoredValue<'a>(pub &'a Bson);

impl Serialize for StoredValue<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        serialize(self.0, to)
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
            serde_json::to_value(shown).unwrap(),
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
