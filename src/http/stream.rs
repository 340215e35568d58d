//! Streams long lists, no faster than the client receives them.

use std::pin::Pin;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use tracing::warn;

use crate::events::LoadError;
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
}

impl ListForm {
    /// The form that the client accepts.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let wanted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let has_lines = wanted.flat_map(|text| text.split(',')).any(is_lines);
        if has_lines { Self::Lines } else { Self::Json }
    }

    fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json",
            Self::Lines => "application/x-ndjson",
        }
    }
}

fn is_lines(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/x-ndjson")
}

/// An item with the cursor of the part that begins with it.
type Item<T> = Result<(String, T), LoadError>;

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
pub async fn streamed<T: Serialize + Send + 'static>(
    items: impl Stream<Item = Item<T>> + Send + 'static,
    limit: Option<u32>,
    form: ListForm,
    permit: RequestPermit,
) -> Result<Response, Problem> {
    let mut items = Box::pin(items.ready_chunks(PIECE_ITEMS));
    // Read before the status is sent, so that an early error is a problem.
    let first = match items.next().await {
        Some(first) => Some(first.into_iter().collect::<Result<Vec<_>, _>>()?),
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
        Ok::<_, LoadError>(piece.map(|piece| (piece, writing)))
    });
    let pieces = pieces.inspect(|piece| {
        if let Err(error) = piece {
            warn!(
                error = chain(error),
                "failed to read the rest of an answer; the connection is cut"
            );
        }
    });
    let kind = [(header::CONTENT_TYPE, form.content_type())];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

impl<T: Serialize, S: Stream<Item = Result<Vec<(String, T)>, LoadError>>> Writing<S> {
    async fn piece(&mut self) -> Result<Option<Bytes>, LoadError> {
        if self.is_over {
            return Ok(None);
        }
        let mut text = String::new();
        if self.form == ListForm::Json && self.written == 0 {
            text.push_str("{\"items\":[");
        }
        let Some(items) = self.items.next().await.transpose()? else {
            return Ok(self.end(text, None));
        };
        for (cursor, item) in items {
            if self.written == self.limit {
                return Ok(self.end(text, Some(&cursor)));
            }
            if self.form == ListForm::Json && self.written > 0 {
                text.push(',');
            }
            text.push_str(&serde_json::to_string(&item).unwrap_or_default());
            if self.form == ListForm::Lines {
                text.push('\n');
            }
            self.written += 1;
        }
        Ok(Some(text.into()))
    }

    fn end(&mut self, mut text: String, next: Option<&str>) -> Option<Bytes> {
        self.is_over = true;
        if self.form == ListForm::Json {
            let next = serde_json::to_string(&next).unwrap_or_default();
            text.push_str(&format!("],\"next\":{next}}}"));
        }
        (!text.is_empty()).then(|| text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sent_to_a_client_that_accepts_them() {
        for (accepted, form) in [
            ("application/x-ndjson", ListForm::Lines),
            ("application/json, application/X-NDJSON;q=0.9", ListForm::Lines),
            ("application/json", ListForm::Json),
            ("*/*", ListForm::Json),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accepted.parse().unwrap())]);

            assert_eq!(ListForm::accepted(&headers), form, "{accepted}");
        }
    }
}
