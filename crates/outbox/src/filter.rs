//! Filters and expressions that lists and statistics share.

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};

use crate::fields::{DEAD_REASON, ID, KEY, SEQ, STATUS, STATUSES, TYPE, exactly};
use crate::position::NO_SEQ;
use crate::undecoded::{RawId, RawWriter};

/// Matches records with an unknown status, which are never delivered.
pub(crate) fn invalid() -> Document {
    doc! { "$or": [
        { STATUS: { "$nin": STATUSES.as_slice() } },
        { STATUS: { "$type": "array" } },
    ] }
}

/// Matches texts with this prefix; without the last condition also arrays that have one.
fn beginning(text: &str) -> Document {
    // This is the last character in the order of text.
    let end = format!("{text}\u{10ffff}");
    doc! { "$gte": text, "$lt": end, "$not": { "$type": "array" } }
}

/// Adds the conditions on key, type and `deadReason` that are given.
pub(crate) fn add_texts(
    filter: &mut Document,
    key: Option<&String>,
    kind: Option<&String>,
    reason: Option<&String>,
) {
    for (field, text) in [(KEY, key), (TYPE, kind)] {
        if let Some(text) = text {
            filter.insert(field, exactly(text));
        }
    }
    if let Some(reason) = reason {
        filter.insert(DEAD_REASON, beginning(reason));
    }
}

/// Compares a field with a value of any type. It is an expression, since a plain comparison matches
/// values of the same type only.
pub(crate) fn compared(operator: &str, field: &str, value: &RawId) -> RawDocumentBuf {
    let literal = RawWriter::default().element(value, "$literal").finish();
    let compared = RawWriter::default().pair(operator, &format!("${field}"), &literal).finish();
    RawWriter::default().document("$expr", &compared).finish()
}

/// Matches ids after `after` and up to `end`; an absent bound is open.
pub(crate) fn between(after: Option<&RawId>, end: Option<&RawId>) -> Vec<RawDocumentBuf> {
    let behind = after.map(|id| compared("$gt", ID, id));
    behind.into_iter().chain(end.map(|id| compared("$lte", ID, id))).collect()
}

/// Evaluates to a valid `seq`, else to null, which `$min` ignores.
pub(crate) fn seq() -> Document {
    let seq = format!("${SEQ}");
    let is_seq = doc! { "$and": [
        { "$eq": [{ "$type": &seq }, "timestamp"] },
        { "$gt": [&seq, NO_SEQ] },
    ] };
    doc! { "$cond": [is_seq, seq, Bson::Null] }
}
