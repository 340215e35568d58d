//! Instances, partitions, and the switch of the relay.

use axum::Json;
use serde::Serialize;
use tracing::info;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::extract::{AdminScope, Call, NoBody, ReadScope};
use crate::http::list::Listed;
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::http::stored::{InstanceAnswer, PartitionAnswer};
use crate::json_view::{self, StoredDocument};

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(list_instances))
        .routes(routes!(list_partitions))
        .routes(routes!(pause_relay))
        .routes(routes!(resume_relay))
}

/// List running instances, and instances whose heartbeat has expired
#[utoipa::path(get, path = "/v1/instances", tag = "fleet", responses(
    (status = 200, description = "all instances", body = Listed<InstanceAnswer>),
))]
async fn list_instances(call: Call<ReadScope>) -> Result<Json<Listed<StoredDocument>>, Problem> {
    let found = call.state.services()?.fleet.instances().await?;
    Ok(Json(found.iter().map(json_view::record).collect::<Vec<_>>().into()))
}

/// List partitions and the instances that own them
#[utoipa::path(get, path = "/v1/partitions", tag = "fleet", responses(
    (status = 200, description = "all partitions that were ever assigned", body = Listed<PartitionAnswer>),
))]
async fn list_partitions(call: Call<ReadScope>) -> Result<Json<Listed<StoredDocument>>, Problem> {
    let found = call.state.services()?.fleet.partitions().await?;
    Ok(Json(found.iter().map(json_view::record).collect::<Vec<_>>().into()))
}

/// Whether all relays are paused.
#[derive(Debug, Serialize, ToSchema)]
struct SwitchAnswer {
    paused: bool,
}

/// Pause all relays until they are resumed, also after restarts
#[utoipa::path(post, path = "/v1/relay/pause", tag = "fleet", responses(
    (status = 200, description = "every instance stops publishing within a second", body = SwitchAnswer),
))]
async fn pause_relay(call: Call<AdminScope>, _: NoBody) -> Result<Json<SwitchAnswer>, Problem> {
    switch(&call, true).await
}

/// Resume all relays
#[utoipa::path(post, path = "/v1/relay/resume", tag = "fleet", responses(
    (status = 200, description = "every instance continues within a second", body = SwitchAnswer),
))]
async fn resume_relay(call: Call<AdminScope>, _: NoBody) -> Result<Json<SwitchAnswer>, Problem> {
    switch(&call, false).await
}

async fn switch(call: &Call<AdminScope>, paused: bool) -> Result<Json<SwitchAnswer>, Problem> {
    call.state.services()?.fleet.pause(paused).await?;
    info!(actor = &*call.actor, paused, "changed the pause of the relay");
    Ok(Json(SwitchAnswer { paused }))
}
