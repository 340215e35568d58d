//! One page: events in the order of their positions, read in one snapshot.

use std::collections::VecDeque;

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, Timestamp, doc};
use futures_util::{StreamExt, TryStreamExt, stream};
use mongodb::Database;
use postrider_store::connect::{ask, primary};
use postrider_store::{StoreError, limits, within};
use serde::Serialize;

use crate::context::{CollectionKind, Context};
use crate::decode::{concerns, decode};
use crate::document::as_json;
use crate::feed::error::FeedError;
use crate::feed::filter::FeedFilter;
use crate::feed::invalid::InvalidStreams;
use crate::feed::state::{self, COLLECTION, FeedState, StateStore};
use crate::integer::integral;
use crate::names::AggregateName;
use crate::schema::POSITION as INDEX;
use crate::stream::EventStream;
use crate::stream::fields::{ID, POSITION};

/// The positions that a read with a filter covers at most.
const WINDOW: i64 = 10_000;

/// The documents of one name in a page take about this much at most; one more document is always read.
const MAX_NAME_BYTES: usize = 8 << 20;

/// The collections that are read at a time.
const MAX_CONCURRENT_READS: usize = 4;

/// The tries of a page: a snapshot can be too old, or a collection newer than it.
const MAX_TRIES: usize = 5;

/// `SnapshotTooOld` and `SnapshotUnavailable` (`error_codes.yml`).
const SNAPSHOT_CODES: [i32; 2] = [239, 246];

/// The types of a position.
const INTEGERS: [&str; 2] = ["int", "long"];

const ACTION: &str = "read the feed";

/// One event, with its position.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = FeedItem))]
#[serde(rename_all = "camelCase")]
pub struct FeedEvent {
    /// The position: consecutive over all aggregate names of the context.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub position: i64,
    /// The kind of aggregate.
    #[cfg_attr(feature = "json", schema(example = "order"))]
    pub aggregate_name: String,
    /// The aggregate.
    #[cfg_attr(feature = "json", schema(example = "o-1"))]
    pub aggregate_id: String,
    /// The aggregate's version after the append.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub version: i64,
    /// The index of the event in its append, from 0.
    #[cfg_attr(feature = "json", schema(example = 0))]
    pub index: i64,
    /// The number of events of its append, of which a filter may exclude some.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub event_count: i64,
    /// The event's id: also that of its message.
    pub id: String,
    /// The event's name.
    #[cfg_attr(feature = "json", schema(example = "OrderPlaced"))]
    pub name: String,
    /// The revision of its body's form.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub revision: Option<String>,
    /// What a reader makes of its body, such as the name of a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub body_type: Option<String>,
    /// The event's body, as it was written.
    #[serde(serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(value_type = crate::json::JsonObject))]
    pub body: Document,
    /// The tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub tenant_id: Option<String>,
    /// The owner.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub owner_id: Option<String>,
    /// The request that appended it.
    pub request_id: String,
    /// The command.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "json", schema(nullable = false))]
    pub command_id: Option<String>,
    /// The time by MongoDB's clock, in milliseconds since 1970. It does not rise with the position.
    pub create_time: i64,
    /// What the application stored with the append.
    #[serde(serialize_with = "as_json")]
    #[cfg_attr(feature = "json", schema(value_type = crate::json::JsonObject))]
    pub header: Document,
    /// What of the event, or of its append, cannot be decoded, and why; absent where everything can.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub invalid: Vec<String>,
    /// The id of the event stream document.
    #[serde(skip)]
    pub stream_id: String,
}

/// A part of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedPage {
    /// The id of the feed, to be kept with `next`.
    pub feed: String,
    /// The events that the filter lets pass, ascending by position.
    pub items: Vec<FeedEvent>,
    /// The position up to which this page has read: the `after` of the next one. It advances where the
    /// filter lets nothing pass.
    pub next: i64,
    /// The last position of the feed.
    pub head: i64,
}

/// What to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct PageRequest<'a> {
    /// The id of the feed that `after` is of, if the reader knows it.
    pub(super) feed: Option<&'a str>,
    pub(super) after: i64,
    pub(super) filter: &'a FeedFilter,
    /// The most events.
    pub(super) limit: usize,
}

/// Reads one page.
///
/// # Errors
///
/// [`FeedError`].
pub(super) async fn page(
    context: &Context,
    request: PageRequest<'_>,
    invalid: &InvalidStreams,
) -> Result<FeedPage, FeedError> {
    let mut tries = 0;
    loop {
        let snapshot = Snapshot::begin(context, invalid).await?;
        let read = snapshot.page(request).await;
        tries += 1;
        let is_retryable = match &read {
            Err(FeedError::Store(error)) => {
                error.code().is_some_and(|code| SNAPSHOT_CODES.contains(&code))
            }
            // After an election a snapshot may be older than what the reader has read before.
            Err(FeedError::WrongFeed { .. } | FeedError::PositionAhead { .. }) => {
                let FeedState { feed, head, .. } = StateStore::new(context).confirm().await?;
                (&feed, head) != (&snapshot.state.feed, snapshot.state.head)
            }
            _ => false,
        };
        if !is_retryable || tries >= MAX_TRIES {
            return read;
        }
    }
}

/// The feed at one moment.
struct Snapshot<'a> {
    database: Database,
    at: Timestamp,
    state: FeedState,
    invalid: &'a InvalidStreams,
}

impl<'a> Snapshot<'a> {
    async fn begin(context: &Context, invalid: &'a InvalidStreams) -> Result<Self, FeedError> {
        let database = context.database(CollectionKind::Events);
        let command = doc! {
            "find": COLLECTION,
            "filter": state::filter(),
            "limit": 1,
            "singleBatch": true,
            "readConcern": { "level": "snapshot" },
        };
        let answer = ask(&database, ACTION, command).await?;
        let wrong = |detail: String| StoreError::Answer { action: ACTION, detail };
        let cursor = answer.get_document("cursor").map_err(|error| wrong(error.to_string()))?;
        let first = cursor.get_array("firstBatch").ok().and_then(|found| found.first());
        let state = first.and_then(Bson::as_document).ok_or(FeedError::Missing)?;
        let at = cursor.get_timestamp("atClusterTime").map_err(|error| wrong(error.to_string()))?;
        Ok(Self { database, at, state: state::read(state)?, invalid })
    }

    async fn page(&self, request: PageRequest<'_>) -> Result<FeedPage, FeedError> {
        let FeedState { feed, head, .. } = &self.state;
        if let Some(given) = request.feed
            && given != feed
        {
            return Err(FeedError::WrongFeed { given: given.to_owned(), actual: feed.clone() });
        }
        if request.after > *head {
            return Err(FeedError::PositionAhead { after: request.after, head: *head });
        }
        let (items, next) = self.read(request).await?;
        Ok(FeedPage { feed: feed.clone(), items, next, head: *head })
    }

    /// Reads events, and up to which position.
    async fn read(&self, request: PageRequest<'_>) -> Result<(Vec<FeedEvent>, i64), FeedError> {
        let PageRequest { after, filter, limit, .. } = request;
        let head = self.state.head;
        let limit_positions = i64::try_from(limit).unwrap_or(i64::MAX);
        if filter.is_all() {
            let end = head.min(after.saturating_add(limit_positions));
            let (items, next) = self.between(after, end, request).await?;
            if next > after || end == head {
                return Ok((items, next));
            }
            // A single append, or a part of the feed that was deleted, is larger than the page.
            let end = self.end_of_append(end).await?;
            return self.between(after, end, request).await;
        }
        let end = after.saturating_add(limit_positions.max(WINDOW));
        // Nothing between the events that pass may be taken for read when it is not.
        let end = if end >= head { head } else { self.end_of_append(end).await? };
        self.between(after, end, request).await
    }

    /// The end of the append that has an event at this position.
    async fn end_of_append(&self, position: i64) -> Result<i64, FeedError> {
        let names = self.state.names.iter();
        let reads: Vec<_> = names.map(|name| self.end_in(name, position)).collect();
        let reading = stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS);
        let ends: Vec<Option<i64>> = reading.try_collect().await?;
        Ok(ends.into_iter().flatten().min().unwrap_or(self.state.head))
    }

    /// The first end of an append of one name at this position or behind it.
    async fn end_in(&self, name: &AggregateName, position: i64) -> Result<Option<i64>, FeedError> {
        let filter = doc! { POSITION: { "$gte": position, "$type": INTEGERS.to_vec() } };
        let found = self.find(name, filter, Some(doc! { POSITION: 1, ID: 0 }), 1).await?;
        Ok(found.documents.front().map(|(position, _)| *position))
    }

    /// Reads the events behind `after`, up to `end`, which is the end of an append or a limit.
    async fn between(
        &self,
        after: i64,
        end: i64,
        request: PageRequest<'_>,
    ) -> Result<(Vec<FeedEvent>, i64), FeedError> {
        let PageRequest { filter, limit, .. } = request;
        let mut wanted = filter.conditions();
        wanted.insert(POSITION, doc! { "$gt": after, "$lte": end, "$type": INTEGERS.to_vec() });
        // An append without events shares its position with the one before it.
        wanted.insert("body.0", doc! { "$exists": true });
        let names = self.state.names.iter().filter(|name| filter.has_name(name));
        let reads: Vec<_> =
            names.map(|name| self.find(name, wanted.clone(), None, limit)).collect();
        let reading = stream::iter(reads).buffer_unordered(MAX_CONCURRENT_READS);
        let found: Vec<Found> = reading.try_collect().await?;
        // What one name was not read to its end limits all.
        let mut next = found.iter().filter_map(|found| found.cut_after).min().unwrap_or(end);
        let mut documents: Vec<(i64, RawDocumentBuf)> =
            found.into_iter().flat_map(|found| found.documents).collect();
        documents.sort_unstable_by_key(|(position, _)| *position);
        let is_limit = filter.is_all() && end < self.state.head;
        if is_limit {
            // The append behind the last one found may begin before `end`.
            let last = documents.last().map_or(after, |(position, _)| *position);
            next = next.min(last);
        }
        let mut items = Vec::new();
        for (position, document) in documents.into_iter().take_while(|(at, _)| *at <= next) {
            let stream = decode(&document);
            self.invalid.note(position, &stream);
            let events = events(position, stream).filter(|event| event.position > after);
            items.extend(events.filter(|event| filter.has_event_named(&event.name)));
            if items.len() > limit {
                break;
            }
        }
        if items.len() > limit {
            items.truncate(limit);
            next = items.last().map_or(after, |last| last.position);
        }
        Ok((items, next))
    }

    /// Finds streams of one name, ascending by position.
    async fn find(
        &self,
        name: &AggregateName,
        filter: Document,
        projection: Option<Document>,
        limit: usize,
    ) -> Result<Found, FeedError> {
        let limit_documents = i64::try_from(limit).unwrap_or(i64::MAX);
        let collection = CollectionKind::Events.collection(name.as_str());
        let mut command = doc! {
            "find": &collection,
            "filter": filter,
            "sort": { POSITION: 1 },
            "hint": INDEX.name,
            "limit": limit_documents,
            "batchSize": limit_documents,
            "readConcern": { "level": "snapshot", "atClusterTime": self.at },
        };
        if let Some(projection) = projection {
            command.insert("projection", projection);
        }
        let reading = async {
            let finding = self.database.run_cursor_command(command);
            let mut cursor = finding.selection_criteria(primary()).batch().await?;
            let mut found = Found::default();
            let mut bytes = 0;
            while let Some(batch) = cursor.next().await.transpose()? {
                for document in batch.doc_slices()? {
                    let Some(document) = document?.as_document() else { continue };
                    bytes += document.as_bytes().len();
                    found.add(document);
                    if bytes > MAX_NAME_BYTES {
                        return Ok(found.cut());
                    }
                }
            }
            Ok(if found.documents.len() == limit { found.cut() } else { found })
        };
        let found = within(ACTION, limits::BATCH_TIMEOUT, reading).await;
        Ok(found.map_err(|error: StoreError| error.of_index(&collection, INDEX.name))?)
    }
}

/// The streams of one name.
#[derive(Default)]
struct Found {
    documents: VecDeque<(i64, RawDocumentBuf)>,
    /// The position behind which there may be more.
    cut_after: Option<i64>,
}

impl Found {
    fn add(&mut self, document: &RawDocument) {
        let position = document.get(POSITION).ok().flatten();
        let position = position.and_then(|value| integral(&Bson::try_from(value).ok()?));
        if let Some(position) = position {
            self.documents.push_back((position, document.to_owned()));
        }
    }

    fn cut(mut self) -> Self {
        self.cut_after = self.documents.back().map(|(position, _)| *position);
        self
    }
}

/// The events of an append whose last one has this position.
fn events(position: i64, mut stream: EventStream) -> impl Iterator<Item = FeedEvent> {
    let body = std::mem::take(&mut stream.body);
    let event_count = i64::try_from(body.len()).unwrap_or(0);
    let first = position - event_count + 1;
    // The last event takes the fields that all have; the others copy them.
    let streams = std::iter::repeat_n(stream, body.len());
    (0_i64..).zip(body).zip(streams).map(move |((index, event), stream)| FeedEvent {
        position: first + index,
        aggregate_name: stream.aggregate_name,
        aggregate_id: stream.aggregate_id,
        version: stream.version,
        index,
        event_count,
        id: event.id,
        name: event.name,
        revision: event.revision,
        body_type: event.body_type,
        body: event.body,
        tenant_id: stream.tenant_id,
        owner_id: stream.owner_id,
        request_id: stream.request_id,
        command_id: stream.command_id,
        create_time: stream.create_time,
        header: stream.header,
        invalid: stream.invalid.into_iter().filter(|field| concerns(field, index)).collect(),
        stream_id: stream.id,
    })
}
