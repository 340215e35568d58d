//! Erases the content of records, for the erasure of an event stream.
//!
//! A settled record (done or dead) keeps its place, its status and its times; its payload becomes
//! `{}`, and it is marked, so that it is never delivered again. A record that is not settled is delivered first, or discarded. Each write is conditional: a
//! record that is leased, or that an operator requeues meanwhile, keeps its payload.

use bson::{Bson, Document, doc};
use mongodb::options::Hint;
use postrider_store::codes::TRANSIENT_CODES;
use postrider_store::write::{AckLevel, delete, update};
use postrider_store::{StoreError, limits, within};
use uuid::Uuid;

use crate::collections::{Collections, ID_INDEX, names};
use crate::fields::{DEAD, DONE, ERASED, HEADERS, ID, PAYLOAD, SCHEDULED, STATUS, exactly};
use crate::redrive::unleased;

/// The most ids in one command.
const BATCH_IDS: usize = 1_000;

/// Headers that a client of the producer chooses, and that a settled record does not need.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// What becomes of records that are not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PendingRecords {
    /// They are delivered, and erased by a later call.
    Deliver,
    /// They are removed, as by [`Redrive::Discard`](crate::redrive::Redrive::Discard), unless they are
    /// leased.
    Discard,
}

/// What one call has erased.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErasedRecords {
    /// Settled records without payload now, those that had none before included.
    pub emptied: u64,
    /// Records that were removed.
    pub discarded: u64,
    /// Records that were not erased: not settled, or changed meanwhile.
    pub left: u64,
}

/// Erases records by their ids.
#[derive(Clone, Debug)]
pub struct RecordEraser {
    collections: Collections,
}

impl RecordEraser {
    /// An eraser of these records. Sends nothing.
    pub fn new(collections: Collections) -> Self {
        Self { collections }
    }

    /// Erases the settled ones of these records. Ids without a record are ignored. A majority has every
    /// change.
    ///
    /// # Errors
    ///
    /// [`StoreError`]; what was erased stays erased, and a retry is safe.
    pub async fn erase(
        &self,
        ids: &[Uuid],
        pending: PendingRecords,
    ) -> Result<ErasedRecords, StoreError> {
        let mut erased = ErasedRecords::default();
        for batch in ids.chunks(BATCH_IDS) {
            let batch = among(batch);
            if pending == PendingRecords::Discard {
                erased.discarded += self.discard(&batch).await?;
            }
            erased.emptied += self.empty(&batch).await?;
            erased.left += self.left(&batch).await?;
        }
        Ok(erased)
    }

    async fn discard(&self, batch: &Document) -> Result<u64, StoreError> {
        let mut filter = doc! { ID: batch };
        filter.insert("$or", vec![doc! { STATUS: exactly(SCHEDULED) }, unleased()]);
        let action = "discard records of an erased stream";
        let statements = vec![doc! { "q": filter, "limit": 0, "hint": { ID: 1 } }];
        let name = self.collections.name(names::RECORDS);
        let database = self.collections.database();
        let written = delete(database, &name, action, statements, AckLevel::Majority).await?;
        refused(action, &written.failed)?;
        Ok(written.matched)
    }

    async fn empty(&self, batch: &Document) -> Result<u64, StoreError> {
        let settled = doc! { ID: batch, "$or": [
            { STATUS: exactly(DONE) },
            { STATUS: exactly(DEAD) },
        ] };
        let mut headers = Document::new();
        for header in TRACE_HEADERS {
            headers.insert(format!("{HEADERS}.{header}"), "");
        }
        let change = doc! { "$set": { PAYLOAD: {}, ERASED: true }, "$unset": headers };
        let statements = vec![doc! { "q": settled, "u": change, "multi": true, "hint": { ID: 1 } }];
        let action = "erase records";
        let name = self.collections.name(names::RECORDS);
        let database = self.collections.database();
        let written = update(database, &name, action, statements, AckLevel::Majority).await?;
        refused(action, &written.failed)?;
        Ok(written.matched)
    }

    /// Counts by the mark too: a record may have settled after the update.
    async fn left(&self, batch: &Document) -> Result<u64, StoreError> {
        let left = doc! { ID: batch, "$or": [
            { STATUS: { "$nin": [DONE, DEAD] } },
            { ERASED: { "$ne": true } },
        ] };
        let records = self.collections.records();
        let counting = records.count_documents(left).hint(Hint::Name(ID_INDEX.to_owned()));
        within("count records", limits::BATCH_TIMEOUT, counting).await
    }
}

fn among(ids: &[Uuid]) -> Document {
    let ids: Vec<Bson> =
        ids.iter().map(|id| Bson::from(bson::Uuid::from_bytes(*id.as_bytes()))).collect();
    doc! { "$in": ids }
}

fn refused(action: &'static str, failed: &[(usize, i32)]) -> Result<(), StoreError> {
    match failed.first() {
        Some((_, code)) if TRANSIENT_CODES.contains(code) => {
            let detail = format!("a statement failed with code {code}");
            Err(StoreError::Answer { action, detail })
        }
        Some((_, code)) => Err(StoreError::Refused { action, code: *code }),
        None => Ok(()),
    }
}
