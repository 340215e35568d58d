//! Reads a page of a list.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use postrider_store::StoreError;
use postrider_store::page::{Gathered, PageSize};

use crate::brief::is_brief;
use crate::collections::ID_INDEX;
use crate::fields::{ATTEMPT, ID};
use crate::filter::{between, compared, seq};
use crate::inspect::{Inspector, STEP_SIZE};
use crate::list::filter::{Sort, StatusFilter};
use crate::list::position::ListPosition;
use crate::list::reading::BATCH_RECORDS;
use crate::snapshot::LANE_INDEX;
use crate::undecoded::{DecodedRecord, RawId, RawWriter};

/// Maximum number of records to sort without an index.
const MAX_SORTED_RECORDS: u32 = 1_000_000;

/// Up to this many records of a status are sorted by id; more are searched among all records.
const MAX_RECORDS_SORTED_BY_ID: u64 = 10_000;

/// Ids of one reply of MongoDB.
const BATCH_IDS: u32 = 1_000;

/// Time limit of one search by id.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// A part of a list.
#[derive(Debug)]
pub struct RecordPage {
    /// In the list's order. A page may end before its number of records, because of their size.
    pub records: Vec<DecodedRecord>,
    /// The place behind the last of them, where there are or may be more.
    pub next: Option<String>,
    /// What the list leaves out, where it does.
    pub note: Option<String>,
}

/// Query of a page.
pub(super) struct ListQuery<'a> {
    pub(super) inspector: &'a Inspector,
    pub(super) status: Option<StatusFilter>,
    pub(super) conditions: Document,
    pub(super) has_key: bool,
    pub(super) size: PageSize,
}

impl ListQuery<'_> {
    pub(super) async fn by_id(&self, after: Option<RawId>) -> Result<RecordPage, StoreError> {
        let mut found = Gathered::new(self.size);
        let by_ids = self.conditions.is_empty().then_some(ID_INDEX);
        if let Some(index) = self.narrowest().await?.or(by_ids) {
            let behind = between(after.as_ref(), None);
            self.find(behind, doc! { ID: 1 }, index, &mut found).await?;
            return Ok(page(Sort::Id, &found));
        }
        let mut after = after;
        let (mut looked_at, began) = (0_u64, Instant::now());
        loop {
            let end = self.inspector.step(after.as_ref()).await?;
            let within = between(after.as_ref(), end.as_ref());
            self.find(within, doc! { ID: 1 }, ID_INDEX, &mut found).await?;
            let Some(end) = end.filter(|_| !found.is_full) else {
                return Ok(page(Sort::Id, &found));
            };
            looked_at += u64::from(STEP_SIZE);
            let place = ListPosition { value: end.clone(), id: end.clone() };
            after = Some(end);
            if began.elapsed() >= SEARCH_TIMEOUT {
                let note = format!(
                    "{looked_at} records were read, and there are more, since no index serves \
                     this filter; continue after `next`"
                );
                let next = Some(place.text(Sort::Id));
                return Ok(RecordPage { next, note: Some(note), ..page(Sort::Id, &found) });
            }
        }
    }

    /// Reads in the order of the index: the rest of the position's value, then what follows, with
    /// all records of the last value, so that records of one millisecond are ordered by id.
    pub(super) async fn by_date(
        &self,
        sort: Sort,
        place: Option<ListPosition>,
    ) -> Result<RecordPage, StoreError> {
        let field = sort.word();
        let index = self.status.and_then(StatusFilter::index).map_or(ID_INDEX, |(index, _)| index);
        let mut found = Gathered::new(self.size);
        let mut behind = vec![sortable(field)];
        if let Some(place) = &place {
            let of_value =
                vec![same(field, &place.value), compared("$gt", ID, &place.id), sortable(field)];
            self.find(of_value, doc! { ID: 1 }, index, &mut found).await?;
            behind.push(compared("$gt", field, &place.value));
        }
        if !found.is_full {
            let before = found.documents.len();
            self.find(behind, doc! { field: 1 }, index, &mut found).await?;
            // The page may end within records of one value: they are read again, by id.
            let values: Vec<RawId> = found.documents[before..]
                .iter()
                .map(|record| RawId::field(record, field))
                .collect();
            if let Some(last) = values.last() {
                let (rest, was_full) = (values.iter().position(|one| one == last), found.is_full);
                found.truncate(before + rest.unwrap_or_default());
                let of_last = vec![same(field, last), sortable(field)];
                self.find(of_last, doc! { ID: 1 }, index, &mut found).await?;
                found.is_full |= was_full;
            }
        }
        // Equal numbers of different types were read twice.
        let mut seen = HashSet::new();
        found.documents.retain(|record| seen.insert(RawId::of(record)));
        Ok(page(sort, &found))
    }

    /// Sorts by a value without an index.
    pub(super) async fn sorted(
        &self,
        sort: Sort,
        place: Option<ListPosition>,
    ) -> Result<RecordPage, StoreError> {
        let inspector = self.inspector;
        let index = self.status.and_then(StatusFilter::index).map_or(ID_INDEX, |(index, _)| index);
        let order = self.order(sort, place, index).await?;
        let mut found = Gathered::new(self.size);
        let mut last = None;
        'full: for some in order.documents.chunks(BATCH_RECORDS as usize) {
            let ids: Vec<RawId> = some.iter().map(|one| RawId::of(one)).collect();
            // (These are stored ids, of which none is an operator.)
            let among = RawWriter::default().list("$in", &ids).finish();
            // One may have been replaced by a record beyond the scope.
            let scope = inspector.scope.condition();
            let filter = RawWriter::default().document(ID, &among).fields(&scope).finish();
            let mut records = Gathered::new(PageSize::of_any_size(BATCH_RECORDS));
            inspector.gather(&filter, &doc! {}, ID_INDEX, &mut records).await?;
            let records = records.documents.into_iter();
            let mut by_id: HashMap<RawId, RawDocumentBuf> =
                records.map(|record| (RawId::of(&record), record)).collect();
            for (one, id) in some.iter().zip(ids) {
                // Records that were removed meanwhile are left out.
                if by_id.remove(&id).is_some_and(|record| !found.add(&record)) {
                    break 'full;
                }
                last = Some(ListPosition { value: RawId::field(one, "value"), id });
            }
        }
        let has_more = order.is_full || found.is_full;
        let next = last.filter(|_| has_more).map(|last| last.text(sort));
        let most = u64::from(MAX_SORTED_RECORDS) + 1;
        let may_be_more = inspector.total().await? >= most;
        let counted = inspector.collections.count(index, self.conditions.clone(), Some(most));
        let is_cut = may_be_more && counted.await? == most;
        let note = is_cut.then(|| {
            format!(
                "more than {MAX_SORTED_RECORDS} records match, and no index has this order: \
                 only the first {MAX_SORTED_RECORDS} of the index {index} were sorted; filter by \
                 key or type"
            )
        });
        let records = found.documents.iter().map(|record| DecodedRecord::read_listed(record));
        Ok(RecordPage { records: records.collect(), next, note })
    }

    /// Returns the ids of the records to list, in this order, each with its value.
    async fn order(
        &self,
        sort: Sort,
        place: Option<ListPosition>,
        index: &str,
    ) -> Result<Gathered, StoreError> {
        let value = match sort {
            Sort::Seq => doc! { "$ifNull": [seq(), { "$literal": Bson::MaxKey }] },
            _ => {
                let attempt = format!("${ATTEMPT}");
                let negative = doc! { "$multiply": [-1, { "$toDouble": &attempt }] };
                doc! { "$cond": [{ "$isNumber": &attempt }, negative, 0.0] }
            }
        };
        let literal = |id: &RawId| RawWriter::default().element(id, "$literal").finish();
        let stage = |stage: Document| RawWriter::default().fields(&stage).finish();
        let mut pipeline = vec![
            stage(doc! { "$match": self.conditions.clone() }),
            stage(doc! { "$limit": MAX_SORTED_RECORDS }),
            stage(doc! { "$project": { "value": value } }),
        ];
        if let Some(place) = place {
            let (value, id) = (literal(&place.value), literal(&place.id));
            let vars = RawWriter::default().document("value", &value).document("id", &id).finish();
            let behind = doc! { "$or": [
                { "$gt": ["$value", "$$value"] },
                { "$and": [{ "$eq": ["$value", "$$value"] }, { "$gt": [format!("${ID}"), "$$id"] }] },
            ] };
            let within =
                RawWriter::default().document("vars", &vars).fields(&doc! { "in": behind });
            let within = RawWriter::default().document("$let", &within.finish()).finish();
            let within = RawWriter::default().document("$expr", &within).finish();
            pipeline.push(RawWriter::default().document("$match", &within).finish());
        }
        pipeline.push(stage(doc! { "$sort": { "value": 1, ID: 1 } }));
        pipeline.push(stage(doc! { "$limit": i64::from(self.size.count) + 1 }));
        let pipeline = |command: RawWriter| {
            let rest = doc! { "cursor": { "batchSize": BATCH_IDS }, "hint": index };
            command.documents("pipeline", &pipeline).fields(&rest)
        };
        let mut order = Gathered::new(self.size);
        self.inspector.read_some("aggregate", pipeline, index, &mut order).await?;
        Ok(order)
    }

    /// Returns the index that makes a list by id cheap; `None` if a walk along the ids is cheaper.
    async fn narrowest(&self) -> Result<Option<&'static str>, StoreError> {
        let Some((index, _)) = self.status.and_then(StatusFilter::index) else { return Ok(None) };
        // This index contains the key too.
        if index == LANE_INDEX && self.has_key {
            return Ok(Some(index));
        }
        let conditions = self.status.map(StatusFilter::filter).unwrap_or_default();
        let limit = Some(MAX_RECORDS_SORTED_BY_ID + 1);
        let count = self.inspector.collections.count(index, conditions, limit).await?;
        Ok((count <= MAX_RECORDS_SORTED_BY_ID).then_some(index))
    }

    async fn find(
        &self,
        more: Vec<RawDocumentBuf>,
        order: Document,
        index: &str,
        found: &mut Gathered,
    ) -> Result<(), StoreError> {
        let mut all = more;
        all.push(RawWriter::default().fields(&self.conditions).finish());
        let filter = RawWriter::default().documents("$and", &all).finish();
        self.inspector.gather(&filter, &order, index, found).await
    }
}

/// Builds a page.
fn page(sort: Sort, found: &Gathered) -> RecordPage {
    let last = found.documents.last().filter(|_| found.is_full);
    let next = last.map(|last| ListPosition::of(sort, last).text(sort));
    let records = found.documents.iter().map(|record| DecodedRecord::read_listed(record));
    RecordPage { records: records.collect(), next, note: None }
}

/// Excludes arrays, which the index would have several times, and values that are cut in lists. A list
/// by id has such a record.
fn sortable(field: &str) -> RawDocumentBuf {
    let single = doc! { field: { "$not": { "$type": "array" } }, "$expr": is_brief(field) };
    RawWriter::default().fields(&single).finish()
}

/// Matches equal values; absent is null.
fn same(field: &str, value: &RawId) -> RawDocumentBuf {
    if value.is_null() { compared("$lte", field, value) } else { compared("$eq", field, value) }
}
