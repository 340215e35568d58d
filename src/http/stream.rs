//! Streams long lists, no faster than the client receives them.

use std::error::Error;
use std::pin::Pin;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use tracing::warn;

use crate::http::middleware::RequestPermit;
use crate::http::problem::Problem;
use crate::telemetry::chain;

/// The most items in one piece of the answer.
const PIECE_ITEMS: usize = 100;

/// The form of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListForm {
    /// `{"items": […], "next": …}`.
    Json,
    /// One item per line.
    Lines,
    /// A bare array, without `next`.
    Array,
    /// Server-sent events, one for each item.
    Events,
}

impl ListForm {
    /// The form that the client accepts.
    pub fn accepted(headers: &HeaderMap) -> Self {
        if accepts(headers, "application/x-ndjson") { Self::Lines } else { Self::Json }
    }

    /// The form that a client of the Wow framework accepts.
    pub fn accepted_by_wow(headers: &HeaderMap) -> Self {
        if accepts(headers, "text/event-stream") { Self::Events } else { Self::Array }
    }

    /// What stands before the first item, between two, and behind each.
    fn marks(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Json => ("{\"items\":[", ",", ""),
            Self::Array => ("[", ",", ""),
            Self::Lines => ("", "", "\n"),
            Self::Events => ("", "", "\n\n"),
        }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Json | Self::Array => "application/json",
            Self::Lines => "application/x-ndjson",
            Self::Events => "text/event-stream",
        }
    }
}

pub(super) fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let wanted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut kinds = wanted.flat_map(|text| text.split(','));
    kinds.any(|wanted| {
        let mut parts = wanted.split(';').map(str::trim);
        let is_kind = parts.next().unwrap_or_default().eq_ignore_ascii_case(kind);
        let is_refused = parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
        is_kind && !is_refused
    })
}

/// Why an answer ends early.
#[derive(Debug, thiserror::Error)]
enum Cut<E> {
    /// The items cannot be read.
    #[error(transparent)]
    Read(E),
    /// An item has no JSON.
    #[error("cannot encode an item")]
    Encode(#[from] serde_json::Error),
}

/// An item with the cursor of the part that begins with it, which may have the cursor alone.
type Item<T, E> = Result<(String, Option<T>), E>;

struct Writing<S> {
    items: Pin<Box<S>>,
    form: ListForm,
    limit: usize,
    written: usize,
    is_over: bool,
    _permit: RequestPermit,
}

/// Answers with at most `limit` items. One more item is the beginning of the next part.
///
/// # Errors
///
/// The error of an item in the first piece. A later one cuts the answer, which began with 200.
pub async fn streamed<T, E>(
    items: impl Stream<Item = Item<T, E>> + Send + 'static,
    limit: Option<u32>,
    form: ListForm,
    permit: RequestPermit,
) -> Result<Response, Problem>
where
    T: Serialize + Send + 'static,
    E: Error + Into<Problem> + Send + Sync + 'static,
{
    let mut items = Box::pin(items.ready_chunks(PIECE_ITEMS));
    // Read before the status is sent, so that an early error is a problem.
    let first = match items.next().await {
        Some(first) => {
            let first: Result<Vec<_>, E> = first.into_iter().collect();
            Some(first.map_err(E::into)?)
        }
        None => None,
    };
    let first = stream::iter(first.map(Ok));
    let rest = items.map(|piece| piece.into_iter().collect::<Result<Vec<_>, _>>());
    let writing = Writing {
        items: Box::pin(first.chain(rest)),
        form,
        limit: limit.map_or(usize::MAX, |limit| limit as usize),
        written: 0,
        is_over: false,
        _permit: permit,
    };
    let pieces = stream::try_unfold(writing, |mut writing| async move {
        let piece = writing.piece().await?;
        Ok::<_, Cut<E>>(piece.map(|piece| (piece, writing)))
    });
    let pieces = pieces.inspect(|piece| {
        if let Err(error) = piece {
            warn!(
                error = chain(error),
                "failed to read the rest of a response; closing the connection"
            );
        }
    });
    let kind = [(header::CONTENT_TYPE, form.content_type())];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

impl<T: Serialize, E, S: Stream<Item = Result<Vec<(String, Option<T>)>, E>>> Writing<S> {
    async fn piece(&mut self) -> Result<Option<Bytes>, Cut<E>> {
        if self.is_over {
            return Ok(None);
        }
        let (before, between, behind) = self.form.marks();
        let mut text = String::new();
        if self.written == 0 {
            text.push_str(before);
        }
        let Some(items) = self.items.next().await.transpose().map_err(Cut::Read)? else {
            return Ok(self.end(text, None)?);
        };
        for (cursor, item) in items {
            let Some(item) = item.filter(|_| self.written < self.limit) else {
                return Ok(self.end(text, Some(&cursor))?);
            };
            if self.written > 0 {
                text.push_str(between);
            }
            if self.form == ListForm::Events {
                text.push_str("data:");
            }
            text.push_str(&serde_json::to_string(&item)?);
            text.push_str(behind);
            self.written += 1;
        }
        Ok(Some(text.into()))
    }

    fn end(&mut self, mut text: String, next: Option<&str>) -> serde_json::Result<Option<Bytes>> {
        self.is_over = true;
        match self.form {
            ListForm::Json => {
                let next = serde_json::to_string(&next)?;
                text.push_str(&format!("],\"next\":{next}}}"));
            }
            ListForm::Array => text.push(']'),
            ListForm::Lines | ListForm::Events => {}
        }
        Ok((!text.is_empty()).then(|| text.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An item that has no JSON.
    struct Broken;

    impl Serialize for Broken {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("broken"))
        }
    }

    #[tokio::test]
    async fn item_that_cannot_be_encoded_ends_the_answer_with_an_error() {
        for form in [ListForm::Json, ListForm::Lines, ListForm::Array, ListForm::Events] {
            let items = stream::iter([Ok::<_, crate::events::feed::FeedError>((
                String::new(),
                Some(Broken),
            ))]);

            let answer = streamed(items, None, form, RequestPermit::of_test()).await.unwrap();

            let body = axum::body::to_bytes(answer.into_body(), 1_000).await;
            assert!(body.is_err(), "{form:?}: {body:?}");
        }
    }

    #[test]
    fn lines_are_sent_to_a_client_that_accepts_them() {
        for (accepted, form) in [
            ("application/x-ndjson", ListForm::Lines),
            ("application/json, application/X-NDJSON;q=0.9", ListForm::Lines),
            ("application/json", ListForm::Json),
            ("*/*", ListForm::Json),
            ("application/x-ndjson;q=0, application/json", ListForm::Json),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accepted.parse().unwrap())]);

            assert_eq!(ListForm::accepted(&headers), form, "{accepted}");
        }
    }
}
