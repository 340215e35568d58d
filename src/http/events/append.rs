//! Appends events.

use axum::Json;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use tracing::debug;

use crate::events::json::AppendRequest;
use crate::events::{Append, AppendError, Appended, EventStore};
use crate::http::command::{AppendCommand, IdempotencyKey};
use crate::http::entity_tag::{AppendCondition, EntityTag};
use crate::http::extract::{AppendScope, Call, NoParameters};
use crate::http::limits::InStreams;
use crate::http::location::location;
use crate::http::params::AggregatePath;
use crate::http::problem::Problem;
use crate::http::trace;
use crate::ops::problem_code::ProblemCode;

/// Append events to an aggregate, and enqueue a message for each, in one transaction
#[utoipa::path(post, path = "/v1/aggregates/{name}/{id}/events", tag = "events",
    params(AggregatePath, IdempotencyKey, AppendCondition),
    request_body(content = AppendRequest, example = json!({
        "requestId": "place-o-1", "expectedVersion": "none",
        "events": [{ "name": "OrderPlaced", "body": { "total": 120 } }],
    })),
    responses(
        (status = 201, description = "a majority has the events and their messages", headers(
            ("ETag" = String, description = "the version of the aggregate after the append, in quotes"),
            ("Location" = String, description = "the path of the append"),
        ), body = Appended, example = json!({
            "id": "0f8fad5b-d9cb-469f-a165-70867728950e", "aggregateId": "o-1", "version": 1, "size": 1,
            "createTime": 1795300063572_i64, "records": ["7c9e6679-7425-40de-944b-e07fc1f90ae7"],
        })),
        (status = 200, description = "an earlier request with this `requestId` has appended the events: its answer", body = Appended,
            headers(("ETag" = String, description = "the version of the aggregate after that append, in quotes"))),
        (status = 404, description = "`not_found`: this instance does not serve events"),
        (status = 409, description = "`version_conflict`, `duplicate_aggregate` or `stream_ended`, with `actualVersion`; `duplicate_request`"),
        (status = 412, description = "`version_conflict` or `duplicate_aggregate`, with `actualVersion`: the condition of `If-Match` or `If-None-Match` is not met"),
    ),
)]
pub(super) async fn append_events(
    call: Call<AppendScope, AggregatePath, NoParameters, InStreams>,
    uri: Uri,
    headers: HeaderMap,
    AppendCommand { body, is_conditional }: AppendCommand,
) -> Result<Response, Problem> {
    let mut append = body.into_append(call.path.name, call.path.id, trace::read(&headers));
    call.reach.types(append.events.iter().map(|event| &*event.name))?;
    append.tenant_id = call.reach.tenant(append.tenant_id)?;
    let done = append_within(&call.reach, call.state.event_store()?, append).await;
    let done = done.map_err(|refused| match refused {
        Refused::Append(error) => {
            let is_unmet = matches!(
                error,
                AppendError::VersionConflict { .. } | AppendError::DuplicateAggregate { .. }
            );
            let problem = Problem::from(error);
            if is_conditional && is_unmet { problem.of_condition() } else { problem }
        }
        Refused::Foreign(problem) => problem,
    })?;
    debug!(
        actor = &*call.actor,
        aggregate = done.aggregate_id,
        version = done.version,
        replayed = done.replayed,
        "appended"
    );
    let tag = EntityTag(done.version).header();
    if done.replayed {
        return Ok((tag, Json(done)).into_response());
    }
    let location = location(&format!("{}/{}", uri.path(), done.version));
    Ok((StatusCode::CREATED, tag, location, Json(done)).into_response())
}

/// Why nothing was appended.
enum Refused {
    Append(AppendError),
    /// The stream, or the earlier request, is of another tenant.
    Foreign(Problem),
}

/// Appends to a stream of the tenant, if the token is limited to tenants.
async fn append_within(
    reach: &InStreams,
    store: &EventStore,
    append: Append,
) -> Result<Appended, Refused> {
    let tenant = append.tenant_id.clone();
    let (true, Some(tenant)) = (reach.tenants().is_some(), tenant) else {
        return store.append(append).await.map_err(Refused::Append);
    };
    let id = append.id.clone();
    match store.append_in(append, &[tenant]).await {
        Ok(Some(done)) => Ok(done),
        Ok(None) => {
            let detail = format!("the tenant has no stream {:?}, and cannot begin it", id.as_str());
            Err(Refused::Foreign(Problem::not_found(detail)))
        }
        Err(error @ AppendError::DuplicateRequest { .. }) => {
            Err(Refused::Foreign(append_problem(error, reach)))
        }
        Err(error) => Err(Refused::Append(error)),
    }
}

/// The problem for a token of this reach. If it is limited to tenants, it does not name the aggregate that has used
/// a request id, which may be of another tenant.
pub(super) fn append_problem(error: AppendError, reach: &InStreams) -> Problem {
    if reach.tenants().is_some() && matches!(error, AppendError::DuplicateRequest { .. }) {
        let detail = "another append has used this request id";
        return Problem::conflict(ProblemCode::DuplicateRequest, detail);
    }
    error.into()
}

impl From<AppendError> for Problem {
    fn from(error: AppendError) -> Self {
        let detail = error.to_string();
        match error {
            AppendError::Invalid(flaws) => Self::invalid(flaws),
            AppendError::VersionConflict { actual, .. } => {
                Self::conflict(ProblemCode::VersionConflict, detail).at_version(actual)
            }
            AppendError::DuplicateAggregate { actual } => {
                Self::conflict(ProblemCode::DuplicateAggregate, detail).at_version(actual)
            }
            AppendError::StreamEnded { version } => {
                Self::conflict(ProblemCode::StreamEnded, detail).at_version(version)
            }
            AppendError::DuplicateRequest { .. } => {
                Self::conflict(ProblemCode::DuplicateRequest, detail)
            }
            AppendError::Overloaded => Self::overloaded(detail),
            AppendError::Closed => Self::unavailable(detail),
            AppendError::Schema(source) => Self::of_schema(&source),
            AppendError::Unavailable(ref source) | AppendError::Unknown(ref source) => {
                Self::of_failure(source.is_permanent(), &error, detail)
            }
        }
    }
}
