//! Inserts documents in a transaction, and keeps the server's details of a rejection.

use bson::raw::{RawArrayBuf, RawDocumentBuf, cstr};
use bson::{Bson, Document};
use mongodb::error::Result;
use mongodb::{ClientSession, Database};

/// Maximum size of an insert command: below the 16 MiB of a message's main section, unless a single
/// document is larger.
const MAX_COMMAND_BYTES: usize = 12 << 20;

/// The server rejected one of the documents; the transaction is aborted.
#[derive(Clone, Debug, PartialEq)]
pub struct InsertRefusal {
    /// Index of the document.
    pub index: usize,
    /// The server's code.
    pub code: i32,
    /// For code 11000: the keys of the violated unique index.
    pub key_pattern: Option<Document>,
    /// The server's message; it may quote the document.
    pub message: String,
}

/// Inserts `documents` in the session's transaction, in their order.
///
/// Sends the command itself: the driver's `insert_many` drops the `keyPattern`, the only way to
/// distinguish unique indexes.
///
/// # Errors
///
/// The driver's error with its labels.
pub async fn insert(
    session: &mut ClientSession,
    database: &Database,
    collection: &str,
    documents: &[RawDocumentBuf],
) -> Result<Option<InsertRefusal>> {
    let mut offset = 0;
    for part in parts(documents) {
        let mut array = RawArrayBuf::new();
        for document in part {
            array.push(document.as_ref());
        }
        let mut command = RawDocumentBuf::new();
        command.append(cstr!("insert"), collection);
        command.append(cstr!("documents"), array);
        let answer = database.run_raw_command(command).session(&mut *session).await?;
        if let Some(refusal) = refusal(&answer) {
            return Ok(Some(InsertRefusal { index: refusal.index + offset, ..refusal }));
        }
        offset += part.len();
    }
    Ok(None)
}

/// Splits the documents into commands.
fn parts(documents: &[RawDocumentBuf]) -> impl Iterator<Item = &[RawDocumentBuf]> {
    let mut rest = documents;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let fitting = rest.iter().take_while(|document| {
            bytes += document.as_bytes().len();
            bytes <= MAX_COMMAND_BYTES
        });
        let (part, left) = rest.split_at(fitting.count().max(1));
        rest = left;
        Some(part)
    })
}

fn refusal(answer: &Document) -> Option<InsertRefusal> {
    let error = answer.get_array("writeErrors").ok()?.first()?.as_document()?;
    Some(InsertRefusal {
        index: error.get_i32("index").ok().and_then(|it| usize::try_from(it).ok()).unwrap_or(0),
        code: error.get_i32("code").unwrap_or_default(),
        key_pattern: error.get("keyPattern").and_then(Bson::as_document).cloned(),
        message: error.get_str("errmsg").unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn parts_fill_commands_with_at_least_one_document() {
        let small = rawdoc! { "a": "x".repeat(5 << 20) };
        let large = rawdoc! { "a": "x".repeat(13 << 20) };

        let documents = [small.clone(), small.clone(), small.clone(), large, small];
        let lengths: Vec<usize> = parts(&documents).map(<[_]>::len).collect();

        assert_eq!(lengths, [2, 1, 1, 1]);
        assert_eq!(parts(&[]).count(), 0);
    }
}
