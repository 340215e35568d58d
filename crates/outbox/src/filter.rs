//! Filters and expressions that lists and figures share.

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};

use crate::fields::{DEAD, DONE, ID, PENDING, SCHEDULED, SEQ, STATUS};
use crate::position::NO_SEQ;
use crate::undecoded::{RawId, Writer};

/// What is of a status that is none: never delivered.
pub(crate) fn invalid() -> Document {
    doc! { "$or": [
        { STATUS: { "$nin": [PENDING, SCHEDULED, DONE, DEAD] } },
        { STATUS: { "$type": "array" } },
    ] }
}

/// Texts that begin so.
pub(crate) fn beginning(text: &str) -> Document {
    // No text sorts behind them with this last character.
    doc! { "$gte": text, "$lt": format!("{text}\u{10ffff}") }
}

/// A comparison with a value of any kind. As an expression: a plain one would end with the values of
/// the same kind.
pub(crate) fn compared(operator: &str, field: &str, value: &RawId) -> RawDocumentBuf {
    let literal = Writer::default().element(value, "$literal").finish();
    let compared = Writer::default().pair(operator, &format!("${field}"), &literal).finish();
    Writer::default().document("$expr", &compared).finish()
}

/// Behind one id, and up to another one; without them from the first one, and to the last one.
pub(crate) fn between(after: Option<&RawId>, end: Option<&RawId>) -> Vec<RawDocumentBuf> {
    let behind = after.map(|id| compared("$gt", ID, id));
    behind.into_iter().chain(end.map(|id| compared("$lte", ID, id))).collect()
}

/// The `seq` of a record, where it has a real one; else null, which `$min` passes over.
pub(crate) fn seq() -> Document {
    let seq = format!("${SEQ}");
    let is_seq = doc! { "$and": [
        { "$eq": [{ "$type": &seq }, "timestamp"] },
        { "$gt": [&seq, NO_SEQ] },
    ] };
    doc! { "$cond": [is_seq, seq, Bson::Null] }
}
