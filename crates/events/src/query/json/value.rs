//! Values as JSON, plain or extended.

use bson::Bson;

/// The value of an absent one.
pub(super) fn empty() -> Bson {
    Bson::String(String::new())
}

/// A value of plain JSON read as extended JSON.
pub(super) fn extended(value: Bson) -> Result<Bson, String> {
    let json = value.into_relaxed_extjson();
    Bson::try_from(json).map_err(|error| format!("is not extended JSON: {error}"))
}
/// JSON as it is written: `{"$oid": …}` is an object.
pub(crate) fn plain(json: serde_json::Value) -> Bson {
    match json {
        serde_json::Value::Object(members) => {
            Bson::Document(members.into_iter().map(|(name, value)| (name, plain(value))).collect())
        }
        serde_json::Value::Array(items) => Bson::Array(items.into_iter().map(plain).collect()),
        simple => Bson::try_from(simple).unwrap_or(Bson::Null),
    }
}
/// Whether JSON has all of a value.
fn is_plain(value: &Bson) -> bool {
    match value {
        Bson::Null | Bson::Boolean(_) | Bson::Int32(_) | Bson::Int64(_) | Bson::String(_) => true,
        Bson::Double(number) => number.is_finite(),
        Bson::Array(items) => items.iter().all(is_plain),
        Bson::Document(document) => document.values().all(is_plain),
        _ => false,
    }
}

/// A value as JSON, and whether that is extended JSON. (The relaxed form has no years above 9999.)
pub(super) fn as_json(value: Bson) -> (Bson, bool) {
    if is_plain(&value) { (value, false) } else { (plain(value.into_canonical_extjson()), true) }
}
