//! Reads single records and counts for operators. (Lists: [`list`](super::list). Statistics:
//! [`stats`](super::stats).)

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Document, doc};
use postrider_store::{StoreError, limits, read, within};

use crate::collections::{Collections, names};
use crate::fields::ID;
use crate::undecoded::{DecodedRecord, RawId, RawWriter};

/// Serves operators: `{deadAt}` where dead.
pub const DEAD_INDEX: &str = "dead_idx";

/// Deletes delivered records when they expire, and serves operators: `{doneAt}` where done.
pub const DONE_TTL_INDEX: &str = "done_ttl_idx";

/// Reads an outbox without changing anything.
#[derive(Clone, Debug)]
pub struct Inspector {
    pub(super) collections: Collections,
}

impl Inspector {
    /// Creates an inspector of these collections.
    pub fn new(collections: Collections) -> Self {
        Self { collections }
    }

    /// Returns the record with the first of these ids that exists.
    pub async fn show(&self, ids: &[RawId]) -> Result<Option<DecodedRecord>, StoreError> {
        for id in ids {
            let filter = RawWriter::default().element(id, ID).finish();
            if let Some(found) = self.first(&filter).await? {
                return Ok(Some(DecodedRecord::read(&found)));
            }
        }
        Ok(None)
    }

    /// Runs a `find` or `aggregate` whose remaining fields are already encoded.
    pub(super) async fn read(
        &self,
        action: &'static str,
        command: &str,
        rest: impl FnOnce(RawWriter) -> RawWriter,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let command = doc! { command: self.collections.name(names::RECORDS) };
        let command = rest(RawWriter::default().fields(&command)).fields(&read::options());
        read::all(self.collections.database(), action, command.finish()).await
    }

    /// Returns the server's estimate of the number of records.
    pub(super) async fn total(&self) -> Result<u64, StoreError> {
        let records = self.collections.records();
        let counting = records.estimated_document_count();
        within("count records", limits::BATCH_TIMEOUT, counting).await
    }
}

/// Decodes a record as far as possible.
pub fn decoded(record: &RawDocument) -> Document {
    DecodedRecord::read(record).document
}
