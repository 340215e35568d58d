//! Saves and reads snapshots.

use axum::Json;
use axum::response::IntoResponse;
use serde::{Deserialize, Serialize};
use tracing::debug;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::events::json::{IdText, JsonObject, Request, Time};
use crate::http::answers::Answering;
use crate::http::entity_tag::EntityTag;
use crate::http::extract::{AppendScope, Body, Call, NoParameters, ReadScope};
use crate::http::limits::InStreams;
use crate::http::params::{AggregatePath, Bounded, TenantQuery};
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::names::AggregateId;
use crate::ops::problem_code::ProblemCode;
use crate::snapshot::{Snapshot, SnapshotError, SnapshotStore};

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(save_snapshot, load_snapshot))
}

/// The state of an aggregate as of a version.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SnapshotRequest {
    /// The version of the last event in it.
    #[schema(value_type = i64, minimum = 1)]
    version: Bounded<1, { i64::MAX }>,
    /// The state. It is stored as sent.
    state: JsonObject,
    /// The tenant.
    tenant_id: Option<IdText>,
    /// The owner.
    owner_id: Option<IdText>,
    /// The id of the last event's stream.
    event_id: Option<IdText>,
    /// The operator of the first event. By default that of an earlier snapshot.
    first_operator: Option<IdText>,
    /// The operator of the last event.
    operator: Option<IdText>,
    /// The time of the first event. By default that of an earlier snapshot.
    first_event_time: Option<Time>,
    /// The time of the last event.
    event_time: Option<Time>,
    /// Whether the aggregate is deleted.
    deleted: Option<bool>,
}

impl Request for SnapshotRequest {}

impl SnapshotRequest {
    fn into_snapshot(self, id: AggregateId) -> Snapshot {
        Snapshot {
            tenant_id: self.tenant_id.map(String::from),
            owner_id: self.owner_id.map(String::from),
            event_id: self.event_id.map(String::from),
            first_operator: self.first_operator.map(String::from),
            operator: self.operator.map(String::from),
            first_event_time: self.first_event_time.map(Time::millis),
            event_time: self.event_time.map(Time::millis),
            deleted: self.deleted.unwrap_or_default(),
            ..Snapshot::new(id, self.version.0, self.state.0)
        }
    }
}

/// Whether a snapshot was saved.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SavedAnswer {
    aggregate_id: String,
    /// The version of the stored snapshot.
    version: i64,
    /// Whether the request was stored: false if a newer snapshot exists.
    written: bool,
}

/// Save the state of an aggregate as of a version, unless a newer snapshot exists
#[utoipa::path(put, path = "/v1/aggregates/{name}/{id}/snapshot", tag = "snapshots",
    params(AggregatePath),
    request_body(content = SnapshotRequest, example = json!({ "version": 1, "state": { "total": 120 } })),
    responses(
        (status = 200, description = "a majority has this snapshot, or a newer one", headers(("ETag" = String, description = "the version of the stored snapshot, in quotes")),
            body = SavedAnswer,
            example = json!({ "aggregateId": "o-1", "version": 1, "written": true })),
        (status = 404, description = "`not_found`: this instance does not serve snapshots"),
        (status = 409, description = "`stream_ended`: the stream has ended; nothing was saved"),
    ),
)]
async fn save_snapshot(
    call: Call<AppendScope, AggregatePath, NoParameters, InStreams>,
    Body(body): Body<SnapshotRequest>,
) -> Result<impl IntoResponse, Problem> {
    let AggregatePath { name, id } = call.path;
    let events = call.state.event_store()?;
    let store = SnapshotStore::new(events.context().clone());
    let aggregate_id = id.to_string();
    let mut snapshot = body.into_snapshot(id.clone());
    snapshot.tenant_id = call.reach.tenant(snapshot.tenant_id)?;
    if !call.reach.knows(events, &name, &id, snapshot.tenant_id.as_deref()).await? {
        return Err(Problem::not_found(format!("the tenant has no {name} {aggregate_id:?}")));
    }
    let saved = store.save(&name, snapshot).await?;
    let (version, written) = (saved.version, saved.written);
    debug!(actor = &*call.actor, aggregate = aggregate_id, version, written, "saved a snapshot");
    let saved = SavedAnswer { aggregate_id, version, written };
    Ok((EntityTag(version).header(), Json(saved)))
}

/// A snapshot. The fields have their stored names, except the id.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SnapshotAnswer {
    /// The bounded context.
    context_name: String,
    /// The kind of aggregate.
    aggregate_name: String,
    #[serde(flatten)]
    snapshot: Snapshot,
}

/// Read the newest snapshot of an aggregate, also of a deleted one
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/snapshot", tag = "snapshots",
    params(AggregatePath, TenantQuery),
    responses(
        (status = 200, description = "the snapshot", body = SnapshotAnswer,
            headers(("ETag" = String, description = "the version of the snapshot, in quotes"))),
        (status = 404, description = "`not_found`: there is no snapshot"),
        (status = 410, description = "`stream_ended`: the stream has ended"),
    ),
)]
async fn load_snapshot(
    call: Call<ReadScope, AggregatePath, TenantQuery, InStreams>,
    answering: Answering,
) -> Result<impl IntoResponse, Problem> {
    let turn = answering.turn().await?;
    let AggregatePath { name, id } = call.path;
    let events = call.state.event_store()?;
    let context = events.context();
    let tenant = call.reach.tenant(call.query.tenant_id)?;
    let tenant = tenant.as_deref();
    let missing = || Problem::not_found(format!("{name} {:?} has no snapshot", id.as_str()));
    if !call.reach.knows(events, &name, &id, tenant).await? {
        return Err(missing());
    }
    let found = match SnapshotStore::new(context.clone()).load(&name, &id, tenant).await {
        Err(error @ SnapshotError::Ended) => return Err(Problem::gone(error.to_string())),
        found => found?,
    };
    if found.is_none() {
        // An end creates no snapshot.
        events.check_open(&name, &id).await?;
    }
    let snapshot = found.ok_or_else(missing)?;
    // (`If-None-Match` is not examined: a snapshot can be replaced by one of the same version.)
    let tag = EntityTag(snapshot.version).header();
    let answer = SnapshotAnswer {
        context_name: context.settings().name.clone(),
        aggregate_name: name.to_string(),
        snapshot,
    };
    Ok((tag, turn.json(&answer)?))
}

impl From<SnapshotError> for Problem {
    fn from(error: SnapshotError) -> Self {
        let detail = error.to_string();
        match error {
            SnapshotError::Version(_) => Self::wrong("version", detail),
            SnapshotError::Ended => Self::conflict(ProblemCode::StreamEnded, detail),
            SnapshotError::TooLarge => Self::too_large(detail),
            SnapshotError::TooDeep | SnapshotError::Encode(_) => Self::wrong("state", detail),
            SnapshotError::Contended => Self::unavailable(detail),
            SnapshotError::Schema(source) => Self::of_schema(&source),
            SnapshotError::Store(source) => source.into(),
        }
    }
}
