//! Reads counts, lists and records.

use axum::response::Response;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::http::answers::Answering;
use crate::http::extract::{Call, NoParameters, ReadScope};
use crate::http::limits::InRecords;
use crate::http::list::Listed;
use crate::http::outbox::unknown_record;
use crate::http::params::{DurationText, Limit, RecordIdText, RecordPath};
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::http::stored::RecordAnswer;
use crate::json_view;
use crate::outbox::inspect::Inspector;
use crate::outbox::list::{Filter, Sort, StatusFilter};
use crate::outbox::stats::{GroupBy, Groups, Stats};
use crate::store::page::PageSize;

/// Records of one answer, by default.
const DEFAULT_RECORDS: u32 = 50;

/// Groups of each status, by default.
const DEFAULT_GROUPS: u32 = 20;

/// Count records by status
///
/// The figures are exact up to 100,000 records. Beyond, `accuracy` names those that are not exact.
#[utoipa::path(get, path = "/v1/outbox/stats", tag = "outbox", responses(
    (status = 200, description = "the figures", body = Stats,
        example = json!({ "pending": 12, "scheduled": 0, "done": 4711, "dead": 1, "invalid": 0, "oldestPendingSeconds": 0.8 })),
))]
pub(super) async fn get_outbox_stats(
    call: Call<ReadScope>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.report_turn().await?;
    let inspector = Inspector::new(call.state.records()?.clone());
    turn.json(&inspector.stats().await?)
}

/// Which groups to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct GroupsQuery {
    /// The field to group by: `type`, `key`, or `reason` (the first word of `deadReason`).
    #[param(inline)]
    by: GroupBy,
    /// The most groups of each status. By default 20.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 1000)]
    top: Option<Limit<1_000>>,
}

/// List the largest groups of pending and of dead records
#[utoipa::path(get, path = "/v1/outbox/groups", tag = "outbox",
    params(GroupsQuery),
    responses((status = 200, description = "the groups", body = Groups)),
)]
pub(super) async fn list_outbox_groups(
    call: Call<ReadScope, NoParameters, GroupsQuery>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.report_turn().await?;
    let top = call.query.top.map_or(DEFAULT_GROUPS, u32::from);
    let inspector = Inspector::new(call.state.records()?.clone());
    turn.json(&inspector.groups(call.query.by, top).await?)
}

/// Which records to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct RecordsQuery {
    /// Only records of this status. `invalid`: records with any other status, which are never delivered.
    #[param(inline)]
    status: Option<StatusFilter>,
    /// Only records of this key.
    key: Option<String>,
    /// Only records of this type.
    #[serde(rename = "type")]
    kind: Option<String>,
    /// Only dead records whose `deadReason` begins with this.
    reason: Option<String>,
    /// Only records that have been pending, dead, done or overdue for longer than this, such as `1h`.
    #[param(value_type = Option<String>, example = "1h")]
    older_than: Option<DurationText>,
    /// The sort key. By default the age if the status has one, else the id.
    #[param(inline)]
    sort: Option<Sort>,
    /// Only records after this place: `next` of the previous page, or an id.
    #[param(value_type = Option<RecordIdText>, inline)]
    after: Option<String>,
    /// The most records. By default 50. A page may be shorter, because of the size of its records.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 1000)]
    limit: Option<Limit<1_000>>,
}

/// List records, without payloads and headers
///
/// By default the oldest are first if the status has an age; otherwise the order is that of the ids. Records have
/// the fields that Postrider knows. A text of more than 8 KiB is cut to 2,000 characters and `…`, and a value of
/// another kind that is as long is `…`.
#[utoipa::path(get, path = "/v1/outbox/records", tag = "outbox",
    params(RecordsQuery),
    responses((status = 200, description = "a page of the list", body = Listed<RecordAnswer>, example = json!({
        "items": [{ "id": "order-7-created", "key": "order-7", "type": "OrderCreated", "status": "dead", "attempt": 10,
            "deadAt": "2026-07-14T09:00:00Z", "deadReason": "attempts exhausted: no queue is bound for this message" }],
        "next": null,
    }))),
)]
pub(super) async fn list_outbox_records(
    call: Call<ReadScope, NoParameters, RecordsQuery, InRecords>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.report_turn().await?;
    let query = call.query;
    let filter = Filter {
        status: query.status,
        key: query.key,
        kind: query.kind,
        reason: query.reason,
        older_than: query.older_than.map(|age| age.0),
        sort: query.sort,
    };
    let size = PageSize::of_answer(query.limit.map_or(DEFAULT_RECORDS, u32::from));
    let inspector = inspector(&call.state, &call.reach)?;
    let page = inspector.list(&filter, query.after.as_deref(), size).await?;
    let page = page.map_err(|unlistable| Problem::wrong(unlistable.0, unlistable.1))?;
    let items: Vec<_> = page.records.iter().map(json_view::decoded).collect();
    turn.json(&Listed { items, next: page.next, note: page.note })
}

/// Read a record, with payload and headers
#[utoipa::path(get, path = "/v1/outbox/records/{id}", tag = "outbox",
    params(RecordPath),
    responses(
        (status = 200, description = "the record", body = RecordAnswer, example = json!({
            "id": "order-7-created", "key": "order-7", "type": "OrderCreated", "status": "pending",
            "payload": { "order": 7 }, "partition": 21,
        })),
        (status = 404, description = "`not_found`: no record has this id"),
    ),
)]
pub(super) async fn get_outbox_record(
    call: Call<ReadScope, RecordPath, NoParameters, InRecords>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.turn().await?;
    let id = call.path.id;
    let inspector = inspector(&call.state, &call.reach)?;
    let found = inspector.show(&id.ids()).await?.ok_or_else(|| unknown_record(&id.0))?;
    turn.json(&json_view::decoded(&found))
}

/// Reads what the token may reach.
fn inspector(state: &Api, reach: &InRecords) -> Result<Inspector, Problem> {
    Ok(Inspector::new(state.records()?.clone()).within(reach.scope()))
}
