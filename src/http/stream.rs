//! Long results: sent as they are read, no faster than they are taken.

use std::pin::Pin;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, Stream, StreamExt};
use serde_json::{Value, json};
use tracing::warn;

use crate::events::LoadError;
use crate::http::guard::Place;
use crate::http::problem::Problem;
use crate::telemetry::chain;

/// Items in one piece of the answer, where so many are there.
const PIECE: usize = 100;

/// How a list is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `{"items": […], "next": …}`.
    Json,
    /// One item a line.
    Lines,
}

impl Form {
    /// The one that the client asks for.
    pub fn accepted(headers: &HeaderMap) -> Self {
        let wanted = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        match wanted.flat_map(|text| text.split(',')).any(is_lines) {
            true => Self::Lines,
            false => Self::Json,
        }
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

/// An item, and the cursor by which a list goes on with it.
type Item = Result<(String, Value), LoadError>;

struct Writing<S> {
    items: Pin<Box<S>>,
    form: Form,
    limit: usize,
    written: usize,
    is_over: bool,
    _place: Place,
}

/// Answers with these items, at most `limit`; one more tells where the list goes on.
///
/// # Errors
///
/// That of the first item. A later one breaks the answer off: it began with 200.
pub async fn streamed(
    items: impl Stream<Item = Item> + Send + 'static,
    limit: Option<u32>,
    form: Form,
    place: Place,
) -> Result<Response, Problem> {
    let mut items = Box::pin(items.ready_chunks(PIECE));
    // Before the status is sent: what can't be read at all is a problem.
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
        _place: place,
    };
    let pieces = stream::try_unfold(writing, |mut writing| async move {
        let piece = writing.piece().await?;
        Ok::<_, LoadError>(piece.map(|piece| (piece, writing)))
    });
    let pieces = pieces.inspect(|piece| {
        if let Err(error) = piece {
            warn!(error = chain(error), "an answer was broken off");
        }
    });
    let kind = [(header::CONTENT_TYPE, form.content_type())];
    Ok((kind, Body::from_stream(pieces)).into_response())
}

impl<S: Stream<Item = Result<Vec<(String, Value)>, LoadError>>> Writing<S> {
    async fn piece(&mut self) -> Result<Option<Bytes>, LoadError> {
        if self.is_over {
            return Ok(None);
        }
        let mut text = String::new();
        if self.form == Form::Json && self.written == 0 {
            text.push_str("{\"items\":[");
        }
        let Some(items) = self.items.next().await.transpose()? else {
            return Ok(self.end(text, Value::Null));
        };
        for (cursor, item) in items {
            if self.written == self.limit {
                return Ok(self.end(text, json!(cursor)));
            }
            match self.form {
                Form::Json if self.written > 0 => text.push_str(&format!(",{item}")),
                Form::Json => text.push_str(&item.to_string()),
                Form::Lines => text.push_str(&format!("{item}\n")),
            }
            self.written += 1;
        }
        Ok(Some(text.into()))
    }

    fn end(&mut self, mut text: String, next: Value) -> Option<Bytes> {
        self.is_over = true;
        if self.form == Form::Json {
            text.push_str(&format!("],\"next\":{next}}}"));
        }
        (!text.is_empty()).then(|| text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_sent_to_whoever_accepts_them() {
        for (accepted, form) in [
            ("application/x-ndjson", Form::Lines),
            ("application/json, application/X-NDJSON;q=0.9", Form::Lines),
            ("application/json", Form::Json),
            ("*/*", Form::Json),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, accepted.parse().unwrap())]);

            assert_eq!(Form::accepted(&headers), form, "{accepted}");
        }
    }
}
