//! Reads single records and counts for operators. (Lists: [`list`](super::list). Statistics:
//! [`stats`](super::stats).)

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Document, doc};
use postrider_store::{StoreError, limits, read, within};

use crate::collections::{Collections, ID_INDEX, names};
use crate::fields::ID;
use crate::filter::compared;
use crate::scope::RecordScope;
use crate::undecoded::{DecodedRecord, RawId, RawWriter};

/// Serves operators: `{deadAt}` where dead.
pub const DEAD_INDEX: &str = "dead_idx";

/// Deletes delivered records when they expire, and serves operators: `{doneAt}` where done.
pub const DONE_TTL_INDEX: &str = "done_ttl_idx";

/// Records per step of a search by id.
pub(super) const STEP_SIZE: u32 = 20_000;

/// Reads an outbox without changing anything.
#[derive(Clone, Debug)]
pub struct Inspector {
    pub(super) collections: Collections,
    pub(super) scope: RecordScope,
}

impl Inspector {
    /// Creates an inspector of these collections.
    pub fn new(collections: Collections) -> Self {
        Self { collections, scope: RecordScope::default() }
    }

    /// The same for records and lists within this scope. Counts are those of all records.
    #[must_use]
    pub fn within(self, scope: RecordScope) -> Self {
        Self { scope, ..self }
    }

    /// Returns the record with the first of these ids that exists.
    pub async fn show(&self, ids: &[RawId]) -> Result<Option<DecodedRecord>, StoreError> {
        let found = self.first_of(ids).await?;
        Ok(found.map(|record| DecodedRecord::read(&record)))
    }

    /// Returns the record with the first of these ids that exists, undecoded.
    pub(super) async fn first_of(
        &self,
        ids: &[RawId],
    ) -> Result<Option<RawDocumentBuf>, StoreError> {
        for id in ids {
            let filter =
                RawWriter::default().equal(ID, id).fields(&self.scope.condition()).finish();
            let found = self.first(&filter).await?;
            if let Some(found) = found.filter(|found| id.is_same(&RawId::of(found))) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Returns the first record that matches, completely.
    pub(super) async fn first(
        &self,
        filter: &RawDocumentBuf,
    ) -> Result<Option<RawDocumentBuf>, StoreError> {
        let one = |find: RawWriter| {
            find.document("filter", filter).fields(&doc! { "limit": 1, "singleBatch": true })
        };
        Ok(self.read("read a record", "find", one).await?.into_iter().next())
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

    /// Returns the last id of a step; `None` if less than a step is left.
    pub(super) async fn step(&self, after: Option<&RawId>) -> Result<Option<RawId>, StoreError> {
        let behind = match after {
            Some(id) => compared("$gt", ID, id),
            None => RawDocumentBuf::new(),
        };
        let rest = doc! {
            "projection": { ID: 1 }, "sort": { ID: 1 }, "skip": STEP_SIZE - 1, "limit": 1,
            "hint": ID_INDEX,
        };
        let last = |find: RawWriter| find.document("filter", &behind).fields(&rest);
        let found = self.read("list records", "find", last).await?;
        Ok(found.first().map(|record| RawId::of(record)))
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
