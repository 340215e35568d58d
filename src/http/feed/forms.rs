//! The forms of an answer: a page, lines, server-sent events.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, StreamExt};
use serde::Serialize;
use tokio::time::Instant;
use tracing::warn;

use crate::events::Flaw;
use crate::events::feed::{Feed, FeedError, FeedFilter, FeedPage};
use crate::http::headers::read_single;
use crate::http::middleware::RequestPermit;
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::telemetry::chain;

/// The events that are read at a time for lines.
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
    pub(super) filter: FeedFilter,
}

#[derive(Serialize)]
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
        let feed = self.state.feed()?.clone();
        let limit = limit as usize;
        let first = feed.page(id.as_deref(), after, &self.filter, limit).await?;
        let kind = [(header::CONTENT_TYPE, "application/json")];
        if !first.items.is_empty() || wait.is_zero() {
            let page = json(&first).map_err(|error| Problem::fault(&error))?;
            return Ok((kind, page).into_response());
        }
        let permit = self.state.reader_permit()?;
        let waiting = async move {
            let waited = self.wait(&feed, first, limit, wait).await;
            drop(permit);
            Ok::<_, Cut>(Bytes::from(json(&waited?)?))
        };
        Ok((kind, Body::from_stream(logged(stream::once(waiting)))).into_response())
    }

    /// Reads on until a page has an event, the time is over, or the process stops.
    async fn wait(
        &self,
        feed: &Feed,
        mut page: FeedPage,
        limit: usize,
        wait: Duration,
    ) -> Result<FeedPage, FeedError> {
        let until = Instant::now() + wait;
        let stop = &self.state.stop;
        // Without events the filter may pass over many pages.
        while page.items.is_empty() && Instant::now() < until && !stop.is_cancelled() {
            if page.next >= page.head {
                tokio::select! {
                    () = feed.wait_beyond(page.next) => {}
                    () = tokio::time::sleep_until(until) => break,
                    () = stop.cancelled() => break,
                }
            }
            page = feed.page(Some(&page.feed), page.next, &self.filter, limit).await?;
        }
        Ok(page)
    }

    /// One event per line, up to the limit or the head. The last line says how far it has read.
    pub(super) async fn lines(
        self,
        (id, after): Place,
        limit: Option<u32>,
        permit: RequestPermit,
    ) -> Result<Response, Problem> {
        let feed = self.state.feed()?.clone();
        let mut left = limit.map_or(usize::MAX, |limit| limit as usize);
        let first = feed.page(id.as_deref(), after, &self.filter, left.min(PAGE)).await?;
        let end = first.head;
        left -= first.items.len();
        let state = Some((first, left, permit));
        let filter = self.filter;
        let pieces = stream::try_unfold(state, move |state| {
            let (feed, filter) = (feed.clone(), filter.clone());
            async move {
                let Some((page, left, permit)) = state else { return Ok::<_, Cut>(None) };
                if page.next >= end || left == 0 {
                    return Ok(Some((lines(&page, true)?, None)));
                }
                // The next page is read while this one is encoded.
                let reading = feed.page(Some(&page.feed), page.next, &filter, left.min(PAGE));
                let encoding = async { lines(&page, false) };
                let (next, text) = tokio::join!(reading, encoding);
                let (next, text) = (next?, text?);
                let left = left - next.items.len();
                Ok(Some((text, Some((next, left, permit)))))
            }
        });
        let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
        Ok((kind, Body::from_stream(logged(pieces))).into_response())
    }

    /// Server-sent events, without an end.
    pub(super) async fn events(self, (id, after): Place) -> Result<Response, Problem> {
        let feed = self.state.feed()?.clone();
        let permit = self.state.reader_permit()?;
        // An early error is a problem.
        let first = feed.page(id.as_deref(), after, &self.filter, PAGE).await?;
        let begin = events(&first).map_err(|error| Problem::fault(&error))?;
        let rest = feed.pages(Some(first.feed), first.next, self.filter);
        let stop = self.state.stop.clone();
        let state = (Box::pin(rest), permit);
        let rest = stream::unfold(state, |(mut pages, permit)| async move {
            let next = tokio::time::timeout(KEEP_ALIVE, pages.next()).await;
            let piece = match next {
                Ok(page) => page?.map_err(Cut::from).and_then(|page| Ok(events(&page)?)),
                Err(_) => Ok(Bytes::from_static(b":\n\n")),
            };
            Some((piece, (pages, permit)))
        });
        let pieces = stream::once(async { Ok(begin) }).chain(rest);
        let pieces = pieces.take_until(stop.cancelled_owned());
        let headers =
            [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
        Ok((headers, Body::from_stream(logged(pieces))).into_response())
    }
}

/// Why an answer ends early.
#[derive(Debug, thiserror::Error)]
enum Cut {
    /// The feed cannot be read.
    #[error(transparent)]
    Feed(#[from] FeedError),
    /// An event has no JSON. (The client would take its position for read.)
    #[error("cannot encode an event")]
    Encode(#[from] serde_json::Error),
}

/// The same pieces; an error is logged, and cuts the connection.
fn logged<S>(pieces: S) -> impl futures_util::Stream<Item = Result<Bytes, Cut>>
where
    S: futures_util::Stream<Item = Result<Bytes, Cut>>,
{
    pieces.inspect(|piece: &Result<Bytes, Cut>| {
        if let Err(error) = piece {
            warn!(
                error = chain(error),
                "failed to read the rest of the feed; closing the connection"
            );
        }
    })
}

fn json(page: &FeedPage) -> serde_json::Result<String> {
    let mut text = String::from("{\"items\":[");
    for (at, item) in page.items.iter().enumerate() {
        if at > 0 {
            text.push(',');
        }
        text.push_str(&serde_json::to_string(item)?);
    }
    text.push_str("],");
    // Without its opening brace.
    text.push_str(&progress(page)?[1..]);
    Ok(text)
}

fn progress(page: &FeedPage) -> serde_json::Result<String> {
    let FeedPage { feed, next, head, .. } = page;
    serde_json::to_string(&Progress { feed, next: *next, head: *head })
}

fn lines(page: &FeedPage, is_last: bool) -> serde_json::Result<Bytes> {
    let mut text = String::new();
    for item in &page.items {
        text.push_str(&serde_json::to_string(item)?);
        text.push('\n');
    }
    if is_last {
        text.push_str(&progress(page)?);
        text.push('\n');
    }
    Ok(text.into())
}

/// The events of a page. An id alone advances the client where nothing has matched.
fn events(page: &FeedPage) -> serde_json::Result<Bytes> {
    let mut text = String::new();
    let feed = &page.feed;
    for item in &page.items {
        let data = serde_json::to_string(item)?;
        text.push_str(&format!("id:{feed}:{}\ndata:{data}\n\n", item.position));
    }
    if page.items.last().is_none_or(|last| last.position < page.next) {
        text.push_str(&format!("id:{feed}:{}\n\n", page.next));
    }
    Ok(text.into())
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
