//! Lists records in pages: oldest first, or by id.
//!
//! Dates are read in the order of their index. `seq` and `attempt` have no index: up to
//! `MAX_SORTED_RECORDS` records are sorted. By id, records that no index selects are searched in
//! steps, up to `SEARCH_TIMEOUT`; the page then ends where the search did.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, DateTime, Document, Timestamp, doc};
use postrider_store::{ServerClock, StoreError};
use serde::Deserialize;

use crate::collections::ID_INDEX;
use crate::fields::{
    ATTEMPT, DEAD, DEAD_AT, DONE, DONE_AT, HEADERS, ID, PAYLOAD, PENDING, SCHEDULED, SEQ, STATUS,
    VISIBLE_AT, exactly,
};
use crate::filter::{add_texts, between, compared, invalid, seq};
use crate::inspect::{DEAD_INDEX, DONE_TTL_INDEX, Inspector};
use crate::repair::SCHEDULED_INDEX;
use crate::snapshot::LANE_INDEX;
use crate::undecoded::{DecodedRecord, RawId, RawWriter};

/// Maximum number of records to sort without an index.
const MAX_SORTED_RECORDS: u32 = 1_000_000;

/// Up to this many records of a status are sorted by id; more are searched among all records.
const MAX_RECORDS_SORTED_BY_ID: u64 = 10_000;

/// Records per step of a search by id.
const STEP_SIZE: u32 = 20_000;

/// Time limit of one search by id.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Prefix of a position in a list that is not sorted by id.
const PLACE_PREFIX: &str = "at:";

/// The status of a record; invalid: none of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum StatusFilter {
    /// To be delivered.
    Pending,
    /// Not due yet.
    Scheduled,
    /// Delivered.
    Done,
    /// Given up.
    Dead,
    /// Of a status that is none of the others: never delivered.
    Invalid,
}

/// What a list of records is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub enum Sort {
    /// `_id`.
    Id,
    /// Pending records by their place in line, oldest first.
    Seq,
    /// Dead records, the longest dead first.
    DeadAt,
    /// Scheduled records, the next one due first.
    VisibleAt,
    /// Pending or dead records, most attempts first.
    Attempt,
}

/// Which records to list.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Of this status.
    pub status: Option<StatusFilter>,
    /// Of this key.
    pub key: Option<String>,
    /// Of this type.
    pub kind: Option<String>,
    /// Dead, and whose `deadReason` begins so.
    pub reason: Option<String>,
    /// Pending, dead or done for longer than this, or overdue for longer.
    pub older_than: Option<Duration>,
    /// By age where it is not given and the status has one; else by id.
    pub sort: Option<Sort>,
}

/// A part of a list.
#[derive(Debug)]
pub struct RecordPage {
    /// In the list's order.
    pub records: Vec<DecodedRecord>,
    /// The place behind the last of them, where there are or may be more.
    pub next: Option<String>,
    /// What the list leaves out, where it does.
    pub note: Option<String>,
}

/// Invalid list request: the name of the parameter, and the error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListError(pub &'static str, pub String);

impl StatusFilter {
    /// The words for them.
    pub const WORDS: [&str; 5] = [PENDING, SCHEDULED, DONE, DEAD, "invalid"];

    /// The one of this word.
    pub fn of(word: &str) -> Option<Self> {
        let all = [Self::Pending, Self::Scheduled, Self::Done, Self::Dead, Self::Invalid];
        all.into_iter().find(|chapter| chapter.word() == word)
    }

    fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    fn filter(self) -> Document {
        match self {
            Self::Invalid => invalid(),
            of => doc! { STATUS: exactly(of.word()) },
        }
    }

    /// Returns the index of its records, and the field that gives their age.
    fn index(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Pending => Some((LANE_INDEX, SEQ)),
            Self::Scheduled => Some((SCHEDULED_INDEX, VISIBLE_AT)),
            Self::Done => Some((DONE_TTL_INDEX, DONE_AT)),
            Self::Dead => Some((DEAD_INDEX, DEAD_AT)),
            Self::Invalid => None,
        }
    }
}

impl Sort {
    /// The words for them.
    pub const WORDS: [&str; 5] = [ID_WORD, SEQ, DEAD_AT, VISIBLE_AT, ATTEMPT];

    /// The one of this word.
    pub fn of(word: &str) -> Option<Self> {
        let all = [Self::Id, Self::Seq, Self::DeadAt, Self::VisibleAt, Self::Attempt];
        all.into_iter().find(|sort| sort.word() == word)
    }

    fn word(self) -> &'static str {
        Self::WORDS[self as usize]
    }
}

const ID_WORD: &str = "id";

impl Filter {
    /// Returns the sort of the list.
    ///
    /// # Errors
    ///
    /// Parameters that contradict each other.
    fn judge(&self) -> Result<Sort, ListError> {
        let wrong = |name, detail: &str| Err(ListError(name, detail.to_owned()));
        if self.reason.is_some() && !matches!(self.status, None | Some(StatusFilter::Dead)) {
            return wrong("reason", "applies only to dead records");
        }
        let status = self.status();
        if self.older_than.is_some() && status.and_then(StatusFilter::index).is_none() {
            return wrong("olderThan", "requires the status pending, scheduled, done or dead");
        }
        let sort = self.sort.unwrap_or(match status {
            Some(StatusFilter::Pending) => Sort::Seq,
            Some(StatusFilter::Dead) => Sort::DeadAt,
            Some(StatusFilter::Scheduled) => Sort::VisibleAt,
            _ => Sort::Id,
        });
        match (sort, status) {
            (Sort::Seq, status) if status != Some(StatusFilter::Pending) => {
                wrong("sort", "seq requires the status pending")
            }
            (Sort::DeadAt, status) if status != Some(StatusFilter::Dead) => {
                wrong("sort", "deadAt requires the status dead")
            }
            (Sort::VisibleAt, status) if status != Some(StatusFilter::Scheduled) => {
                wrong("sort", "visibleAt requires the status scheduled")
            }
            (Sort::Attempt, status)
                if !matches!(status, Some(StatusFilter::Pending | StatusFilter::Dead)) =>
            {
                wrong("sort", "attempt requires the status pending or dead")
            }
            _ => Ok(sort),
        }
    }

    fn status(&self) -> Option<StatusFilter> {
        self.status.or_else(|| self.reason.as_ref().map(|_| StatusFilter::Dead))
    }

    /// Returns the conditions, at this server time.
    fn conditions(&self, now: DateTime) -> Document {
        let mut conditions = self.status().map(StatusFilter::filter).unwrap_or_default();
        let (key, kind, reason) = (self.key.as_ref(), self.kind.as_ref(), self.reason.as_ref());
        add_texts(&mut conditions, key, kind, reason);
        if let (Some(age), Some((_, field))) =
            (self.older_than, self.status().and_then(StatusFilter::index))
        {
            let age = i64::try_from(age.as_millis()).unwrap_or(i64::MAX);
            let before = now.timestamp_millis().saturating_sub(age);
            let before = match field {
                SEQ => {
                    let time = u32::try_from(before.max(0) / 1_000).unwrap_or(u32::MAX);
                    Bson::Timestamp(Timestamp { time, increment: 0 })
                }
                _ => Bson::DateTime(DateTime::from_millis(before)),
            };
            conditions.insert(field, doc! { "$lt": before });
        }
        conditions
    }
}

impl Inspector {
    /// Returns a page of records, without payload and headers, after a position: the `next` of a
    /// page, or an id.
    pub async fn list(
        &self,
        filter: &Filter,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Result<RecordPage, ListError>, StoreError> {
        let sort = match filter.judge() {
            Ok(sort) => sort,
            Err(unlistable) => return Ok(Err(unlistable)),
        };
        let place = match after {
            None => None,
            Some(text) => match self.place(sort, text).await? {
                Ok(place) => Some(place),
                Err(unlistable) => return Ok(Err(unlistable)),
            },
        };
        let now = match filter.older_than {
            Some(_) => ServerClock::asked(self.collections.database()).await?,
            None => DateTime::MIN,
        };
        let chosen = ListQuery {
            inspector: self,
            status: filter.status(),
            conditions: filter.conditions(now),
            has_key: filter.key.is_some(),
            limit,
        };
        let page = match sort {
            Sort::Id => chosen.by_id(place.map(|place| place.id)).await,
            Sort::DeadAt | Sort::VisibleAt => chosen.by_date(sort, place).await,
            Sort::Seq | Sort::Attempt => chosen.sorted(sort, place).await,
        };
        page.map(Ok)
    }

    /// Parses a position.
    async fn place(
        &self,
        sort: Sort,
        text: &str,
    ) -> Result<Result<ListPosition, ListError>, StoreError> {
        let wrong = |detail: String| Ok(Err(ListError("after", detail)));
        if let Some(place) = text.strip_prefix(PLACE_PREFIX) {
            return match ListPosition::read(sort, place) {
                Some(place) => Ok(Ok(place)),
                None => wrong(format!(
                    "is not a position in a list sorted by {}; start without it",
                    sort.word()
                )),
            };
        }
        let mut ids = RawId::parse_candidates(text);
        if ids.is_empty() || text.is_empty() {
            return wrong("is neither an id nor the next position of a list".to_owned());
        }
        if sort == Sort::Id && ids.len() == 1 {
            return Ok(Ok(ListPosition { value: ids[0].clone(), id: ids.remove(0) }));
        }
        // Ids of different types sort apart: use the one that exists, else the likeliest.
        for id in &ids {
            let filter = RawWriter::default().element(id, ID).finish();
            if let Some(record) = self.first(&filter).await? {
                return Ok(Ok(ListPosition::of(sort, &record)));
            }
        }
        match sort {
            // The record may have been removed since the previous page.
            Sort::Id => Ok(Ok(ListPosition { value: ids[0].clone(), id: ids.remove(0) })),
            _ => wrong(format!(
                "the record with this id no longer exists, so its position by {} is unknown; \
                 use the position that the previous list printed, or start without it",
                sort.word()
            )),
        }
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
}

/// A position in a list: after the record with this value and id.
#[derive(Debug)]
struct ListPosition {
    value: RawId,
    id: RawId,
}

impl ListPosition {
    fn of(sort: Sort, record: &RawDocument) -> Self {
        let id = RawId::of(record);
        let value = match sort {
            Sort::Id => id.clone(),
            Sort::DeadAt | Sort::VisibleAt => RawId::field(record, sort.word()),
            Sort::Seq => match record.get_timestamp(SEQ) {
                Ok(seq) if seq != crate::position::NO_SEQ => RawId::from(&Bson::Timestamp(seq)),
                _ => RawId::from(&Bson::MaxKey),
            },
            Sort::Attempt => {
                let number = RawId::field(record, ATTEMPT);
                match number.number() {
                    Some(number) => RawId::from(&Bson::Double(-number)),
                    None => RawId::from(&Bson::Double(0.0)),
                }
            }
        };
        Self { value, id }
    }

    fn read(sort: Sort, text: &str) -> Option<Self> {
        let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
        let place = RawDocumentBuf::from_bytes(bytes).ok()?;
        let is_of_this = place.get_str("sort").is_ok_and(|word| word == sort.word());
        is_of_this.then(|| Self { value: RawId::field(&place, "value"), id: RawId::of(&place) })
    }

    fn text(&self, sort: Sort) -> String {
        if sort == Sort::Id {
            return self.id.text();
        }
        let place = RawWriter::default().fields(&doc! { "sort": sort.word() });
        let place = place.element(&self.value, "value").element(&self.id, ID).finish();
        format!("{PLACE_PREFIX}{}", URL_SAFE_NO_PAD.encode(place.as_bytes()))
    }
}

/// Query of a page.
struct ListQuery<'a> {
    inspector: &'a Inspector,
    status: Option<StatusFilter>,
    conditions: Document,
    has_key: bool,
    limit: u32,
}

impl ListQuery<'_> {
    async fn by_id(&self, after: Option<RawId>) -> Result<RecordPage, StoreError> {
        let by_ids = self.conditions.is_empty().then_some(ID_INDEX);
        if let Some(index) = self.narrowest().await?.or(by_ids) {
            let behind = between(after.as_ref(), None);
            let found = self.find(behind, doc! { ID: 1 }, index, self.limit + 1).await?;
            return Ok(self.page(Sort::Id, found));
        }
        let mut found = Vec::new();
        let mut after = after;
        let (mut looked_at, began) = (0_u64, Instant::now());
        loop {
            let end = self.inspector.step(after.as_ref()).await?;
            let within = between(after.as_ref(), end.as_ref());
            let room = self.limit + 1 - u32::try_from(found.len()).unwrap_or(self.limit);
            found.extend(self.find(within, doc! { ID: 1 }, ID_INDEX, room).await?);
            let Some(end) = end else { return Ok(self.page(Sort::Id, found)) };
            if found.len() > self.limit as usize {
                return Ok(self.page(Sort::Id, found));
            }
            looked_at += u64::from(STEP_SIZE);
            after = Some(end);
            if began.elapsed() >= SEARCH_TIMEOUT {
                let place = after.map(|id| id.text());
                let note = format!(
                    "{looked_at} records were read, and there are more, since no index serves \
                     this filter; continue after `next`"
                );
                let page = self.page(Sort::Id, found);
                return Ok(RecordPage { next: page.next.or(place), note: Some(note), ..page });
            }
        }
    }

    /// Reads in the order of the index: the rest of the position's value, then what follows, with
    /// all records of the last value, so that records of one millisecond are ordered by id.
    async fn by_date(
        &self,
        sort: Sort,
        place: Option<ListPosition>,
    ) -> Result<RecordPage, StoreError> {
        let field = sort.word();
        let index = self.status.and_then(StatusFilter::index).map_or(ID_INDEX, |(index, _)| index);
        let wanted = self.limit as usize;
        let mut found = Vec::new();
        let mut behind = vec![single(field)];
        if let Some(place) = &place {
            let of_value =
                vec![same(field, &place.value), compared("$gt", ID, &place.id), single(field)];
            found = self.find(of_value, doc! { ID: 1 }, index, self.limit + 1).await?;
            behind.push(compared("$gt", field, &place.value));
        }
        let mut has_more = found.len() > wanted;
        found.truncate(wanted);
        if !has_more {
            let room = wanted - found.len();
            let limit = u32::try_from(room + 1).unwrap_or(u32::MAX);
            let mut later = self.find(behind, doc! { field: 1 }, index, limit).await?;
            has_more = later.len() > room;
            later.truncate(room);
            // The page may end within records of one value: they are read again, by id.
            let last = later.last().map(|record| RawId::field(record, field));
            if let Some(last) = last {
                later.retain(|record| RawId::field(record, field) != last);
                let room = u32::try_from(room - later.len()).unwrap_or(u32::MAX);
                let of_last = vec![same(field, &last), single(field)];
                later.extend(self.find(of_last, doc! { ID: 1 }, index, room).await?);
            }
            found.extend(later);
        }
        // Equal numbers of different types were read twice.
        let mut seen = HashSet::new();
        found.retain(|record| seen.insert(RawId::of(record)));
        let last = found.last().filter(|_| has_more);
        let next = last.map(|last| ListPosition::of(sort, last).text(sort));
        let records = found.iter().map(|record| DecodedRecord::read(record)).collect();
        Ok(RecordPage { records, next, note: None })
    }

    /// Sorts by a value without an index.
    async fn sorted(
        &self,
        sort: Sort,
        place: Option<ListPosition>,
    ) -> Result<RecordPage, StoreError> {
        let inspector = self.inspector;
        let index = self.status.and_then(StatusFilter::index).map_or(ID_INDEX, |(index, _)| index);
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
        pipeline.push(stage(doc! { "$limit": self.limit + 1 }));
        let pipeline = |command: RawWriter| {
            let rest = doc! { "cursor": {}, "hint": index };
            command.documents("pipeline", &pipeline).fields(&rest)
        };
        let order = inspector.read("list records", "aggregate", pipeline);
        let order = inspector.collections.by_index(index, order).await?;
        let ids: Vec<RawId> = order.iter().map(|one| RawId::of(one)).collect();
        let among = RawWriter::default().list("$in", &ids).finish();
        let filter = RawWriter::default().document(ID, &among).finish();
        let found = self.find_by(filter, doc! {}, ID_INDEX, 0).await?;
        let mut by_id: HashMap<RawId, RawDocumentBuf> =
            found.into_iter().map(|record| (RawId::of(&record), record)).collect();
        let has_more = order.len() > self.limit as usize;
        let last = order.iter().take(self.limit as usize).next_back();
        let next = last.filter(|_| has_more).map(|last| {
            ListPosition { value: RawId::field(last, "value"), id: RawId::of(last) }.text(sort)
        });
        // Records that were removed meanwhile are left out.
        let records = ids.iter().take(self.limit as usize).filter_map(|id| by_id.remove(id));
        let records = records.map(|record| DecodedRecord::read(&record)).collect();
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
        Ok(RecordPage { records, next, note })
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
        limit: u32,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let mut all = more;
        all.push(RawWriter::default().fields(&self.conditions).finish());
        let filter = RawWriter::default().documents("$and", &all).finish();
        self.find_by(filter, order, index, limit).await
    }

    async fn find_by(
        &self,
        filter: RawDocumentBuf,
        order: Document,
        index: &str,
        limit: u32,
    ) -> Result<Vec<RawDocumentBuf>, StoreError> {
        let rest = doc! {
            "projection": { PAYLOAD: 0, HEADERS: 0 }, "sort": order, "limit": i64::from(limit),
            "hint": index,
        };
        let found = |find: RawWriter| find.document("filter", &filter).fields(&rest);
        let found = self.inspector.read("list records", "find", found);
        self.inspector.collections.by_index(index, found).await
    }

    /// Builds a page; one record above the limit means that another page exists.
    fn page(&self, sort: Sort, mut found: Vec<RawDocumentBuf>) -> RecordPage {
        let has_more = found.len() > self.limit as usize;
        found.truncate(self.limit as usize);
        let last = found.last().filter(|_| has_more);
        let next = last.map(|last| ListPosition::of(sort, last).text(sort));
        RecordPage {
            records: found.iter().map(|record| DecodedRecord::read(record)).collect(),
            next,
            note: None,
        }
    }
}

impl Inspector {
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
}

/// Excludes arrays: the index would have such a record several times. A list by id has it.
fn single(field: &str) -> RawDocumentBuf {
    RawWriter::default().fields(&doc! { field: { "$not": { "$type": "array" } } }).finish()
}

/// Matches equal values; absent is null.
fn same(field: &str, value: &RawId) -> RawDocumentBuf {
    if value.is_null() { compared("$lte", field, value) } else { compared("$eq", field, value) }
}
