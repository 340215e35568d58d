//! Requeues and discards records.

use axum::Json;
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use tracing::info;
use utoipa::{IntoParams, ToSchema};

use crate::events::json::Request;
use crate::http::answers::Answering;
use crate::http::extract::{AdminScope, Body, Call, NoBody};
use crate::http::limits::InRecords;
use crate::http::outbox::unknown_record;
use crate::http::params::RecordPath;
use crate::http::problem::Problem;
use crate::ops::problem_code::ProblemCode;
use crate::outbox::redrive::{Redrive, RedriveFilter, RedriveRefusal, Redriver};
use crate::wakeup::Wakeup;

/// The dead records to requeue. By default all.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RequeueRequest {
    /// Only records of this key.
    key: Option<String>,
    /// Only records of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only records whose `deadReason` begins with this.
    reason: Option<String>,
    /// Report how many records match, and change nothing.
    dry_run: Option<bool>,
}

impl Request for RequeueRequest {}

/// Records that were requeued.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct RequeueAnswer {
    /// The number of records that match.
    matched: u64,
    /// The number of records that were requeued; 0 with `dryRun`.
    requeued: u64,
    /// Why some records were not changed, and what to do; absent if all were.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    note: Option<String>,
}

/// Requeue dead records: they become pending again, in their old place
#[utoipa::path(post, path = "/v1/outbox/requeue", tag = "outbox",
    request_body(content = RequeueRequest, example = json!({ "reason": "refused", "dryRun": true })),
    responses((status = 200, description = "the records were requeued", body = RequeueAnswer,
        example = json!({ "matched": 3, "requeued": 0 }))),
)]
pub(super) async fn requeue_outbox_records(
    call: Call<AdminScope>,
    answering: Answering,
    Body(body): Body<RequeueRequest>,
) -> Result<Json<RequeueAnswer>, Problem> {
    let chosen =
        RedriveFilter { status: None, key: body.key, kind: body.kind, reason: body.reason };
    if body.dry_run == Some(true) {
        let _turn = answering.report_turn().await?;
        let matched = Redriver::new(call.state.records()?.clone()).count_matching(&chosen).await?;
        return Ok(Json(RequeueAnswer { matched, requeued: 0, note: None }));
    }
    let services = call.state.services()?;
    let redriver = Redriver::new(services.collections.clone());
    let done = redriver.redrive_matching(Redrive::Requeue, &chosen).await?;
    info!(actor = &*call.actor, matched = done.matched, requeued = done.changed, "requeued");
    if let Some(wake) = services.wake.as_ref().filter(|_| done.changed > 0) {
        wake.changed();
    }
    let (matched, requeued, note) = (done.matched, done.changed, done.left());
    Ok(Json(RequeueAnswer { matched, requeued, note }))
}

/// How to requeue one record.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RequeueQuery {
    /// Requeue a delivered record too: its consumers receive it again.
    redeliver: Option<bool>,
    /// Report the outcome, and change nothing.
    dry_run: Option<bool>,
}

/// Requeue one dead record
#[utoipa::path(post, path = "/v1/outbox/records/{id}/requeue", tag = "outbox",
    params(RecordPath, RequeueQuery),
    responses(
        (status = 200, description = "the record was requeued", body = RequeueAnswer),
        (status = 404, description = "`not_found`: no record has this id"),
        (status = 409, description = "`record_leased`: a relay delivers it now; `wrong_status`: it is not dead (or, with `redeliver`, not done); `record_erased`: its content was erased with its stream; `too_large`: it has no room for the change; `refused`: MongoDB refused the change"),
    ),
)]
pub(super) async fn requeue_outbox_record(
    call: Call<AdminScope, RecordPath, RequeueQuery, InRecords>,
    _: NoBody,
) -> Result<Json<RequeueAnswer>, Problem> {
    let RequeueQuery { redeliver, dry_run } = call.query;
    let redrive = if redeliver == Some(true) { Redrive::Redeliver } else { Redrive::Requeue };
    let dry_run = dry_run == Some(true);
    redrive_one(&call, redrive, dry_run).await?;
    Ok(Json(RequeueAnswer { matched: 1, requeued: u64::from(!dry_run), note: None }))
}

/// How to discard one record.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DiscardQuery {
    /// Discard a record that is not dead too: it is never delivered.
    confirm: Option<bool>,
    /// Report the outcome, and change nothing.
    dry_run: Option<bool>,
}

/// Discard a dead record; with `confirm` also a scheduled or invalid one, or a pending one that is not leased
#[utoipa::path(delete, path = "/v1/outbox/records/{id}", tag = "outbox",
    params(RecordPath, DiscardQuery),
    responses(
        (status = 204, description = "the record was deleted, or with `dryRun` would be"),
        (status = 404, description = "`not_found`: no record has this id"),
        (status = 409, description = "`record_leased`: a relay delivers it now; `wrong_status`: it is done, or it is not dead and `confirm` is not set"),
    ),
)]
pub(super) async fn discard_outbox_record(
    call: Call<AdminScope, RecordPath, DiscardQuery, InRecords>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let DiscardQuery { confirm, dry_run } = call.query;
    let redrive = if confirm == Some(true) { Redrive::Discard } else { Redrive::DiscardDead };
    let dry_run = dry_run == Some(true);
    redrive_one(&call, redrive, dry_run).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn redrive_one<Q>(
    call: &Call<AdminScope, RecordPath, Q, InRecords>,
    redrive: Redrive,
    dry_run: bool,
) -> Result<(), Problem> {
    let (actor, id) = (&*call.actor, &call.path.id);
    let services = call.state.services()?;
    let redriver = Redriver::new(services.collections.clone()).within(call.reach.scope());
    let done = if dry_run {
        redriver.check(redrive, &id.ids()).await?
    } else {
        redriver.redrive(redrive, &id.ids()).await?
    };
    done.map_err(|refusal| refused(redrive, &id.0, &refusal))?;
    if !dry_run {
        info!(actor, id = id.0, act = ?redrive, "changed a record");
        // Its key may be unblocked, or the record itself is pending.
        services.wake.iter().for_each(Wakeup::changed);
    }
    Ok(())
}

fn refused(redrive: Redrive, id: &str, refusal: &RedriveRefusal) -> Problem {
    let code = match refusal {
        RedriveRefusal::Missing => return unknown_record(id),
        RedriveRefusal::Leased { .. } => ProblemCode::RecordLeased,
        RedriveRefusal::Erased => ProblemCode::RecordErased,
        RedriveRefusal::TooLarge => ProblemCode::TooLarge,
        RedriveRefusal::Server(_) => ProblemCode::Refused,
        RedriveRefusal::Status(_) => ProblemCode::WrongStatus,
    };
    let option = match redrive {
        Redrive::Discard | Redrive::DiscardDead => "confirm=true",
        Redrive::Requeue | Redrive::Redeliver => "redeliver=true",
    };
    Problem::conflict(code, refusal.explain(redrive, option))
}
