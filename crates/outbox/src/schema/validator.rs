//! The JSON schema validator of records: an invalid record fails in the producer's transaction.
//!
//! Rejects records that the relay would mark dead as malformed, unknown values of `status`, and
//! dates of a wrong type. Accepts what the relay repairs (`seq`; `partition` unless it is an
//! array), the relay's own fields, and all unknown fields. An optional field may be null, since
//! many drivers write null for an absent value.

use bson::{Bson, Document, doc};

use crate::fields::{
    CONTENT_TYPE, CREATED_AT, DEDUP_KEY, DESTINATION, HEADERS, ID, KEY, PARTITION, PAYLOAD, STATUS,
    STATUSES, TENANT_ID, TYPE, VISIBLE_AT,
};
use crate::schema::options::Validator;

/// Existing invalid records stay writable, since the relay must be able to mark them dead. Inserts,
/// and updates of valid records, are validated.
pub const LEVEL: &str = "moderate";

const REQUIRED: [&str; 3] = [TYPE, PAYLOAD, STATUS];

/// BSON types that a broker can carry as a header.
const HEADER_TYPES: &[&str] =
    &["string", "int", "long", "double", "decimal", "bool", "date", "objectId", "binData", "null"];

/// Field, permitted BSON types, and description in the error.
const TYPES: [(&str, &[&str], &str); 10] = [
    (ID, &["binData", "objectId", "string", "int", "long"], "a UUID, ObjectId, string or integer"),
    (KEY, &["string", "null"], "a string: what the record is ordered by"),
    (TYPE, &["string"], "a string, required: what routes match on"),
    (CONTENT_TYPE, &["string", "null"], "a string"),
    (HEADERS, &["object", "null"], "a document of scalars and binaries"),
    (DESTINATION, &["string", "null"], "a string: an exchange or topic"),
    (TENANT_ID, &["string", "null"], "a string"),
    (CREATED_AT, &["date", "null"], "a date"),
    (VISIBLE_AT, &["date", "null"], "a date: not delivered before it"),
    (DEDUP_KEY, &["string", "null"], "a string: unique while the record exists"),
];

/// Returns the validator of `outbox_records`.
pub fn validator() -> Document {
    let mut properties = Document::new();
    for (field, types, description) in TYPES {
        let mut property = doc! { "bsonType": types, "description": description };
        if field == HEADERS {
            property.insert("additionalProperties", doc! { "bsonType": HEADER_TYPES });
        }
        properties.insert(field, property);
    }
    let description = "pending or scheduled at the insertion; done or dead by the relay";
    properties.insert(STATUS, doc! { "enum": STATUSES.as_slice(), "description": description });
    // The relay could repair an array, but a single one makes the index multikey, and MongoDB then
    // sorts every page.
    let description = "not an array, which would make the index of all scans permanently multikey";
    let no_array = doc! { "not": { "bsonType": "array" }, "description": description };
    properties.insert(PARTITION, no_array);
    doc! {
        "$jsonSchema": {
            "title": "a Postrider outbox record",
            "bsonType": "object",
            "required": REQUIRED.as_slice(),
            "properties": properties,
        },
    }
}

/// Returns the options to create `outbox_records` with; empty if there is no validator.
pub fn collection_options(validator_set: Validator) -> Document {
    match action(validator_set) {
        None => Document::new(),
        Some(action) => doc! {
            "validator": Bson::Document(validator()),
            "validationLevel": LEVEL,
            "validationAction": action,
        },
    }
}

/// Returns the `validationAction`; `None` if there is no validator.
fn action(validator_set: Validator) -> Option<&'static str> {
    match validator_set {
        Validator::Error => Some("error"),
        Validator::Warn => Some("warn"),
        Validator::Off => None,
    }
}
