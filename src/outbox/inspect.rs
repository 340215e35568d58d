//! Looking at an outbox from outside: lists and single records. (Figures: [`stats`](super::stats).)

use bson::raw::RawDocument;
use bson::{Bson, Document, Utf8Lossy, doc};
use futures_util::TryStreamExt;
use mongodb::options::Hint;

use crate::ids::RecordId;
use crate::outbox::collections::Collections;
use crate::outbox::fields::{
    DEAD, DONE, HEADERS, ID, KEY, PAYLOAD, PENDING, SCHEDULED, STATUS, TYPE, exactly,
};
use crate::outbox::repair::SCHEDULED_INDEX;
use crate::outbox::snapshot::LANE_INDEX;
use crate::store::{StoreError, limits, within};

/// Serves operators: `{deadAt}` where dead.
pub const DEAD_INDEX: &str = "dead_idx";

/// Deletes delivered records when they expire, and serves operators: `{doneAt}` where done.
pub const DONE_TTL_INDEX: &str = "done_ttl_idx";

/// So few records of a status are sooner sorted than found among all the others.
const FEW: u64 = 10_000;

/// Which records to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this status.
    pub status: Option<String>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// Behind this id, in the order of ids.
    pub after: Option<RecordId>,
}

/// Reads an outbox without changing anything.
#[derive(Clone, Debug)]
pub struct Inspector {
    pub(super) collections: Collections,
}

impl Inspector {
    /// An inspector of these collections.
    pub fn new(collections: Collections) -> Self {
        Self { collections }
    }

    /// Records in the order of their ids, without payload and headers.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn list(&self, filter: &Filter, limit: u32) -> Result<Vec<Document>, StoreError> {
        let mut query = Document::new();
        if let Some(status) = &filter.status {
            query.insert(STATUS, exactly(status));
        }
        for (field, text) in [(KEY, &filter.key), (TYPE, &filter.kind)] {
            if let Some(text) = text {
                query.insert(field, text);
            }
        }
        if let Some(after) = &filter.after {
            // As an expression: `_id: {$gt}` would end with the ids of the same kind.
            let after = doc! { "$literal": Bson::from(after) };
            query.insert("$expr", doc! { "$gt": [format!("${ID}"), after] });
        }
        let index = self.narrowest(filter).await?;
        let records = self.collections.records();
        let mut find = records
            .find(query)
            .sort(doc! { ID: 1 })
            .limit(i64::from(limit))
            .projection(doc! { PAYLOAD: 0, HEADERS: 0 });
        if let Some(index) = index {
            find = find.hint(Hint::Name(index.to_owned()));
        }
        let finding = async { find.await?.try_collect::<Vec<_>>().await };
        let found = within("list records", limits::SURVEY, finding).await?;
        found.iter().map(|record| decoded(record)).collect()
    }

    /// The record with the first of these ids that there is.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn show(&self, ids: &[RecordId]) -> Result<Option<Document>, StoreError> {
        let records = self.collections.records();
        for id in ids {
            let finding = records.find_one(doc! { ID: Bson::from(id) });
            let found = within("read a record", limits::BATCH, finding.into_future()).await?;
            if let Some(found) = found {
                return decoded(&found).map(Some);
            }
        }
        Ok(None)
    }

    /// The index by which a list is short work; `None` where to walk along the ids is.
    async fn narrowest(&self, filter: &Filter) -> Result<Option<&'static str>, StoreError> {
        let index = match filter.status.as_deref() {
            // It holds the key too.
            Some(PENDING) if filter.key.is_some() => return Ok(Some(LANE_INDEX)),
            Some(PENDING) => LANE_INDEX,
            Some(SCHEDULED) => SCHEDULED_INDEX,
            Some(DEAD) => DEAD_INDEX,
            Some(DONE) => DONE_TTL_INDEX,
            _ => return Ok(None),
        };
        let records = self.collections.records();
        let counting = records
            .count_documents(doc! { STATUS: &filter.status })
            .limit(FEW + 1)
            .hint(Hint::Name(index.to_owned()));
        let count = within("count records", limits::SURVEY, counting.into_future()).await?;
        Ok((count <= FEW).then_some(index))
    }
}

/// A record as it is. Text that is no UTF-8 is shown as well as can be, and hides no neighbour.
///
/// Not by serde: it takes a document such as `{"$oid": 1}`, which a producer may well have
/// written, for extended JSON.
///
/// # Errors
///
/// Bytes that are no BSON.
pub(super) fn decoded(record: &RawDocument) -> Result<Document, StoreError> {
    let decoded = Utf8Lossy::<Document>::try_from(record);
    let wrong = |error: bson::error::Error| StoreError::Answer {
        action: "decode a record",
        detail: error.to_string(),
    };
    decoded.map(|decoded| decoded.0).map_err(wrong)
}
