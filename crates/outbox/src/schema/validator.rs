//! The shape of a record, so that a wrong one fails in its producer's hands.
//!
//! It refuses what the relay would call malformed (contract, section 1), a `status` that is
//! never delivered, and dates of a wrong type. It leaves alone what the relay mends by itself
//! (`seq`, `partition` unless it is an array), the relay's own fields, and all unknown ones. An
//! optional field may be null: many drivers write null for what their users left out.

use bson::{Bson, Document, doc};

use crate::fields::{
    CONTENT_TYPE, CREATED_AT, DEAD, DEDUP_KEY, DESTINATION, DONE, HEADERS, ID, KEY, PARTITION,
    PAYLOAD, PENDING, SCHEDULED, STATUS, TENANT_ID, TYPE, VISIBLE_AT,
};
use crate::schema::options::Validator;

/// Records that were wrong before stay writable for the relay, which must be able to make
/// them dead; insertions, and updates of right ones, are judged.
pub const LEVEL: &str = "moderate";

const REQUIRED: [&str; 3] = [TYPE, PAYLOAD, STATUS];

const STATUSES: [&str; 4] = [PENDING, SCHEDULED, DONE, DEAD];

/// Every kind of value that a broker can carry as a header.
const HEADER_TYPES: &[&str] =
    &["string", "int", "long", "double", "decimal", "bool", "date", "objectId", "binData", "null"];

/// Each field, the types that it may have, and what the refusal says of it.
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

/// The validator of `outbox_records`.
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
    // The relay would mend it; but one such record ever, and MongoDB sorts every page anew.
    let description = "no array: the index that all reads go by would be a multikey one for good";
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

/// The options with which `outbox_records` is created; none when there is no validator.
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

/// What MongoDB calls it; `None` where there is no validator.
fn action(validator_set: Validator) -> Option<&'static str> {
    match validator_set {
        Validator::Error => Some("error"),
        Validator::Warn => Some("warn"),
        Validator::Off => None,
    }
}
