//! Who runs, who owns what, and the switch for all of them.

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use serde_json::Value;
use tracing::info;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::auth::{Admin, Caller, Read};
use crate::http::json::NoBody;
use crate::http::list::Listed;
use crate::http::problem::Problem;
use crate::http::query::Query;
use crate::http::state::Shared;
use crate::shown;

pub(super) fn calls() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(instances))
        .routes(routes!(partitions))
        .routes(routes!(pause))
        .routes(routes!(resume))
}

/// The instances that run, and those that have stopped without a word
#[utoipa::path(get, path = "/v1/instances", tag = "fleet", responses(
    (status = 200, description = "all of them", body = Listed<Object>),
))]
async fn instances(
    _: Caller<Read>,
    query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Listed<Value>>, Problem> {
    query.finish()?;
    let found = shared.services()?.fleet.instances().await?;
    Ok(Json(Listed { items: found.iter().map(shown::record).collect(), next: None, note: None }))
}

/// Which instance has which partition
#[utoipa::path(get, path = "/v1/partitions", tag = "fleet", responses(
    (status = 200, description = "all that were ever assigned", body = Listed<Object>),
))]
async fn partitions(
    _: Caller<Read>,
    query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Listed<Value>>, Problem> {
    query.finish()?;
    let found = shared.services()?.fleet.partitions().await?;
    let items: Vec<Value> = found.iter().map(shown::record).collect();
    Ok(Json(Listed { items, next: None, note: None }))
}

/// Whether the fleet is paused.
#[derive(Debug, Serialize, ToSchema)]
struct Switch {
    paused: bool,
}

/// Stop publishing, on all instances and until resumed, whatever restarts
#[utoipa::path(post, path = "/v1/relay/pause", tag = "fleet", responses(
    (status = 200, description = "every instance stops within a second", body = Switch),
))]
async fn pause(
    caller: Caller<Admin>,
    query: Query,
    State(shared): State<Shared>,
    _: NoBody,
) -> Result<Json<Switch>, Problem> {
    query.finish()?;
    switch(&caller, &shared, true).await
}

/// Go on
#[utoipa::path(post, path = "/v1/relay/resume", tag = "fleet", responses(
    (status = 200, description = "every instance goes on within a second", body = Switch),
))]
async fn resume(
    caller: Caller<Admin>,
    query: Query,
    State(shared): State<Shared>,
    _: NoBody,
) -> Result<Json<Switch>, Problem> {
    query.finish()?;
    switch(&caller, &shared, false).await
}

async fn switch(
    caller: &Caller<Admin>,
    shared: &Shared,
    paused: bool,
) -> Result<Json<Switch>, Problem> {
    shared.services()?.fleet.pause(paused).await?;
    info!(actor = &*caller.name, paused, "the switch of the relay was set");
    Ok(Json(Switch { paused }))
}
