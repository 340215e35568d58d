//! What surrounds every request: its id, its place among the others, its time, and the form of what
//! goes wrong.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{Instrument, error, info_span, warn};
use uuid::Uuid;

use crate::failpoint;
use crate::http::problem::Problem;
use crate::http::state::Shared;

/// Names a request, in answers and logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest that is taken from a client.
const LONGEST_ID: usize = 128;

/// A request's place among those that are worked on. An answer that is streamed keeps it to its end.
#[derive(Clone, Debug)]
pub struct Place(#[expect(dead_code, reason = "held, not read")] Arc<OwnedSemaphorePermit>);

/// Runs around all else.
pub(super) async fn guard(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    let span = info_span!("request", request_id = id);
    let answered = within(&shared, request, next).instrument(span).await;
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let kept = std::mem::take(response.headers_mut());
        response = problem.render(&id);
        // Allow, of a method that there is not.
        if let Some(allow) = kept.get(axum::http::header::ALLOW) {
            response.headers_mut().insert(axum::http::header::ALLOW, allow.clone());
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn within(shared: &Shared, request: Request, next: Next) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    shared.admit(&parts)?;
    let mut request = Request::from_parts(parts, body);
    let place = shared.places.clone().try_acquire_owned().map_err(|_| {
        Problem::overloaded("more requests at a time than api.max_concurrent; try again")
    })?;
    // Held here until the answer begins: a handler may be done with its request before.
    let place = Place(Arc::new(place));
    request.extensions_mut().insert(place.clone());
    let running = async {
        failpoint::hit("http::request");
        next.run(request).await
    };
    let running = AssertUnwindSafe(running).catch_unwind();
    let ended = tokio::time::timeout(shared.timeout, running).await;
    drop(place);
    match ended {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(_)) => {
            // The panic's own words are in the log already, by its hook.
            error!("a request panicked");
            Err(Problem::internal())
        }
        Err(_) => {
            warn!(timeout = ?shared.timeout, "a request was given up");
            Err(Problem::unavailable(
                "it took longer than api.timeout; whether a write took effect is unknown, and to \
                 repeat it with the same id is safe",
            ))
        }
    }
}

/// The client's own id where it is sane, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let own = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    let is_sane = |id: &&str| {
        (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
    };
    own.filter(is_sane).map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}
