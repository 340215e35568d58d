//! Requeue and discard.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Serialize;
use serde_json::{Value, json};
use tracing::info;
use utoipa::ToSchema;

use crate::dates::rfc3339;
use crate::http::auth::{Admin, Caller};
use crate::http::json::{Body, NoBody};
use crate::http::outbox::{no_record, readings};
use crate::http::problem::Problem;
use crate::http::query::{Path, Query};
use crate::http::state::Shared;
use crate::outbox::redrive::{Chosen, Redrive, Redriver, Refusal};

/// What a requeue came to.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Requeued {
    /// Records that were chosen.
    matched: u64,
    /// Those that were requeued; none with `dryRun`.
    requeued: u64,
    /// Why some were left as they are, and the remedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

/// The body: which dead records; all of them where nothing is said.
pub(in crate::http) fn schema() -> Value {
    let text = |description| json!({ "type": ["string", "null"], "description": description });
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "key": text("Of this key."),
            "type": text("Of this type."),
            "reason": text("Whose deadReason begins so."),
            "dryRun": {
                "type": ["boolean", "null"],
                "description": "Say how many it would be, and change nothing.",
            },
        },
    })
}

/// Make dead records pending again, in their old place
#[utoipa::path(post, path = "/v1/outbox/requeue", tag = "outbox",
    request_body(content = ref("#/components/schemas/Requeue"), content_type = "application/json"),
    responses((status = 200, description = "done", body = Requeued)),
)]
pub(super) async fn requeue(
    caller: Caller<Admin>,
    query: Query,
    State(shared): State<Shared>,
    Body(mut body): Body,
) -> Result<Json<Requeued>, Problem> {
    query.finish()?;
    let chosen = Chosen {
        status: None,
        key: body.text("key"),
        kind: body.text("type"),
        reason: body.text("reason"),
    };
    let dry_run = body.truth("dryRun").unwrap_or(false);
    body.finish()?;
    let services = shared.services()?;
    let redriver = Redriver::new(services.collections.clone());
    if dry_run {
        let matched = redriver.matching(&chosen).await?;
        return Ok(Json(Requeued { matched, requeued: 0, note: None }));
    }
    let done = redriver.all(Redrive::Requeue, &chosen).await?;
    info!(actor = &*caller.name, matched = done.matched, requeued = done.changed, "requeued");
    if let Some(wake) = services.wake.as_ref().filter(|_| done.changed > 0) {
        wake.changed();
    }
    Ok(Json(Requeued { matched: done.matched, requeued: done.changed, note: done.left() }))
}

/// Make one dead record pending again
#[utoipa::path(post, path = "/v1/outbox/records/{id}/requeue", tag = "outbox",
    params(
        ("id" = String, Path, description = "UUID, ObjectId, integer or text; uuid:, oid:, int:, str:, raw: force one"),
        ("redeliver" = Option<bool>, Query, description = "a delivered one too: its consumers see it again"),
        ("dryRun" = Option<bool>, Query, description = "say what it would come to, and change nothing"),
    ),
    responses(
        (status = 200, description = "done", body = Requeued),
        (status = 404, description = "`not_found`"),
        (status = 409, description = "`record_leased`, or `wrong_status`: neither dead, nor done with `redeliver`"),
    ),
)]
pub(super) async fn requeue_one(
    caller: Caller<Admin>,
    path: Path,
    mut query: Query,
    State(shared): State<Shared>,
    _: NoBody,
) -> Result<Json<Requeued>, Problem> {
    let redrive = match query.truth("redeliver") {
        true => Redrive::Redeliver,
        false => Redrive::Requeue,
    };
    let dry_run = query.truth("dryRun");
    query.finish()?;
    one(&caller, &shared, redrive, path.part("id"), dry_run).await?;
    Ok(Json(Requeued { matched: 1, requeued: u64::from(!dry_run), note: None }))
}

/// Remove a dead, scheduled or invalid record, or a pending one that nobody holds
#[utoipa::path(delete, path = "/v1/outbox/records/{id}", tag = "outbox",
    params(("id" = String, Path, description = "UUID, ObjectId, integer or text; uuid:, oid:, int:, str:, raw: force one")),
    responses(
        (status = 204, description = "it is gone"),
        (status = 404, description = "`not_found`"),
        (status = 409, description = "`record_leased`, or `wrong_status`: it is done"),
    ),
)]
pub(super) async fn discard(
    caller: Caller<Admin>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    query.finish()?;
    one(&caller, &shared, Redrive::Discard, path.part("id"), false).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn one(
    caller: &Caller<Admin>,
    shared: &Shared,
    redrive: Redrive,
    id: &str,
    dry_run: bool,
) -> Result<(), Problem> {
    let ids = readings("id", id)?;
    let services = shared.services()?;
    let redriver = Redriver::new(services.collections.clone());
    let done = match dry_run {
        true => redriver.would(redrive, &ids).await?,
        false => redriver.one(redrive, &ids).await?,
    };
    done.map_err(|refusal| refused(redrive, id, refusal))?;
    if !dry_run {
        info!(actor = &*caller.name, id, act = ?redrive, "a record was changed");
        // What it blocked goes on, or it goes itself.
        services.wake.iter().for_each(crate::wakeup::Wakeup::changed);
    }
    Ok(())
}

fn refused(redrive: Redrive, id: &str, refusal: Refusal) -> Problem {
    let wrong = |detail: String| Problem::conflict("wrong_status", detail);
    match (refusal, redrive) {
        (Refusal::Missing, _) => no_record(id),
        (Refusal::Leased { until }, _) => {
            let until = until.and_then(rfc3339).map(|until| format!(" until {until}"));
            let until = until.unwrap_or_default();
            let detail = format!("it is leased{until}: a relay delivers it; try again afterwards");
            Problem::conflict("record_leased", detail)
        }
        (Refusal::TooLarge, _) => Problem::conflict(
            "too_large",
            "it is so near to 16 MiB that nothing fits in; shorten its payload first",
        ),
        (Refusal::Server(code), _) => Problem::conflict(
            "refused",
            format!("MongoDB refuses the change (code {code}): is there a validator not ours?"),
        ),
        (Refusal::Status(status), Redrive::Requeue) if status == "done" => {
            wrong("it is done; redeliver=true sends it to its consumers once more".to_owned())
        }
        (Refusal::Status(status), Redrive::Requeue) => {
            wrong(format!("it is {status}, and only dead records are requeued"))
        }
        (Refusal::Status(status), Redrive::Redeliver) => {
            wrong(format!("it is {status}, and only dead and done records are delivered again"))
        }
        (Refusal::Status(status), Redrive::Discard) => {
            wrong(format!("it is {status}, and only others are discarded"))
        }
    }
}
