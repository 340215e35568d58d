//! How many documents a query may read: what MongoDB would have to, is measured.
//!
//! A query whose every document is one of the answer reads what it answers. Of all others, first the keys
//! of an index within the [`bounds`] of the condition are counted, up to the limit. If they are too many,
//! the query may still find enough soon in the order that an index has: that is tried. What is executed
//! then reads these documents and no others, whichever plan MongoDB would choose for the whole condition.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::options::Hint;
use mongodb::{Collection, Database};
use parking_lot::Mutex;
use postrider_store::connect::primary;
use postrider_store::{StoreError, limits, within};

use super::bounds::bounds;
use super::plan::{Plan, Plans, Shape};
use super::read::Read;

/// So many times as many documents may be read where an index is read for single values, for example for a
/// tenant: that is what it is made for.
const POINTS_FACTOR: u64 = 10;

/// Few enough keys that to read them all is cheaper than to try another order first.
const FEW: u64 = 1_000;

/// The documents of an answer up to which MongoDB executes all of its plans in turns
/// (`internalQueryPlanEvaluationMaxResults`): the first that is done wins, so the cheapest.
const RACED: u64 = 101;

/// So many times as many documents as are needed are tried first, and so many times as many again.
const TRIAL_FACTOR: u64 = 4;

/// No document is left out by it, but MongoDB tests no condition before it that follows it.
const BARRIER: i64 = i64::MAX;

/// How long a measurement holds.
const RETENTION: Duration = Duration::from_secs(10);

/// The measurements that are remembered at most.
const MAX_MEASURED: usize = 1_000;

const ACTION: &str = "measure a query";

const FOUND: &str = "found";

/// A plan that reads too many documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    /// The collection.
    pub collection: String,
    /// About how many documents it has.
    pub documents: u64,
}

/// The documents that a query needs.
#[derive(Clone, Copy, Debug)]
pub(super) enum Needed<'q> {
    /// All, to count them.
    All,
    /// So many from the beginning of the order on, or from a cursor on: the filters of what is behind it,
    /// one after the other.
    First {
        /// How many.
        count: u64,
        /// The filters, at least one.
        behind: &'q [Document],
    },
}

/// How a query is executed.
#[derive(Clone, Debug)]
pub(super) enum Access {
    /// As MongoDB chooses.
    Free,
    /// From these documents alone.
    Within(Source),
    /// By this index, in the order of the query.
    InOrder(Hint),
    /// Not at all: no index serves it.
    Unindexed(Scan),
    /// Not at all: its condition on an indexed field leaves out too little.
    Broad(Scan),
}

/// What is read first, and then tested by the condition.
#[derive(Clone, Debug)]
pub(super) struct Source {
    filter: Document,
}

/// Decides on queries. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub(super) struct Budget {
    plans: Plans,
    known: Arc<Mutex<HashMap<u64, (Instant, u64)>>>,
}

/// A query to decide on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'q> {
    pub(super) database: &'q Database,
    pub(super) collection: &'q Collection<Document>,
    pub(super) shape: Shape<'q>,
    pub(super) needed: Needed<'q>,
    /// The most documents that it may read.
    pub(super) limit: u64,
    /// How long MongoDB may take for each measurement.
    pub(super) timeout: Duration,
}

impl Budget {
    /// Decides how a query is executed.
    pub(super) async fn access(&self, asked: Asked<'_>) -> Result<Access, StoreError> {
        let Asked { database, collection, shape, limit, .. } = asked;
        let plan = self.plans.plan(database, collection, shape).await?;
        if plan == Plan::Exact {
            return Ok(Access::Free);
        }
        let documents = self.size(asked).await?;
        if documents <= limit {
            return Ok(Access::Free);
        }
        let scan = Scan { collection: collection.name().to_owned(), documents };
        let Plan::Filters(reads) = plan else { return Ok(Access::Unindexed(scan)) };
        let access = self.bounded(asked, &reads).await?;
        if access.is_none() {
            self.plans.forget_soon(database, collection, shape);
        }
        Ok(access.unwrap_or(Access::Broad(scan)))
    }

    /// The access that reads few enough documents, if there is one.
    async fn bounded(
        &self,
        asked: Asked<'_>,
        reads: &[Read],
    ) -> Result<Option<Access>, StoreError> {
        let Asked { shape, needed, limit, .. } = asked;
        let bounded: Vec<_> =
            reads.iter().filter_map(|read| Some((read, bounds(shape.filter, read)?))).collect();
        let most = |is_points| limit.saturating_mul(if is_points { POINTS_FACTOR } else { 1 });
        let access = |read: &Read, filter: &Document| match needed {
            Needed::First { count, .. } if count <= RACED => Access::Free,
            // A search for texts must be the first stage.
            _ if read.is_text => Access::Free,
            _ => Access::Within(Source { filter: filter.clone() }),
        };
        for (read, bounds) in &bounded {
            if self.has_fewer(asked, &bounds.filter, most(bounds.is_points).min(FEW)).await? {
                return Ok(Some(access(read, &bounds.filter)));
            }
        }
        if let Needed::First { count, behind } = needed
            && let Some((read, hint)) = reads.iter().find_map(|read| Some((read, read.in_order()?)))
        {
            let filter = bounds(shape.filter, read).map(|bounds| bounds.filter).unwrap_or_default();
            if self.finds_enough(asked, &filter, count, behind).await? {
                return Ok(Some(Access::InOrder(hint)));
            }
        }
        for (read, bounds) in &bounded {
            if self.has_fewer(asked, &bounds.filter, most(bounds.is_points)).await? {
                return Ok(Some(access(read, &bounds.filter)));
            }
        }
        Ok(None)
    }

    /// Whether so many documents, or all there are, are among the first that a filter finds in the order.
    async fn finds_enough(
        &self,
        asked: Asked<'_>,
        filter: &Document,
        count: u64,
        behind: &[Document],
    ) -> Result<bool, StoreError> {
        let (mut missing, mut left) = (count, asked.limit);
        for behind in behind {
            let part = both(filter, behind);
            // Few first: MongoDB reads ahead as many as there may be.
            let mut first = missing.saturating_mul(TRIAL_FACTOR);
            let found = loop {
                let tried = first.min(left);
                if tried == 0 {
                    return Ok(false);
                }
                let found = self.found(asked, &part, tried, missing).await?;
                if found == missing {
                    return Ok(true);
                }
                if tried == left {
                    break found;
                }
                first = first.saturating_mul(TRIAL_FACTOR);
            };
            missing -= found.min(missing);
            let read = self.count(asked, &part, left).await?;
            if read >= left {
                return Ok(false);
            }
            left -= read;
        }
        Ok(true)
    }

    /// How many of the first documents of a part meet the condition, up to those that are missing.
    async fn found(
        &self,
        asked: Asked<'_>,
        part: &Document,
        first: u64,
        missing: u64,
    ) -> Result<u64, StoreError> {
        let Shape { filter, order } = asked.shape;
        let mut stages = vec![doc! { "$match": part }];
        if !order.is_empty() {
            stages.push(doc! { "$sort": order });
        }
        stages.push(doc! { "$limit": signed(first) });
        stages.push(doc! { "$match": filter });
        stages.push(doc! { "$limit": signed(missing) });
        stages.push(doc! { "$count": FOUND });
        let what = doc! { "": &stages };
        let finding = async {
            let counting = asked.collection.aggregate(stages).max_time(asked.timeout);
            let found = counting.await?.try_next().await?;
            Ok(found.and_then(|found| integer(found.get(FOUND)?)).unwrap_or(0))
        };
        self.measured(asked, &what, finding).await
    }

    /// Whether a filter finds fewer documents.
    async fn has_fewer(
        &self,
        asked: Asked<'_>,
        filter: &Document,
        most: u64,
    ) -> Result<bool, StoreError> {
        Ok(most > 0 && self.count(asked, filter, most).await? < most)
    }

    /// Counts documents, up to `most`, by the keys of the index where they are enough.
    async fn count(
        &self,
        asked: Asked<'_>,
        filter: &Document,
        most: u64,
    ) -> Result<u64, StoreError> {
        let count = doc! {
            "count": asked.collection.name(), "query": filter, "limit": signed(most),
            "maxTimeMS": i64::try_from(asked.timeout.as_millis()).unwrap_or(i64::MAX),
        };
        let what = count.clone();
        let counting = async {
            let counted = asked.database.run_command(count).selection_criteria(primary()).await?;
            Ok(counted.get("n").and_then(integer).unwrap_or(0))
        };
        self.measured(asked, &what, counting).await
    }

    /// About how many documents a collection has.
    async fn size(&self, asked: Asked<'_>) -> Result<u64, StoreError> {
        let counting = asked.collection.estimated_document_count().max_time(asked.timeout);
        self.measured(asked, &Document::new(), counting).await
    }

    /// A number that is remembered by what it is the number of.
    async fn measured(
        &self,
        asked: Asked<'_>,
        what: &Document,
        measuring: impl IntoFuture<Output = mongodb::error::Result<u64>>,
    ) -> Result<u64, StoreError> {
        let mut hasher = DefaultHasher::new();
        (asked.database.name(), asked.collection.name()).hash(&mut hasher);
        what.to_vec().unwrap_or_default().hash(&mut hasher);
        let key = hasher.finish();
        if let Some((until, number)) = self.known.lock().get(&key)
            && Instant::now() < *until
        {
            return Ok(*number);
        }
        // MongoDB ends it before.
        let number = within(ACTION, asked.timeout + limits::BATCH_TIMEOUT, measuring).await?;
        let mut known = self.known.lock();
        if known.len() >= MAX_MEASURED {
            known.clear();
        }
        known.insert(key, (Instant::now() + RETENTION, number));
        Ok(number)
    }
}

impl Source {
    /// The stages that read what a filter finds.
    pub(super) fn stages(&self, filter: &Document) -> Vec<Document> {
        vec![doc! { "$match": &self.filter }, doc! { "$limit": BARRIER }, doc! { "$match": filter }]
    }
}

/// The filter of what two filters find.
pub(super) fn both(one: &Document, other: &Document) -> Document {
    match (one.is_empty(), other.is_empty()) {
        (_, true) => one.clone(),
        (true, _) => other.clone(),
        _ => doc! { "$and": [one, other] },
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn integer(number: &Bson) -> Option<u64> {
    let number = number.as_i64().or(number.as_i32().map(i64::from))?;
    u64::try_from(number).ok()
}
