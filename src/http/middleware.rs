//! The middleware of every request: id, permit, time limit, rendering of problems.

use std::any::Any;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::{Instrument, error, info_span, warn};
use uuid::Uuid;

use crate::failpoint;
use crate::http::headers::read_valid;
use crate::http::problem::{Problem, retry_advice};
use crate::http::state::Api;

/// Identifies a request, in answers and logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is accepted from a client.
const MAX_ID_BYTES: usize = 128;

/// Runs around all other layers.
pub(super) async fn surround(State(shared): State<Api>, request: Request, next: Next) -> Response {
    let id = request_id(request.headers());
    // The template: in the path itself an id may look like a call.
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let advice = retry_advice(request.method(), route);
    let span = info_span!("request", request_id = id);
    let answered = within_limits(&shared, request, next).instrument(span).await;
    let mut response = answered.unwrap_or_else(IntoResponse::into_response);
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        let kept = std::mem::take(response.headers_mut());
        response = problem.render(&id, advice);
        // Allow, for an unknown method.
        if let Some(allow) = kept.get(axum::http::header::ALLOW) {
            response.headers_mut().insert(axum::http::header::ALLOW, allow.clone());
        }
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    response
}

async fn within_limits(shared: &Api, request: Request, next: Next) -> Result<Response, Problem> {
    let (parts, body) = request.into_parts();
    shared.admit(&parts)?;
    let request = Request::from_parts(parts, body);
    // Until the answer begins. What is sent in pieces then has a place among the answers.
    let _permit = shared.permits.try_acquire().map_err(|_| {
        Problem::overloaded("more concurrent requests than api.max_concurrent; retry later")
    })?;
    let answering = async { shared.answers.bound(next.run(request).await).await };
    let answer = tokio::time::timeout(shared.timeout, answering).await;
    answer.map_err(|_| {
        warn!(timeout = ?shared.timeout, "a request timed out");
        Problem::unconfirmed("no response within api.timeout")
    })?
}

/// The fail point, below the layer that catches panics.
pub(super) async fn fail_point(request: Request, next: Next) -> Response {
    failpoint::hit("http::request");
    next.run(request).await
}

/// The answer when a handler has panicked. The panic hook has logged the message.
pub(super) fn answer_panic(_: Box<dyn Any + Send>) -> Response {
    error!("a request panicked");
    Problem::internal().into_response()
}

/// The client's own id where it has up to 128 printable characters, else a new one.
fn request_id(headers: &HeaderMap) -> String {
    let own = read_valid(headers, REQUEST_ID.as_str());
    let is_printable = |id: &&str| {
        (1..=MAX_ID_BYTES).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic())
    };
    own.filter(is_printable).map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}
