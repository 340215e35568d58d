//! Reading events.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::pin::pin;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};
use futures_util::{Stream, StreamExt, TryStreamExt};
use mongodb::Cursor;
use postrider_outbox::fields::exactly;
use postrider_store::page::PART_BYTES;
use postrider_store::{StoreError, limits, within};

use crate::context::{CollectionKind, Context};
use crate::decode::decode;
use crate::error::{Flaw, LoadError};
use crate::lookup::{Certainty, latest_version};
use crate::names::{AggregateId, AggregateName};
use crate::state::{StreamState, is_unreadable};
use crate::store::EventStore;
use crate::stream::EventStream;
use crate::stream::fields::{AGGREGATE_ID, CREATE_TIME, REQUEST_ID, TENANT_ID, VERSION};

/// The documents of one batch of the server, which is read ahead of a slow reader.
const BATCH_DOCUMENTS: u32 = 500;

/// The documents of the first part, whose sizes are not known.
const FIRST_DOCUMENTS: u32 = 16;

const ACTION: &str = "read events";

/// A range of an aggregate's events; without bounds all. Bounds are inclusive.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first version.
    pub from_version: Option<i64>,
    /// The last version.
    pub to_version: Option<i64>,
    /// The earliest time, in milliseconds since 1970.
    pub from_time: Option<i64>,
    /// The latest time.
    pub to_time: Option<i64>,
    /// Of this tenant only.
    pub tenant_id: Option<String>,
    /// The most appends.
    pub limit: Option<u32>,
}

impl Range {
    /// The range of these versions.
    pub fn versions(versions: RangeInclusive<i64>) -> Self {
        let (from, to) = versions.into_inner();
        Self { from_version: Some(from), to_version: Some(to), ..Self::default() }
    }

    /// The range of these times, in milliseconds since 1970.
    pub fn times(times: RangeInclusive<i64>) -> Self {
        let (from, to) = times.into_inner();
        Self { from_time: Some(from), to_time: Some(to), ..Self::default() }
    }

    /// All events, of this tenant if one is given.
    pub(crate) fn of_tenant(tenant: Option<&str>) -> Self {
        Self { tenant_id: tenant.map(str::to_owned), ..Self::default() }
    }

    /// The invalid bounds.
    pub fn flaws(&self) -> Vec<Flaw> {
        let bounds = [
            ("fromVersion", self.from_version),
            ("toVersion", self.to_version),
            ("fromTime", self.from_time),
            ("toTime", self.to_time),
        ];
        let negative = bounds.iter().filter(|(_, bound)| bound.is_some_and(|bound| bound < 0));
        let mut flaws: Vec<Flaw> =
            negative.map(|(field, _)| Flaw::new(*field, "must be 0 or above")).collect();
        let is_inverted = |from, to| matches!((from, to), (Some(from), Some(to)) if from > to);
        if is_inverted(self.from_version, self.to_version) {
            flaws.push(Flaw::new("toVersion", "must be at least fromVersion"));
        }
        if is_inverted(self.from_time, self.to_time) {
            flaws.push(Flaw::new("toTime", "must not be before fromTime"));
        }
        flaws
    }
}

impl EventStore {
    /// Streams the events of an aggregate, ascending by version; a slow reader blocks nothing. An
    /// unknown aggregate has none.
    ///
    /// A stream that ends while it is read has [`LoadError::Ended`] as its last item.
    ///
    /// # Errors
    ///
    /// [`LoadError::Range`], [`LoadError::Ended`]; later, errors of MongoDB as items.
    pub async fn load(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        range: &Range,
    ) -> Result<impl Stream<Item = Result<EventStream, LoadError>> + Send + use<>, LoadError> {
        if let Some(flaw) = range.flaws().into_iter().next() {
            return Err(LoadError::Range(flaw));
        }
        self.check_open(name, id).await?;
        let limit = range.limit.unwrap_or(0);
        let found =
            find(self.context(), name, filter(id, range), doc! { VERSION: 1 }, limit).await?;
        Ok(found.map(|read| read.and_then(|raw| readable(&raw))))
    }

    /// Reads the append with this version.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub async fn single(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        version: i64,
        tenant_id: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError> {
        self.check_open(name, id).await?;
        let (from_version, to_version) = (Some(version), Some(version));
        let range = Range { from_version, to_version, ..Range::of_tenant(tenant_id) };
        self.one(name, filter(id, &range)).await
    }

    /// Reads the newest append.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub async fn last(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        tenant_id: Option<&str>,
    ) -> Result<Option<EventStream>, LoadError> {
        // The newest append of the tenant may not be the newest one, which says whether it has ended.
        if tenant_id.is_some() {
            self.check_open(name, id).await?;
        }
        self.one(name, filter(id, &Range::of_tenant(tenant_id))).await
    }

    /// Whether there is an append with this request id.
    ///
    /// # Errors
    ///
    /// [`LoadError`].
    pub async fn exists_request_id(
        &self,
        name: &AggregateName,
        id: &AggregateId,
        request_id: &str,
    ) -> Result<bool, LoadError> {
        let filter = doc! { AGGREGATE_ID: id.as_str(), REQUEST_ID: request_id };
        let found = find(self.context(), name, filter, doc! {}, 1).await?;
        Ok(pin!(found).try_next().await?.is_some())
    }

    /// Checks by one seek that a stream has not ended, and returns the version of the aggregate; 0 if it
    /// does not exist. A stream that ends afterwards is noticed at its end, and one that is erased at the
    /// first append without content.
    ///
    /// # Errors
    ///
    /// [`LoadError::Ended`]; errors of MongoDB.
    pub async fn check_open(
        &self,
        name: &AggregateName,
        id: &AggregateId,
    ) -> Result<i64, LoadError> {
        let aggregate = (name.clone(), id.clone());
        let latest = latest_version(self.context(), &aggregate, Certainty::Majority).await?;
        match latest.state {
            StreamState::Open => Ok(latest.version),
            StreamState::Ended | StreamState::Erased => {
                Err(LoadError::Ended { version: latest.version })
            }
        }
    }

    async fn one(
        &self,
        name: &AggregateName,
        filter: Document,
    ) -> Result<Option<EventStream>, LoadError> {
        let found = find(self.context(), name, filter, doc! { VERSION: -1 }, 1).await?;
        pin!(found).try_next().await?.as_ref().map(readable).transpose()
    }
}

/// Streams the events of a range, ascending by version up to `last`, for a reader that may pause for any time:
/// they are read a part at a time, and between two parts nothing of MongoDB is held. Only versions that are
/// numbers are found.
///
/// The caller has called [`EventStore::check_open`]. A stream that ends while it is read has
/// [`LoadError::Ended`] as its last item.
pub fn load_in_parts(
    context: &Context,
    name: &AggregateName,
    id: &AggregateId,
    range: Range,
    last: i64,
) -> impl Stream<Item = Result<EventStream, LoadError>> + Send + use<> {
    let last = range.to_version.map_or(last, |to| to.min(last));
    let left = range.limit;
    let parts = EventParts {
        context: context.clone(),
        name: name.clone(),
        filter: filter(id, &Range { to_version: Some(last), ..range }),
        left,
        read: VecDeque::new(),
        after: None,
        largest: 0,
        is_over: false,
    };
    futures_util::stream::try_unfold(parts, |mut parts| async move {
        let Some(raw) = parts.next().await? else { return Ok(None) };
        Ok(Some((readable(&raw)?, parts)))
    })
}

/// Events that are read a part at a time.
struct EventParts {
    context: Context,
    name: AggregateName,
    filter: Document,
    /// How many may follow; `None` is all.
    left: Option<u32>,
    /// What was read and not yet taken.
    read: VecDeque<RawDocumentBuf>,
    /// The version behind which the next part begins.
    after: Option<Bson>,
    /// The size of the largest document so far.
    largest: usize,
    is_over: bool,
}

impl EventParts {
    async fn next(&mut self) -> Result<Option<RawDocumentBuf>, LoadError> {
        if self.read.is_empty() && !self.is_over {
            self.read_part().await?;
        }
        Ok(self.read.pop_front())
    }

    /// Reads as many documents as fit in a part if they are as large as the largest one so far. Those that do not fit
    /// are left for the next part.
    async fn read_part(&mut self) -> Result<(), LoadError> {
        let fitting = match self.largest {
            0 => FIRST_DOCUMENTS,
            largest => u32::try_from(PART_BYTES / largest).unwrap_or(BATCH_DOCUMENTS),
        };
        let wanted = fitting.clamp(1, BATCH_DOCUMENTS).min(self.left.unwrap_or(u32::MAX));
        if wanted == 0 {
            self.is_over = true;
            return Ok(());
        }
        let mut filter = self.filter.clone();
        if let Some(after) = &self.after {
            filter = doc! { "$and": [filter, { VERSION: { "$gt": after } }] };
        }
        let found = find(&self.context, &self.name, filter, doc! { VERSION: 1 }, wanted).await?;
        let mut found = pin!(found);
        let (mut count, mut bytes) = (0, 0);
        self.is_over = true;
        while let Some(raw) = found.try_next().await? {
            let size = raw.as_bytes().len();
            if count > 0 && bytes + size > PART_BYTES {
                self.is_over = false;
                break;
            }
            self.largest = self.largest.max(size);
            self.after = raw.get(VERSION).ok().flatten().and_then(|value| value.try_into().ok());
            self.read.push_back(raw);
            (count, bytes) = (count + 1, bytes + size);
        }
        self.left = self.left.map(|left| left.saturating_sub(count));
        // Fewer than asked for are the last ones.
        self.is_over &= count < wanted;
        Ok(())
    }
}

/// Finds events. A limit of 0 is none.
async fn find(
    context: &Context,
    name: &AggregateName,
    filter: Document,
    sort: Document,
    limit: u32,
) -> Result<impl Stream<Item = Result<RawDocumentBuf, LoadError>> + Send + use<>, LoadError> {
    let streams = context.collection(CollectionKind::Events, name.as_str());
    let streams = streams.clone_with_type::<RawDocumentBuf>();
    let finding = streams.find(filter).sort(sort).limit(limit.into()).batch_size(BATCH_DOCUMENTS);
    let cursor = within(ACTION, limits::BATCH_TIMEOUT, finding).await?;
    Ok(with_time_limit(cursor))
}

/// The documents of a cursor; each read of the server has the usual time limit.
fn with_time_limit(
    cursor: Cursor<RawDocumentBuf>,
) -> impl Stream<Item = Result<RawDocumentBuf, LoadError>> + Send {
    futures_util::stream::try_unfold(cursor, |mut cursor| async move {
        let next = async { cursor.try_next().await };
        let next: Result<_, StoreError> = within(ACTION, limits::BATCH_TIMEOUT, next).await;
        Ok(next?.map(|document| (document, cursor)))
    })
}

fn filter(id: &AggregateId, range: &Range) -> Document {
    let mut filter = doc! { AGGREGATE_ID: id.as_str() };
    for (field, from, to) in [
        (VERSION, range.from_version, range.to_version),
        (CREATE_TIME, range.from_time, range.to_time),
    ] {
        let mut bounds = Document::new();
        if let Some(from) = from {
            bounds.insert("$gte", from);
        }
        if let Some(to) = to {
            bounds.insert("$lte", to);
        }
        if !bounds.is_empty() {
            filter.insert(field, bounds);
        }
    }
    if let Some(tenant) = &range.tenant_id {
        filter.insert(TENANT_ID, exactly(tenant));
    }
    filter
}

fn readable(raw: &RawDocumentBuf) -> Result<EventStream, LoadError> {
    let stream = decode(raw);
    if is_unreadable(raw) {
        return Err(LoadError::Ended { version: stream.version });
    }
    Ok(stream)
}
