//! Figures, lists, one record.

use axum::Json;
use axum::extract::State;
use serde_json::Value;

use crate::http::auth::{Caller, Read};
use crate::http::list::Listed;
use crate::http::outbox::{no_record, readings};
use crate::http::problem::Problem;
use crate::http::query::{Path, Query};
use crate::http::state::Shared;
use crate::outbox::inspect::Inspector;
use crate::outbox::list::{Chapter, Filter, Sort};
use crate::outbox::stats::{GroupBy, Groups, Stats};
use crate::shown;

/// Items of a list where nothing is said, and at most.
const LIMIT: (u32, u32) = (50, 1_000);

/// Groups of each status where nothing is said.
const TOP: u32 = 20;

/// Count records by status: exact up to 100,000 records, else marked as what they are
#[utoipa::path(get, path = "/v1/outbox/stats", tag = "outbox", responses(
    (status = 200, description = "the figures", body = Stats),
))]
pub(super) async fn stats(
    _: Caller<Read>,
    query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Stats>, Problem> {
    query.finish()?;
    let inspector = Inspector::new(shared.services()?.collections.clone());
    Ok(Json(inspector.stats().await?))
}

/// The largest groups of pending and of dead records
#[utoipa::path(get, path = "/v1/outbox/groups", tag = "outbox",
    params(
        ("by" = String, Query, description = "type, key, or reason: the first word of deadReason"),
        ("top" = Option<i32>, Query, description = "how many of each status; 20", minimum = 1, maximum = 1000),
    ),
    responses((status = 200, description = "the groups", body = Groups)),
)]
pub(super) async fn groups(
    _: Caller<Read>,
    mut query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Groups>, Problem> {
    let by = query.one_of("by", &GroupBy::WORDS);
    let top = query.integer("top", 1..=LIMIT.1.into());
    query.finish()?;
    let by = match by.as_deref() {
        Some("type") => GroupBy::Type,
        Some("reason") => GroupBy::Reason,
        Some(_) => GroupBy::Key,
        None => return Err(Problem::wrong("by", "is missing: type, reason or key")),
    };
    let top = top.and_then(|top| u32::try_from(top).ok()).unwrap_or(TOP);
    let inspector = Inspector::new(shared.services()?.collections.clone());
    Ok(Json(inspector.groups(by, top).await?))
}

/// List records without payloads and headers: oldest first where the status has an age, else by id
#[utoipa::path(get, path = "/v1/outbox/records", tag = "outbox",
    params(
        ("status" = Option<String>, Query, description = "pending, scheduled, done, dead; invalid: none of these"),
        ("key" = Option<String>, Query, description = "of this key"),
        ("type" = Option<String>, Query, description = "of this type"),
        ("reason" = Option<String>, Query, description = "dead, and whose deadReason begins so"),
        ("olderThan" = Option<String>, Query, description = "pending, dead, done or overdue for longer than this, as 1h"),
        ("sort" = Option<String>, Query, description = "id, seq, deadAt, visibleAt, attempt"),
        ("after" = Option<String>, Query, description = "behind this: `next`, or an id"),
        ("limit" = Option<i32>, Query, description = "how many at most; 50", minimum = 1, maximum = 1000),
    ),
    responses((status = 200, description = "a part of the list", body = Listed<Object>)),
)]
pub(super) async fn list(
    _: Caller<Read>,
    mut query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Listed<Value>>, Problem> {
    let status = query.one_of("status", &Chapter::WORDS);
    let sort = query.one_of("sort", &Sort::WORDS);
    let filter = Filter {
        status: status.as_deref().and_then(Chapter::of),
        key: query.text("key"),
        kind: query.text("type"),
        reason: query.text("reason"),
        older_than: query.duration("olderThan"),
        sort: sort.as_deref().and_then(Sort::of),
    };
    let after = query.text("after");
    let limit = query.integer("limit", 1..=LIMIT.1.into());
    query.finish()?;
    let limit = limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(LIMIT.0);
    let inspector = Inspector::new(shared.services()?.collections.clone());
    let page = inspector.list(&filter, after.as_deref(), limit).await?;
    let page = page.map_err(|unlistable| Problem::wrong(unlistable.0, unlistable.1))?;
    let items = page.records.iter().map(shown::shown).collect();
    Ok(Json(Listed { items, next: page.next, note: page.note }))
}

/// One record, payload and all
#[utoipa::path(get, path = "/v1/outbox/records/{id}", tag = "outbox",
    params(("id" = String, Path, description = "UUID, ObjectId, integer or text; uuid:, oid:, int:, str:, raw: force one")),
    responses(
        (status = 200, description = "the record", body = Object),
        (status = 404, description = "`not_found`"),
    ),
)]
pub(super) async fn show(
    _: Caller<Read>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Problem> {
    query.finish()?;
    let id = path.part("id");
    let ids = readings("id", id)?;
    let inspector = Inspector::new(shared.services()?.collections.clone());
    let found = inspector.show(&ids).await?.ok_or_else(|| no_record(id))?;
    Ok(Json(shown::shown(&found)))
}
