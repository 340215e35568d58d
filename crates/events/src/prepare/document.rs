//! A prepare key as MongoDB has it, and whether it is held.

use bson::{Bson, Document, Uuid, doc};

use super::ttl::Ttl;

/// The key.
pub(super) const ID: &str = "_id";
/// What it was prepared with. A document without it holds nothing.
pub(super) const VALUE: &str = "value";
/// When it ends.
pub(super) const TTL_AT: &str = "ttlAt";

/// Which call of `using_prepared` took it, where one did.
pub(super) const RESERVATION: &str = "reservation";

/// Whether there is something that has not expired, on the server's clock: an expression.
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

/// The key, while it is held.
pub(super) fn while_held(key: &str) -> Document {
    doc! { ID: key, "$expr": held() }
}

/// The key, while this reservation holds it.
pub(super) fn while_reserved(key: &str, reservation: Uuid) -> Document {
    let mut filter = while_held(key);
    filter.insert(RESERVATION, reservation);
    filter
}

/// The key, while it is held with this value, as it is stored to the order of its fields.
pub(super) fn while_held_with(key: &str, stored: &Bson) -> Document {
    let same = doc! { "$eq": [format!("${VALUE}"), { "$literal": stored }] };
    doc! { ID: key, "$expr": { "$and": [held(), same] } }
}

/// Takes the key unless it is held: the pipeline of an upsert (whose filter may have no `$expr`).
/// What is held is left as it is, to the byte.
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

/// Gives a key that is held another value and end.
pub(super) fn changed(value: &Bson, ttl: Ttl) -> Vec<Document> {
    vec![doc! { "$set": { VALUE: { "$literal": value }, TTL_AT: ttl.expression() } }]
}
