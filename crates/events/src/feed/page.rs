//! One page: events in the order of their positions, read in one snapshot.

use std::sync::Arc;

use bson::raw::RawDocument;
use bson::{Bson, doc};
use postrider_store::StoreError;
use postrider_store::connect::ask;

use crate::context::{CollectionKind, Context};
use crate::decode::decode;
use crate::feed::error::FeedError;
use crate::feed::event::{FeedEvent, FeedPage, events, sizes};
use crate::feed::fetch::{UsualSize, Wanted, fetch};
use crate::feed::filter::FeedFilter;
use crate::feed::invalid::InvalidStreams;
use crate::feed::places::{Places, first_behind};
use crate::feed::recent::Recent;
use crate::feed::state::{self, COLLECTION, FeedState, StateStore};
use crate::feed::stretch::Stretch;
use crate::feed::union::StreamReads;
use crate::names::AggregateName;

/// The events of a page take about this much at most, as BSON. One event is always read.
pub const MAX_PAGE_BYTES: usize = 1 << 20;

/// A page of this size ends: there is hardly room for another event.
const FULL_PAGE_BYTES: usize = MAX_PAGE_BYTES / 8 * 7;

/// The positions that a read with a filter covers at most.
const WINDOW: i64 = 10_000;

/// The most names that are read without a look at which of them have events in the page.
const FEW_NAMES: usize = 8;

/// The tries of a page: a snapshot can be too old, or a collection newer than it.
const MAX_TRIES: usize = 5;

/// `SnapshotTooOld` and `SnapshotUnavailable` (`error_codes.yml`).
const SNAPSHOT_CODES: [i32; 2] = [239, 246];

const ACTION: &str = "read the feed";

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

/// What the readers of a process have learned from earlier pages. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct Learned {
    invalid: InvalidStreams,
    places: Places,
    usual_size: UsualSize,
}

impl Learned {
    pub(super) fn new() -> Self {
        let (invalid, places) = (InvalidStreams::new(), Places::default());
        Self { invalid, places, usual_size: UsualSize::new() }
    }
}

/// Reads one page.
///
/// # Errors
///
/// [`FeedError`].
pub(super) async fn page(
    context: &Context,
    request: PageRequest<'_>,
    learned: &Learned,
) -> Result<FeedPage, FeedError> {
    let mut tries = 0;
    loop {
        let snapshot = Snapshot::begin(context, learned).await?;
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
    reads: StreamReads,
    state: FeedState,
    /// What the document of the feed says about the last positions.
    recent: Option<Arc<Stretch>>,
    learned: &'a Learned,
}

impl<'a> Snapshot<'a> {
    async fn begin(context: &Context, learned: &'a Learned) -> Result<Self, FeedError> {
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
        let found = first.and_then(Bson::as_document).ok_or(FeedError::Missing)?;
        let at = cursor.get_timestamp("atClusterTime").map_err(|error| wrong(error.to_string()))?;
        let (reads, state) = (StreamReads::new(database, at), state::read(found)?);
        let recent = Recent::read(found).stretch(state.head).map(Arc::new);
        Ok(Self { reads, state, recent, learned })
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
    async fn read(&self, request: PageRequest<'_>) -> Result<(Vec<FeedEvent>, i64), StoreError> {
        let PageRequest { after, filter, limit, .. } = request;
        let Learned { usual_size, .. } = self.learned;
        let head = self.state.head;
        let end = if filter.is_all() {
            head
        } else {
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            head.min(after.saturating_add(limit.max(WINDOW)))
        };
        let mut filling = FillingPage::new(request, &self.learned.invalid);
        let mut at = after;
        while at < end && !filling.is_full() {
            let stretch = self.stretch(at, end, filter).await?;
            let documents = usual_size.documents(filling.events_left(), filling.room());
            let positions = if filter.is_all() {
                i64::try_from(documents).unwrap_or(i64::MAX)
            } else {
                end - at
            };
            let (to, mut names) = stretch.part(at, positions);
            names.retain(|name| filter.has_name(name));
            let to = to.min(head);
            if names.is_empty() {
                at = to;
                continue;
            }
            let wanted = Wanted {
                after: at,
                to,
                names: &names,
                filter,
                limit: documents,
                room: filling.room(),
                is_first: filling.items.is_empty(),
            };
            let found = fetch(&wanted, &self.reads, usual_size).await?;
            for (position, document) in found.documents {
                if let Some(next) = filling.add(position, &document) {
                    return Ok((filling.items, next.max(at)));
                }
                at = position;
            }
            at = found.next;
            if found.is_full {
                break;
            }
        }
        Ok((filling.items, at))
    }

    /// Positions behind `at`, with the names of their events.
    async fn stretch(
        &self,
        at: i64,
        end: i64,
        filter: &FeedFilter,
    ) -> Result<Arc<Stretch>, StoreError> {
        let head = self.state.head;
        let wanted = self.state.names.iter().filter(|name| filter.has_name(name));
        let wanted: Vec<&AggregateName> = wanted.collect();
        if wanted.len() <= FEW_NAMES {
            // An append that begins up to `end` is read to its end.
            let end = if end < head {
                first_behind(end - 1, &wanted, &self.reads).await?.unwrap_or(head)
            } else {
                head
            };
            return Ok(Arc::new(Stretch::of_all(at, end, &wanted)));
        }
        match &self.recent {
            Some(recent) if recent.is_behind(at) => Ok(recent.clone()),
            _ => self.learned.places.behind(at, &self.state, &self.reads).await,
        }
    }
}

/// A page while it is read.
struct FillingPage<'a> {
    request: PageRequest<'a>,
    invalid: &'a InvalidStreams,
    items: Vec<FeedEvent>,
    bytes: usize,
}

impl<'a> FillingPage<'a> {
    fn new(request: PageRequest<'a>, invalid: &'a InvalidStreams) -> Self {
        Self { request, invalid, items: Vec::new(), bytes: 0 }
    }

    fn is_full(&self) -> bool {
        self.events_left() == 0 || self.bytes >= FULL_PAGE_BYTES
    }

    fn events_left(&self) -> usize {
        self.request.limit.saturating_sub(self.items.len())
    }

    fn room(&self) -> usize {
        MAX_PAGE_BYTES.saturating_sub(self.bytes)
    }

    /// Adds the events of an append whose last one has this position. Returns the position in front of the
    /// first one that has no place.
    fn add(&mut self, position: i64, document: &RawDocument) -> Option<i64> {
        let PageRequest { after, filter, .. } = self.request;
        let stream = decode(document);
        self.invalid.note(position, &stream);
        for (event, bytes) in events(position, stream).zip(sizes(document)) {
            if event.position <= after || !filter.has_event_named(&event.name) {
                continue;
            }
            if self.events_left() == 0 || (bytes > self.room() && !self.items.is_empty()) {
                return Some(event.position - 1);
            }
            self.bytes += bytes;
            self.items.push(event);
        }
        None
    }
}
