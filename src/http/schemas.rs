//! Pieces of JSON Schema that several bodies and parameters share.

use serde_json::{Value, json};

/// A text that can mean the id of a record.
pub(super) const RECORD_ID: &str = "^(uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$|\
    oid:[0-9a-f]{24}$|int:-?[0-9]{1,18}$|(?!uuid:|oid:|int:)[\\s\\S])";

/// Any JSON that BSON has room for.
pub(super) fn anything() -> Value {
    json!({ "description": "Any JSON; integers within 64 bits, names without NUL.", "anyOf": [
        { "type": "null" },
        { "type": "boolean" },
        { "type": "string" },
        { "type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX },
        { "type": "number" },
        { "type": "array", "items": { "$ref": "#/components/schemas/Json" } },
        { "$ref": "#/components/schemas/JsonObject" },
    ] })
}

/// An id in a body, which may be absent.
pub(super) fn id_text(description: &str) -> Value {
    json!({
        "type": ["string", "null"], "minLength": 1, "maxLength": 255, "description": description,
    })
}

/// A time in a body, which may be absent.
pub(super) fn time(description: &str) -> Value {
    json!({ "description": description, "anyOf": [
        { "type": "null" },
        { "type": "string", "format": "date-time", "description": "RFC 3339." },
        { "type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX,
            "description": "Milliseconds since 1970." },
    ] })
}

/// A list of what stands among the components under this name.
pub(super) fn list_of(schema: &str) -> Value {
    json!({
        "type": "object",
        "required": ["items", "next"],
        "properties": {
            "items": {
                "type": "array",
                "items": { "$ref": format!("#/components/schemas/{schema}") },
            },
            "next": { "type": ["string", "null"] },
        },
    })
}

/// The object that a body or a state is.
pub(super) fn object() -> Value {
    json!({
        "description": "A JSON object, kept as written: it never becomes extended JSON.",
        "type": "object",
        "propertyNames": { "pattern": "^[^\\u0000]*$" },
        "additionalProperties": { "$ref": "#/components/schemas/Json" },
    })
}
