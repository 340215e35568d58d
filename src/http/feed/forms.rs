//! The forms of an answer: a page, lines, server-sent events.

use std::time::Duration;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::ser::{Serialize, SerializeStruct, Serializer};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::events::Flaw;
use crate::events::feed::{Feed, FeedError, FeedFilter, FeedPage};
use crate::http::answers::{Answering, Next, PartError, PartText, Parts};
use crate::http::headers::read_single;
use crate::http::problem::Problem;
use crate::http::state::Api;

/// The most events of a part of lines and server-sent events.
const PAGE: usize = 1_000;

/// The interval of comments on a stream without events, so that neither side takes it for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// The header that continues a stream.
const LAST_EVENT_ID: &str = "Last-Event-ID";

/// Where to continue: `<feed>:<position>`.
#[derive(Debug, PartialEq)]
pub(super) struct LastEventId {
    pub(super) feed: String,
    pub(super) position: i64,
}

impl LastEventId {
    /// Reads the header, if there is one.
    pub(super) fn of(headers: &HeaderMap) -> Result<Option<Self>, Flaw> {
        let Some(text) = read_single(headers, LAST_EVENT_ID)? else { return Ok(None) };
        let wrong = || Flaw::new(LAST_EVENT_ID, "must be <feed>:<position>, the id of an event");
        let (feed, position) = text.rsplit_once(':').ok_or_else(wrong)?;
        let position = position.parse().ok().filter(|position| *position >= 0);
        Ok(Some(Self { feed: feed.to_owned(), position: position.ok_or_else(wrong)? }))
    }
}

/// The feed with its id, if it is known, and the position to read behind.
pub(super) type Place = (Option<String>, i64);

/// Reads the feed for one client.
pub(super) struct FeedReader {
    pub(super) state: Api,
    pub(super) answering: Answering,
    pub(super) filter: FeedFilter,
}

#[derive(serde::Serialize)]
struct Progress<'a> {
    feed: &'a str,
    next: i64,
    head: i64,
}

impl FeedReader {
    /// One page. Waits for an event if it has none: then the answer begins at once and ends later.
    pub(super) async fn page(
        self,
        (id, after): Place,
        limit: u32,
        wait: Duration,
    ) -> Result<Response, Problem> {
        let Self { state, answering, filter } = self;
        let feed = state.feed()?.clone();
        let limit = limit as usize;
        let turn = answering.turn().await?;
        let first = feed.page(id.as_deref(), after, &filter, limit).await?;
        if !first.items.is_empty() || wait.is_zero() {
            return turn.json(&PageAnswer(&first));
        }
        drop(turn);
        let waiting = WaitingPage {
            _reader: state.reader_permit()?,
            feed,
            filter,
            limit,
            until: Instant::now() + wait,
            stop: state.stop.clone(),
            page: Some(first),
            has_begun: false,
        };
        answering.stream("application/json", waiting, CancellationToken::new()).await
    }

    /// One event per line, up to the limit or the head. The last line says how far it has read.
    pub(super) async fn lines(
        self,
        (id, after): Place,
        limit: Option<u32>,
    ) -> Result<Response, Problem> {
        let left = limit.map_or(usize::MAX, |limit| limit as usize);
        let lines = Lines {
            feed: self.state.feed()?.clone(),
            filter: self.filter,
            place: (id, after),
            left,
            end: None,
            is_over: false,
            rest: Duration::ZERO,
        };
        self.answering.stream("application/x-ndjson", lines, CancellationToken::new()).await
    }

    /// Server-sent events, without an end.
    pub(super) async fn events(self, place: Place) -> Result<Response, Problem> {
        let events = Events {
            _reader: self.state.reader_permit()?,
            feed: self.state.feed()?.clone(),
            filter: self.filter,
            place,
            is_at_head: false,
        };
        let until = self.state.stop.clone();
        let answer = self.answering.stream("text/event-stream", events, until).await?;
        Ok(([(header::CACHE_CONTROL, "no-store")], answer).into_response())
    }
}

/// A page that waits for an event.
struct WaitingPage {
    _reader: OwnedSemaphorePermit,
    feed: Feed,
    filter: FeedFilter,
    limit: usize,
    until: Instant,
    stop: CancellationToken,
    /// The page so far; `None` once it is sent.
    page: Option<FeedPage>,
    has_begun: bool,
}

impl WaitingPage {
    fn is_over(&self) -> bool {
        Instant::now() >= self.until || self.stop.is_cancelled()
    }
}

impl Parts for WaitingPage {
    type Error = FeedError;

    fn wait(&mut self) -> BoxFuture<'_, Next> {
        async move {
            // Without events the filter may pass over many pages.
            if let Some(page) = &self.page
                && page.next >= page.head
            {
                tokio::select! {
                    () = self.feed.wait_beyond(page.next) => {}
                    () = tokio::time::sleep_until(self.until) => {}
                    () = self.stop.cancelled() => {}
                }
            }
            Next::Part
        }
        .boxed()
    }

    fn read(&mut self) -> BoxFuture<'_, PartText<FeedError>> {
        async move {
            if !std::mem::replace(&mut self.has_begun, true) {
                return Ok(Some(String::new()));
            }
            let Some(page) = self.page.take() else { return Ok(None) };
            let page = if self.is_over() {
                page
            } else {
                self.feed.page(Some(&page.feed), page.next, &self.filter, self.limit).await?
            };
            if page.items.is_empty() && !self.is_over() {
                self.page = Some(page);
                return Ok(Some(String::new()));
            }
            serde_json::to_string(&PageAnswer(&page)).map(Some).map_err(PartError::Encode)
        }
        .boxed()
    }
}

/// The feed up to the head at the beginning, or to a limit.
struct Lines {
    feed: Feed,
    filter: FeedFilter,
    place: Place,
    left: usize,
    /// The head at the beginning.
    end: Option<i64>,
    is_over: bool,
    /// How long to wait behind a part in which nothing has matched: as long as it took.
    rest: Duration,
}

impl Parts for Lines {
    type Error = FeedError;

    fn wait(&mut self) -> BoxFuture<'_, Next> {
        tokio::time::sleep(self.rest).map(|()| Next::Part).boxed()
    }

    fn read(&mut self) -> BoxFuture<'_, PartText<FeedError>> {
        async move {
            if self.is_over {
                return Ok(None);
            }
            let (id, after) = &self.place;
            let (began, limit) = (Instant::now(), self.left.min(PAGE));
            let page = self.feed.page(id.as_deref(), *after, &self.filter, limit).await?;
            self.rest = if page.items.is_empty() { began.elapsed() } else { Duration::ZERO };
            let end = *self.end.get_or_insert(page.head);
            self.left -= page.items.len();
            self.is_over = page.next >= end || self.left == 0;
            let text = lines(&page, self.is_over).map_err(PartError::Encode)?;
            self.place = (Some(page.feed), page.next);
            Ok(Some(text))
        }
        .boxed()
    }
}

/// Events as they are appended.
struct Events {
    _reader: OwnedSemaphorePermit,
    feed: Feed,
    filter: FeedFilter,
    place: Place,
    is_at_head: bool,
}

impl Parts for Events {
    type Error = FeedError;

    fn wait(&mut self) -> BoxFuture<'_, Next> {
        async move {
            if !self.is_at_head {
                return Next::Part;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.feed.wait_beyond(self.place.1)).await {
                Ok(()) => Next::Part,
                Err(_) => Next::Text(":\n\n"),
            }
        }
        .boxed()
    }

    fn read(&mut self) -> BoxFuture<'_, PartText<FeedError>> {
        async move {
            let (id, after) = &self.place;
            let page = self.feed.page(id.as_deref(), *after, &self.filter, PAGE).await?;
            self.is_at_head = page.next >= page.head;
            // The first part says where the client is, also without events.
            let is_news = id.is_none() || page.next > *after;
            let text =
                if is_news { events(&page).map_err(PartError::Encode)? } else { String::new() };
            self.place = (Some(page.feed), page.next);
            Ok(Some(text))
        }
        .boxed()
    }
}

/// A page as it is answered.
struct PageAnswer<'p>(&'p FeedPage);

impl Serialize for PageAnswer<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let FeedPage { feed, items, next, head } = self.0;
        let mut answer = to.serialize_struct("FeedAnswer", 4)?;
        answer.serialize_field("items", items)?;
        answer.serialize_field("feed", feed)?;
        answer.serialize_field("next", next)?;
        answer.serialize_field("head", head)?;
        answer.end()
    }
}

fn progress(page: &FeedPage) -> serde_json::Result<String> {
    let FeedPage { feed, next, head, .. } = page;
    serde_json::to_string(&Progress { feed, next: *next, head: *head })
}

fn lines(page: &FeedPage, is_last: bool) -> serde_json::Result<String> {
    let mut text = String::new();
    for item in &page.items {
        text.push_str(&serde_json::to_string(item)?);
        text.push('\n');
    }
    if is_last {
        text.push_str(&progress(page)?);
        text.push('\n');
    }
    Ok(text)
}

/// The events of a page. An id alone advances the client where nothing has matched.
fn events(page: &FeedPage) -> serde_json::Result<String> {
    let mut text = String::new();
    let feed = &page.feed;
    for item in &page.items {
        let data = serde_json::to_string(item)?;
        text.push_str(&format!("id:{feed}:{}\ndata:{data}\n\n", item.position));
    }
    if page.items.last().is_none_or(|last| last.position < page.next) {
        text.push_str(&format!("id:{feed}:{}\n\n", page.next));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_event_id_names_a_feed_and_a_position() {
        for (text, expected) in [
            ("f-1:7", Some(("f-1", 7))),
            ("a:b:0", Some(("a:b", 0))),
            ("7", None),
            ("f:-1", None),
            ("f:x", None),
        ] {
            let name = LAST_EVENT_ID.parse().unwrap();
            let headers = HeaderMap::from_iter([(name, text.parse().unwrap())]);

            let id = LastEventId::of(&headers).ok().flatten();

            let expected =
                expected.map(|(feed, position)| LastEventId { feed: feed.into(), position });
            assert_eq!(id, expected, "{text}");
        }
        assert_eq!(LastEventId::of(&HeaderMap::new()), Ok(None));
    }
}
