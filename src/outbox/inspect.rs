//! Looking at an outbox from outside: figures, lists, single records.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::Hint;
use serde::Serialize;

use crate::ids::RecordId;
use crate::outbox::collections::Collections;
use crate::outbox::fields::{
    DEAD, DONE, HEADERS, ID, KEY, PAYLOAD, PENDING, SCHEDULED, SEQ, STATUS, TYPE, exactly,
};
use crate::outbox::position::NO_SEQ;
use crate::outbox::repair::SCHEDULED_INDEX;
use crate::outbox::snapshot::LANE_INDEX;
use crate::schema::index::DEAD_INDEX;
use crate::store::{StoreError, limits, within};

/// Records by status (contract, section 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stats {
    /// To be delivered.
    pub pending: u64,
    /// To become pending at their time.
    pub scheduled: u64,
    /// Delivered.
    pub done: u64,
    /// Given up, for the reason in each.
    pub dead: u64,
    /// Of any other status: never delivered.
    pub invalid: u64,
    /// Age of the oldest pending record in seconds, by its `seq` and the server's clock.
    pub oldest_pending_seconds: Option<u64>,
}

/// What waits and what died: the figures that cost no look at delivered records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// To be delivered.
    pub pending: u64,
    /// To become pending at their time.
    pub scheduled: u64,
    /// Given up.
    pub dead: u64,
    /// Age of the oldest pending record.
    pub oldest_pending: Option<Duration>,
}

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
    collections: Collections,
}

impl Inspector {
    /// An inspector of these collections.
    pub fn new(collections: Collections) -> Self {
        Self { collections }
    }

    /// Counts every record.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn stats(&self) -> Result<Stats, StoreError> {
        let backlog = self.backlog().await?;
        let pipeline = [doc! { "$group": { "_id": format!("${STATUS}"), "count": { "$sum": 1 } } }];
        let mut stats = Stats {
            pending: backlog.pending,
            scheduled: backlog.scheduled,
            dead: backlog.dead,
            oldest_pending_seconds: backlog.oldest_pending.map(|age| age.as_secs()),
            ..Stats::default()
        };
        for group in self.aggregate("count records", pipeline, None).await? {
            let count = number(group.get("count"));
            match group.get(ID) {
                Some(Bson::String(status)) if status == DONE => stats.done += count,
                Some(Bson::String(status))
                    if [PENDING, SCHEDULED, DEAD].contains(&status.as_str()) => {}
                _ => stats.invalid += count,
            }
        }
        Ok(stats)
    }

    /// Counts what waits and what died.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn backlog(&self) -> Result<Backlog, StoreError> {
        let seq = format!("${SEQ}");
        let is_seq = doc! { "$and": [
            { "$eq": [{ "$type": &seq }, "timestamp"] },
            { "$gt": [&seq, NO_SEQ] },
        ] };
        let pipeline = [
            doc! { "$match": { STATUS: exactly(PENDING) } },
            doc! { "$group": {
                ID: Bson::Null,
                "count": { "$sum": 1 },
                "oldest": { "$min": { "$cond": [is_seq, &seq, Bson::Null] } },
                "now": { "$first": "$$NOW" },
            } },
        ];
        let pending = self.aggregate("count pending records", pipeline, Some(LANE_INDEX)).await?;
        let pending = pending.into_iter().next().unwrap_or_default();
        let oldest = pending.get_timestamp("oldest").ok();
        let now = pending.get_datetime("now").ok();
        let oldest_pending = oldest.zip(now).map(|(oldest, now)| {
            let seconds = now.timestamp_millis() / 1_000 - i64::from(oldest.time);
            Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
        });
        Ok(Backlog {
            pending: number(pending.get("count")),
            scheduled: self.count(SCHEDULED, SCHEDULED_INDEX).await?,
            dead: self.count(DEAD, DEAD_INDEX).await?,
            oldest_pending,
        })
    }

    /// Counts records whose status is none, which are never delivered. Reads the whole collection.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn invalid(&self) -> Result<u64, StoreError> {
        let filter = doc! { "$or": [
            { STATUS: { "$nin": [PENDING, SCHEDULED, DONE, DEAD] } },
            { STATUS: { "$type": "array" } },
        ] };
        let records = self.collections.records();
        let counting = records.count_documents(filter);
        within("count invalid records", limits::SURVEY, counting.into_future()).await
    }

    /// Records in the order of their ids, without payload and headers.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn list(&self, filter: &Filter, limit: u32) -> Result<Vec<Document>, StoreError> {
        let mut query = Document::new();
        let texts = [(STATUS, &filter.status), (KEY, &filter.key), (TYPE, &filter.kind)];
        for (field, text) in texts {
            if let Some(text) = text {
                query.insert(field, text);
            }
        }
        if let Some(after) = &filter.after {
            // As an expression: `_id: {$gt}` would end with the ids of the same kind.
            let after = doc! { "$literal": Bson::from(after) };
            query.insert("$expr", doc! { "$gt": [format!("${ID}"), after] });
        }
        let records = self.collections.records().clone_with_type::<Document>();
        let finding = async {
            let cursor = records
                .find(query)
                .sort(doc! { ID: 1 })
                .limit(i64::from(limit))
                .projection(doc! { PAYLOAD: 0, HEADERS: 0 })
                .await?;
            cursor.try_collect().await
        };
        within("list records", limits::SURVEY, finding).await
    }

    /// The record with the first of these ids that there is.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn show(&self, ids: &[RecordId]) -> Result<Option<Document>, StoreError> {
        let records = self.collections.records().clone_with_type::<Document>();
        for id in ids {
            let finding = records.find_one(doc! { ID: Bson::from(id) });
            let found = within("read a record", limits::BATCH, finding.into_future()).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    async fn count(&self, status: &str, index: &str) -> Result<u64, StoreError> {
        let records = self.collections.records();
        let counting = records
            .count_documents(doc! { STATUS: exactly(status) })
            .hint(Hint::Name(index.to_owned()));
        within("count records", limits::SURVEY, counting.into_future()).await
    }

    async fn aggregate(
        &self,
        action: &'static str,
        pipeline: impl IntoIterator<Item = Document>,
        index: Option<&str>,
    ) -> Result<Vec<Document>, StoreError> {
        let records = self.collections.records();
        let mut aggregation = records.aggregate(pipeline);
        if let Some(index) = index {
            aggregation = aggregation.hint(Hint::Name(index.to_owned()));
        }
        let running = async { aggregation.await?.try_collect().await };
        within(action, limits::SURVEY, running).await
    }
}

fn number(value: Option<&Bson>) -> u64 {
    let number = match value {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        _ => 0,
    };
    u64::try_from(number).unwrap_or(0)
}
