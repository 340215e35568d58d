//! Ends and erases streams.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};

use crate::events::json::{EndRequest, EraseRequest};
use crate::events::{Appended, EndError, Erasure, ErasureState, EventStore};
use crate::http::command::{Command, IdempotencyKey};
use crate::http::events::append::append_problem;
use crate::http::extract::{AdminScope, Call, NoParameters};
use crate::http::limits::InStreams;
use crate::http::params::AggregatePath;
use crate::http::problem::Problem;
use crate::http::trace;

type EndCall = Call<AdminScope, AggregatePath, NoParameters, InStreams>;

/// End a stream: it accepts no further appends, its events cannot be read, and its snapshot is marked as deleted
#[utoipa::path(post, path = "/v1/aggregates/{name}/{id}/end", tag = "events",
    params(AggregatePath, IdempotencyKey),
    request_body(content = EndRequest, example = json!({
        "requestId": "end-o-1", "reason": "the order was merged into o-2",
    })),
    responses(
        (status = 201, description = "a majority has the end", body = Appended),
        (status = 200, description = "an earlier request with this `requestId` has ended the stream: its answer", body = Appended),
        (status = 404, description = "`not_found`: the aggregate has no events, or this instance does not serve events"),
        (status = 409, description = "`stream_ended`, with `actualVersion`; `duplicate_request`"),
    ),
)]
pub(super) async fn end_stream(
    call: EndCall,
    headers: HeaderMap,
    Command(body): Command<EndRequest>,
) -> Result<(StatusCode, Json<Appended>), Problem> {
    let request = body.into_ending(actor(&call), trace::read(&headers));
    let (name, id) = (&call.path.name, &call.path.id);
    let store = call.state.event_store()?;
    check_known(&call, store).await?;
    let done = store.end(name, id, request).await.map_err(|error| refused(error, &call))?;
    let status = if done.replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(done)))
}

/// Erase a stream: end it, and empty its events, its snapshot and its outbox records
#[utoipa::path(post, path = "/v1/aggregates/{name}/{id}/erase", tag = "events",
    params(AggregatePath, IdempotencyKey),
    request_body(content = EraseRequest, example = json!({
        "requestId": "erase-o-1", "reason": "request 4711 of the customer", "discardPending": false,
    })),
    responses(
        (status = 200, description = "all content is erased", body = Erasure),
        (status = 202, description = "a majority has the erasure, and an instance completes it: repeat the request with the same `requestId` for its state", body = Erasure),
        (status = 404, description = "`not_found`: the aggregate has no events, or this instance does not serve events"),
        (status = 409, description = "`stream_ended`, with `actualVersion`: another request has erased it; `duplicate_request`"),
    ),
)]
pub(super) async fn erase_stream(
    call: EndCall,
    headers: HeaderMap,
    Command(body): Command<EraseRequest>,
) -> Result<(StatusCode, Json<Erasure>), Problem> {
    let (request, pending) = body.into_ending(actor(&call), trace::read(&headers));
    let (name, id) = (&call.path.name, &call.path.id);
    let store = call.state.event_store()?;
    check_known(&call, store).await?;
    let done = store.erase(name, id, request, pending).await;
    let done = done.map_err(|error| refused(error, &call))?;
    let status = match done.state {
        ErasureState::Complete => StatusCode::OK,
        ErasureState::Waiting | ErasureState::Running => StatusCode::ACCEPTED,
    };
    Ok((status, Json(done)))
}

/// Answers as for an unknown aggregate, if the stream is of another tenant than those of the token.
async fn check_known(call: &EndCall, store: &EventStore) -> Result<(), Problem> {
    let (name, id) = (&call.path.name, &call.path.id);
    if call.reach.knows(store, name, id, None).await? {
        return Ok(());
    }
    let unknown = EndError::UnknownAggregate { name: name.clone(), id: id.as_str().to_owned() };
    Err(refused(unknown, call))
}

/// The name of the token; none where no tokens are configured.
fn actor(call: &EndCall) -> Option<String> {
    (!call.state.tokens.is_empty()).then(|| call.actor.to_string())
}

fn refused(error: EndError, call: &EndCall) -> Problem {
    match error {
        EndError::UnknownAggregate { .. } => Problem::not_found(error.to_string()),
        EndError::Append(error) => append_problem(error, &call.reach),
    }
}
