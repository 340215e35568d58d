//! The stored form of a prepare key, and the condition that it is held.

use bson::{Bson, Document, Uuid, doc};

use super::ttl::Ttl;

/// The key.
pub(super) const ID: &str = "_id";
/// The value. A document without it is not held.
pub(super) const VALUE: &str = "value";
/// The end.
pub(super) const TTL_AT: &str = "ttlAt";

/// The call of `using_prepared` that took it, if one did.
pub(super) const RESERVATION: &str = "reservation";

/// The expression that a key has a value and has not expired, by the server's clock.
fn held() -> Document {
    let value = format!("${VALUE}");
    let end = format!("${TTL_AT}");
    doc! { "$and": [
        { "$ne": [{ "$type": value }, "missing"] },
        { "$not": [{ "$and": [
            { "$eq": [{ "$type": &end }, "date"] },
            { "$lte": [&end, "$$NOW"] },
        ] }] },
    ] }
}

/// The filter of a key while it is held.
pub(super) fn while_held(key: &str) -> Document {
    doc! { ID: key, "$expr": held() }
}

/// The filter of a key while this reservation holds it.
pub(super) fn while_reserved(key: &str, reservation: Uuid) -> Document {
    let mut filter = while_held(key);
    filter.insert(RESERVATION, reservation);
    filter
}

/// The filter of a key while it is held with this value, in the stored order of its fields.
pub(super) fn while_held_with(key: &str, stored: &Bson) -> Document {
    let same = doc! { "$eq": [format!("${VALUE}"), { "$literal": stored }] };
    doc! { ID: key, "$expr": { "$and": [held(), same] } }
}

/// The pipeline of an upsert that takes the key unless it is held (its filter may have no `$expr`). A
/// held key stays unchanged.
pub(super) fn taken_unless_held(
    value: &Bson,
    ttl: Ttl,
    reservation: Option<Uuid>,
) -> Vec<Document> {
    let mut taken = doc! {
        ID: format!("${ID}"),
        VALUE: { "$literal": value },
        TTL_AT: ttl.expression(),
    };
    if let Some(reservation) = reservation {
        taken.insert(RESERVATION, reservation);
    }
    vec![doc! { "$replaceWith": { "$cond": [held(), "$$ROOT", taken] } }]
}

/// The pipeline that changes value and end of a held key.
pub(super) fn changed(value: &Bson, ttl: Ttl) -> Vec<Document> {
    vec![doc! { "$set": { VALUE: { "$literal": value }, TTL_AT: ttl.expression() } }]
}
