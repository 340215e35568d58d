//! Cuts values of documents on the server, since a producer may write fields of megabytes.
//!
//! A value is whole up to 8 KiB, so that an error of a relay and a reason of a member is complete. A longer text ends
//! in [`MARK`], and any other value becomes the mark.

use bson::{Bson, Document, doc};
use postrider_store::StoreError;

/// What is at the end of a text that was cut, and in place of any other value.
pub const MARK: &str = "…";

/// Maximum size of a value that is not cut, in bytes of BSON.
const MAX_WHOLE_BYTES: i32 = 8_192;

/// Characters that are left of a long text.
const MAX_CHARS: i32 = 2_000;

/// What is left of a text that is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongText {
    /// Its beginning and the mark. The server fails if the text is not valid UTF-8.
    Beginning,
    /// The mark alone.
    Mark,
}

/// Returns an expression for `$field`, cut if it is long. An absent field stays absent.
pub fn brief(field: &str, long: LongText) -> Document {
    brief_value(&format!("${field}"), long)
}

/// Returns an expression for a value, such as `$$name`, cut if it is long.
pub(crate) fn brief_value(value: &str, long: LongText) -> Document {
    let cut = match long {
        LongText::Mark => Bson::from(MARK),
        LongText::Beginning => {
            let beginning = doc! { "$concat": [{ "$substrCP": [value, 0, MAX_CHARS] }, MARK] };
            let is_text = doc! { "$eq": [{ "$type": value }, "string"] };
            Bson::from(doc! { "$cond": [is_text, beginning, MARK] })
        }
    };
    doc! { "$cond": [is_small(value), value, cut] }
}

/// Returns the expression that a field is not cut.
pub(crate) fn is_brief(field: &str) -> Document {
    is_small(&format!("${field}"))
}

fn is_small(value: &str) -> Document {
    doc! { "$lte": [{ "$bsonSize": { "v": value } }, MAX_WHOLE_BYTES] }
}

/// Runs a read with the beginnings of long texts, or without them if the server cannot cut one.
pub async fn with_beginnings<T, F: Future<Output = Result<T, StoreError>>>(
    read: impl Fn(LongText) -> F,
) -> Result<T, StoreError> {
    match read(LongText::Beginning).await {
        Err(error) if cannot_cut(&error) => read(LongText::Mark).await,
        other => other,
    }
}

/// Returns whether an expression failed, such as that a text to cut is not valid UTF-8.
pub(crate) fn cannot_cut(error: &StoreError) -> bool {
    /// Codes of errors without a name, which expressions have, are above (34459, for example).
    const MAX_NAMED_CODE: i32 = 20_000;
    error.code().is_some_and(|code| code > MAX_NAMED_CODE)
}
