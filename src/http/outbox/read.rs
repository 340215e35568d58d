//! Reads counts, lists and records.

use axum::Json;
use serde::Deserialize;
use serde_json::Value;
use utoipa::IntoParams;

use crate::http::extract::{Call, NoParameters, ReadScope};
use crate::http::list::Listed;
use crate::http::outbox::unknown_record;
use crate::http::params::{DurationText, Limit, RecordIdText, RecordPath};
use crate::http::problem::Problem;
use crate::http::stored::RecordAnswer;
use crate::json_view;
use crate::outbox::inspect::Inspector;
use crate::outbox::list::{Filter, Sort, StatusFilter};
use crate::outbox::stats::{GroupBy, Groups, Stats};

/// Records of one answer, by default.
const DEFAULT_RECORDS: u32 = 50;

/// Groups of each status, by default.
const DEFAULT_GROUPS: u32 = 20;

/// Count records by status: exact up to 100,000 records, else marked as what they are
#[utoipa::path(get, path = "/v1/outbox/stats", tag = "outbox", responses(
    (status = 200, description = "the figures", body = Stats),
))]
pub(super) async fn get_outbox_stats(call: Call<ReadScope>) -> Result<Json<Stats>, Problem> {
    let inspector = Inspector::new(call.state.services()?.collections.clone());
    Ok(Json(inspector.stats().await?))
}

/// Which groups to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GroupsQuery {
    /// type, key, or reason: the first word of deadReason.
    #[param(inline)]
    by: GroupBy,
    /// The most groups of each status; 20 by default.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 1000)]
    top: Option<Limit<1_000>>,
}

/// The largest groups of pending and of dead records
#[utoipa::path(get, path = "/v1/outbox/groups", tag = "outbox",
    params(GroupsQuery),
    responses((status = 200, description = "the groups", body = Groups)),
)]
pub(super) async fn list_outbox_groups(
    call: Call<ReadScope, NoParameters, GroupsQuery>,
) -> Result<Json<Groups>, Problem> {
    let top = call.query.top.map_or(DEFAULT_GROUPS, u32::from);
    let inspector = Inspector::new(call.state.services()?.collections.clone());
    Ok(Json(inspector.groups(call.query.by, top).await?))
}

/// Which records to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordsQuery {
    /// Of this status; invalid: of none of the others.
    #[param(inline)]
    status: Option<StatusFilter>,
    /// Of this key.
    key: Option<String>,
    /// Of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Dead, and whose deadReason begins with this.
    reason: Option<String>,
    /// Pending, dead, done or overdue for longer than this, such as 1h.
    #[param(value_type = Option<String>, example = "1h")]
    older_than: Option<DurationText>,
    /// The sort key; by default the age where the status has one, else the id.
    #[param(inline)]
    sort: Option<Sort>,
    /// Behind this: `next`, or an id.
    #[param(value_type = Option<RecordIdText>, inline)]
    after: Option<String>,
    /// The most records; 50 by default.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit<1_000>>,
}

/// List records without payloads and headers: oldest first where the status has an age, else by id
#[utoipa::path(get, path = "/v1/outbox/records", tag = "outbox",
    params(RecordsQuery),
    responses((status = 200, description = "a part of the list", body = Listed<RecordAnswer>)),
)]
pub(super) async fn list_outbox_records(
    call: Call<ReadScope, NoParameters, RecordsQuery>,
) -> Result<Json<Listed<Value>>, Problem> {
    let query = call.query;
    let filter = Filter {
        status: query.status,
        key: query.key,
        kind: query.kind,
        reason: query.reason,
        older_than: query.older_than.map(|age| age.0),
        sort: query.sort,
    };
    let limit = query.limit.map_or(DEFAULT_RECORDS, u32::from);
    let inspector = Inspector::new(call.state.services()?.collections.clone());
    let page = inspector.list(&filter, query.after.as_deref(), limit).await?;
    let page = page.map_err(|unlistable| Problem::wrong(unlistable.0, unlistable.1))?;
    let items = page.records.iter().map(json_view::decoded).collect();
    Ok(Json(Listed { items, next: page.next, note: page.note }))
}

/// One record, payload and all
#[utoipa::path(get, path = "/v1/outbox/records/{id}", tag = "outbox",
    params(RecordPath),
    responses(
        (status = 200, description = "the record", body = RecordAnswer),
        (status = 404, description = "`not_found`"),
    ),
)]
pub(super) async fn get_outbox_record(
    call: Call<ReadScope, RecordPath>,
) -> Result<Json<Value>, Problem> {
    let id = call.path.id;
    let inspector = Inspector::new(call.state.services()?.collections.clone());
    let found = inspector.show(&id.ids()).await?.ok_or_else(|| unknown_record(&id.0))?;
    Ok(Json(json_view::decoded(&found)))
}
