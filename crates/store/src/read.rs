//! Reads with commands that are already encoded.

use std::ops::ControlFlow;

use bson::doc;
use bson::raw::{RawDocument, RawDocumentBuf};
use futures_util::TryStreamExt;
use mongodb::Database;

use crate::connect::primary;
use crate::{StoreError, limits, within};

/// Options of every read command: majority read concern, and the server's time limit.
pub fn options() -> bson::Document {
    let server_limit = i64::try_from(limits::REPORT_TIMEOUT.as_millis()).unwrap_or(i64::MAX);
    doc! { "readConcern": { "level": "majority" }, "maxTimeMS": server_limit }
}

/// Returns everything that a `find` or `aggregate` with [`options`] finds. The driver's own methods
/// support UTF-8 only.
pub async fn all(
    database: &Database,
    action: &'static str,
    command: RawDocumentBuf,
) -> Result<Vec<RawDocumentBuf>, StoreError> {
    let reading = async {
        let cursor = database.run_raw_cursor_command(command).selection_criteria(primary()).await?;
        cursor.with_type::<RawDocumentBuf>().try_collect().await
    };
    within(action, limits::REPORT_TIMEOUT, reading).await
}

/// Reads what a `find` or `aggregate` with [`options`] finds, until `take` breaks. After its first batch,
/// which the command sizes, a reply has up to `batch` documents.
pub async fn some(
    database: &Database,
    action: &'static str,
    command: RawDocumentBuf,
    batch: u32,
    mut take: impl FnMut(&RawDocument) -> ControlFlow<()>,
) -> Result<(), StoreError> {
    let reading = async {
        let running = database.run_raw_cursor_command(command).selection_criteria(primary());
        let mut cursor = running.batch_size(batch).await?;
        while cursor.advance().await? && take(cursor.current()).is_continue() {}
        Ok(())
    };
    within(action, limits::REPORT_TIMEOUT, reading).await
}
