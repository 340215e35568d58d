//! Sends one write command of several statements, and reads its response.

use bson::raw::RawDocumentBuf;
use bson::{Document, doc};
use mongodb::Database;
use mongodb::action::RunCommand;

use crate::connect::primary;
use crate::{StoreError, limits, within};

/// Acknowledgement that a write waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckLevel {
    /// The primary: sufficient for a lease, whose loss costs a duplicate.
    Primary,
    /// A majority: a failover does not undo it.
    Majority,
}

/// Result of the statements.
#[derive(Debug, Default)]
pub struct Written {
    /// Documents matched, over all statements.
    pub matched: u64,
    /// Statements that failed: their index and the server's code.
    pub failed: Vec<(usize, i32)>,
}

/// Sends `statements` (`{q, u, multi}`) in one command.
///
/// The driver's `update_many` takes one statement and is never retried. This is not retried either:
/// every caller can distinguish a retry from a first try.
///
/// # Errors
///
/// [`StoreError`]. If the write concern is not reached in time, the outcome is unknown.
pub async fn update(
    database: &Database,
    collection: &str,
    action: &'static str,
    statements: Vec<Document>,
    certainty: AckLevel,
) -> Result<Written, StoreError> {
    let key = "updates";
    run(database, doc! { "update": collection, key: statements }, action, certainty).await
}

/// Sends deletions (`{q, limit}`) in one command.
///
/// # Errors
///
/// As [`update`].
pub async fn delete(
    database: &Database,
    collection: &str,
    action: &'static str,
    statements: Vec<Document>,
    certainty: AckLevel,
) -> Result<Written, StoreError> {
    let key = "deletes";
    run(database, doc! { "delete": collection, key: statements }, action, certainty).await
}

async fn run(
    database: &Database,
    mut command: Document,
    action: &'static str,
    certainty: AckLevel,
) -> Result<Written, StoreError> {
    command.extend(options(certainty));
    answered(action, database.run_command(command)).await
}

/// Sends an encoded command, including its [`options`].
///
/// # Errors
///
/// As [`update`].
pub async fn send(
    database: &Database,
    action: &'static str,
    command: RawDocumentBuf,
) -> Result<Written, StoreError> {
    answered(action, database.run_raw_command(command)).await
}

/// Options of every write command.
pub fn options(certainty: AckLevel) -> Document {
    let server_limit = i64::try_from(limits::BATCH_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
    let concern = match certainty {
        AckLevel::Primary => doc! { "w": 1 },
        AckLevel::Majority => doc! { "w": "majority", "wtimeout": server_limit },
    };
    doc! { "ordered": false, "writeConcern": concern, "maxTimeMS": server_limit }
}

async fn answered(action: &'static str, running: RunCommand<'_>) -> Result<Written, StoreError> {
    let running = running.selection_criteria(primary());
    // The server times out first, so that its message reaches the log.
    let answer = within(action, limits::BATCH_TIMEOUT * 2, running.into_future()).await?;
    read_answer(action, &answer)
}

fn read_answer(action: &'static str, answer: &Document) -> Result<Written, StoreError> {
    let wrong = |detail: String| StoreError::Answer { action, detail };
    if let Ok(concern) = answer.get_document("writeConcernError") {
        return Err(wrong(format!("write concern not satisfied: {concern}")));
    }
    let matched = answer.get_i32("n").map_err(|error| wrong(error.to_string()))?;
    let mut failed = Vec::new();
    for error in answer.get_array("writeErrors").into_iter().flatten() {
        let error = error.as_document().ok_or_else(|| wrong("writeErrors".into()))?;
        let index = error.get_i32("index").map_err(|error| wrong(error.to_string()))?;
        let code = error.get_i32("code").map_err(|error| wrong(error.to_string()))?;
        failed.push((usize::try_from(index).unwrap_or(0), code));
    }
    Ok(Written { matched: u64::try_from(matched).unwrap_or(0), failed })
}
