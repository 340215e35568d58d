//! The queries of the Wow framework's clients, under `/wow`: its paths, its envelope, its answers.

use axum::Json;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::post;
use bson::{Bson, Document};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::answer::StoredAnswer;
use super::parts::{Listing, list};
use super::{PageRequest, flaws_of, query_of};
use crate::events::Flaw;
use crate::events::json::{Json as AnyJson, JsonObject, Request};
use crate::events::query::json::{ConditionJson, NewerMember, ProjectionJson, SortJson};
use crate::events::query::{
    FieldName, MAX_LIST, Page, Paged, Projection, Query, QueryError, QueryScope, Target,
};
use crate::http::answers::{Answering, json_in};
use crate::http::extract::{Body, Call, NoParameters, ReadScope};
use crate::http::headers::read_single;
use crate::http::limits::{Confined, InStreams};
use crate::http::params::Bounded;
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::http::stream::ListForm;
use crate::json_view;
use crate::names::AggregateName;

/// Documents of a list, by Wow's default.
const DEFAULT_LIST: u32 = 10;

const STATE: &str = "state";

pub(in crate::http) fn calls() -> OpenApiRouter<Api> {
    let mut calls = OpenApiRouter::new()
        .routes(routes!(wow_single_snapshot))
        .routes(routes!(wow_single_state))
        .routes(routes!(wow_list_snapshots))
        .routes(routes!(wow_list_states))
        .routes(routes!(wow_page_snapshots))
        .routes(routes!(wow_page_states))
        .routes(routes!(wow_count_snapshots))
        .routes(routes!(wow_list_events))
        .routes(routes!(wow_page_events))
        .routes(routes!(wow_count_events));
    // The same calls for a tenant or an owner.
    for scope in ["/wow/tenant/{tenantId}/{name}", "/wow/owner/{ownerId}/{name}"] {
        let path = |call: &str| format!("{scope}/{call}");
        calls = calls
            .route(&path("snapshot/single"), post(wow_single_snapshot))
            .route(&path("snapshot/single/state"), post(wow_single_state))
            .route(&path("snapshot/list"), post(wow_list_snapshots))
            .route(&path("snapshot/list/state"), post(wow_list_states))
            .route(&path("snapshot/paged"), post(wow_page_snapshots))
            .route(&path("snapshot/paged/state"), post(wow_page_states))
            .route(&path("snapshot/count"), post(wow_count_snapshots))
            .route(&path("event/list"), post(wow_list_events))
            .route(&path("event/paged"), post(wow_page_events))
            .route(&path("event/count"), post(wow_count_events));
    }
    calls
}

/// An aggregate's name, and whose documents are meant.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Path)]
struct WowPath {
    /// The kind of aggregate.
    #[param(inline)]
    name: AggregateName,
    #[param(ignore)]
    tenant_id: Option<String>,
    #[param(ignore)]
    owner_id: Option<String>,
}

/// A query of Wow.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WowQuery {
    /// The condition.
    condition: Option<ConditionJson>,
    /// The fields of the answer. By default all.
    projection: Option<ProjectionJson>,
    /// The order.
    sort: Option<Vec<SortJson>>,
    /// For a list: the most documents. By default 10; 0 means 1,000, the most of one answer.
    #[schema(value_type = Option<i32>, minimum = 0, maximum = 1_000)]
    limit: Option<Bounded<0, { MAX_LIST as i64 }>>,
    /// The page.
    pagination: Option<PageRequest>,
    #[schema(ignore)]
    filter: Option<NewerMember>,
}

impl Request for WowQuery {
    fn conflicts(&self) -> Vec<Flaw> {
        let mut flaws = flaws_of(self.condition.as_ref(), self.projection.as_ref());
        if self.condition.is_none() && self.filter.is_none() {
            flaws.push(Flaw::new("condition", "is missing"));
        }
        flaws
    }
}

/// A page of Wow.
#[derive(Debug, Serialize, ToSchema)]
struct WowPage<T> {
    /// The number of all documents that meet the condition.
    #[schema(minimum = 0)]
    total: u64,
    /// The documents of the page.
    list: Vec<T>,
}

type WowCall = Call<ReadScope, WowPath, NoParameters, InStreams>;

impl Confined<InStreams> for WowPath {
    fn check(&self, reach: &InStreams) -> Result<(), Problem> {
        reach.name(&self.name)
    }
}

/// Whose documents a client of Wow may see: by the path, else by its headers, within the limits of its
/// token.
///
/// # Errors
///
/// A header occurs twice, or is not ASCII. If it were ignored, a client would see documents of others.
fn scope(call: &WowCall, headers: &HeaderMap) -> Result<QueryScope, Problem> {
    let path = &call.path;
    let header = |name: &str| match read_single(headers, name) {
        Ok(id) => Ok(id.map(str::to_owned)),
        Err(flaw) => Err(Problem::invalid(vec![flaw])),
    };
    let (tenant, owner) = (header("command-tenant-id")?, header("command-owner-id")?);
    Ok(QueryScope {
        tenant_id: call.reach.tenant(path.tenant_id.clone().or(tenant))?,
        owner_id: path.owner_id.clone().or(owner),
        space_id: header("wow-space-id")?,
    })
}

impl WowQuery {
    /// The query, in the order that Wow gives it: without the id at its end.
    fn query(self, call: &WowCall, headers: &HeaderMap, is_state: bool) -> Result<Query, Problem> {
        let scope = scope(call, headers)?;
        let condition = self.condition.map(with_decimals);
        let query = query_of(condition, self.projection, self.sort, scope)?;
        let projection = match (query.projection, FieldName::new(STATE)) {
            (Projection::All, Ok(state)) if is_state => Projection::Include(vec![state]),
            (projection, _) => projection,
        };
        Ok(Query { projection, is_total: false, ..query })
    }
}

/// Find one snapshot (Wow)
#[utoipa::path(post, path = "/wow/{name}/snapshot/single", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "AGGREGATE_ID", "value": "o-1" }
    })),
    responses(
        (status = 200, description = "the snapshot", body = JsonObject),
        (status = 404, description = "`not_found`: no snapshot meets the condition"),
    ),
)]
async fn wow_single_snapshot(
    call: WowCall,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    answer_single(&call, &headers, body, false, snapshot).await
}

/// Find the state of one snapshot (Wow)
#[utoipa::path(post, path = "/wow/{name}/snapshot/single/state", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "AGGREGATE_ID", "value": "o-1" }
    })),
    responses(
        (status = 200, description = "the state", body = JsonObject),
        (status = 404, description = "`not_found`: no snapshot meets the condition"),
    ),
)]
async fn wow_single_state(
    call: WowCall,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    answer_single(&call, &headers, body, true, State::of).await
}

/// List snapshots (Wow)
#[utoipa::path(post, path = "/wow/{name}/snapshot/list", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "ALL" }, "limit": 10
    })),
    responses((status = 200, description = "the documents, sent as they are read", content(
        (Vec<JsonObject> = "application/json"), (String = "text/event-stream"),
    ))),
)]
async fn wow_list_snapshots(
    call: WowCall,
    answering: Answering,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    let asked = (call, answering, headers);
    answer_list(asked, Target::Snapshots, body, false, snapshot).await
}

/// List the states of snapshots (Wow)
#[utoipa::path(post, path = "/wow/{name}/snapshot/list/state", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "ALL" }, "limit": 10
    })),
    responses((status = 200, description = "the documents, sent as they are read", content(
        (Vec<JsonObject> = "application/json"), (String = "text/event-stream"),
    ))),
)]
async fn wow_list_states(
    call: WowCall,
    answering: Answering,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    let asked = (call, answering, headers);
    answer_list(asked, Target::Snapshots, body, true, State::of).await
}

/// Read a page of snapshots (Wow)
#[utoipa::path(post, path = "/wow/{name}/snapshot/paged", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "ALL" }, "pagination": { "index": 1, "size": 10 }
    })),
    responses((status = 200, description = "the page", body = WowPage<JsonObject>)),
)]
async fn wow_page_snapshots(
    call: WowCall,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    answer_page(&call, &headers, Target::Snapshots, body, false, snapshot).await
}

/// Read a page of the states of snapshots (Wow)
#[utoipa::path(post, path = "/wow/{name}/snapshot/paged/state", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "ALL" }, "pagination": { "index": 1, "size": 10 }
    })),
    responses((status = 200, description = "the page", body = WowPage<JsonObject>)),
)]
async fn wow_page_states(
    call: WowCall,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    answer_page(&call, &headers, Target::Snapshots, body, true, State::of).await
}

/// Count snapshots (Wow)
#[utoipa::path(post, path = "/wow/{name}/snapshot/count", tag = "wow",
    params(WowPath), request_body(content = ConditionJson, example = json!({ "operator": "ALL" })),
    responses((status = 200, description = "the number", body = u64, content_type = "application/json")),
)]
async fn wow_count_snapshots(
    call: WowCall,
    headers: HeaderMap,
    Body(body): Body<ConditionJson>,
) -> Result<Json<u64>, Problem> {
    count(call, &headers, Target::Snapshots, body).await
}

/// List appends (Wow)
#[utoipa::path(post, path = "/wow/{name}/event/list", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "ALL" }, "limit": 10
    })),
    responses((status = 200, description = "the documents, sent as they are read", content(
        (Vec<JsonObject> = "application/json"), (String = "text/event-stream"),
    ))),
)]
async fn wow_list_events(
    call: WowCall,
    answering: Answering,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    let asked = (call, answering, headers);
    answer_list(asked, Target::Events, body, false, event).await
}

/// Read a page of appends (Wow)
#[utoipa::path(post, path = "/wow/{name}/event/paged", tag = "wow",
    params(WowPath), request_body(content = WowQuery, example = json!({
        "condition": { "operator": "ALL" }, "pagination": { "index": 1, "size": 10 }
    })),
    responses((status = 200, description = "the page", body = WowPage<JsonObject>)),
)]
async fn wow_page_events(
    call: WowCall,
    headers: HeaderMap,
    Body(body): Body<WowQuery>,
) -> Result<Response, Problem> {
    answer_page(&call, &headers, Target::Events, body, false, event).await
}

/// Count appends (Wow)
#[utoipa::path(post, path = "/wow/{name}/event/count", tag = "wow",
    params(WowPath), request_body(content = ConditionJson, example = json!({ "operator": "ALL" })),
    responses((status = 200, description = "the number", body = u64, content_type = "application/json")),
)]
async fn wow_count_events(
    call: WowCall,
    headers: HeaderMap,
    Body(body): Body<ConditionJson>,
) -> Result<Json<u64>, Problem> {
    count(call, &headers, Target::Events, body).await
}

/// The state of a snapshot.
#[derive(Serialize)]
#[serde(transparent)]
struct State(#[serde(serialize_with = "json_view::serialize")] Bson);

impl State {
    fn of(mut snapshot: Document) -> Self {
        Self(snapshot.remove(STATE).unwrap_or_else(|| Document::new().into()))
    }
}

/// A condition whose fractions are decimal numbers, as Wow stores and compares them: a decimal 0.1 does not
/// equal the double 0.1.
fn with_decimals(condition: ConditionJson) -> ConditionJson {
    let value = condition.value.map(|AnyJson(value)| AnyJson(decimal(value)));
    let children = condition.children.map(|all| all.into_iter().map(with_decimals).collect());
    ConditionJson { value, children, ..condition }
}

fn decimal(value: Bson) -> Bson {
    match value {
        // (A number of more digits than a decimal has stays a double.)
        Bson::Double(number) if number.fract() != 0.0 => {
            number.to_string().parse().map_or(value, Bson::Decimal128)
        }
        Bson::Array(items) => Bson::Array(items.into_iter().map(decimal).collect()),
        Bson::Document(members) => Bson::Document(
            members.into_iter().map(|(name, value)| (name, decimal(value))).collect(),
        ),
        other => other,
    }
}

/// The most documents of a list: 0 is as many as there may be.
fn limit(body: &WowQuery) -> u32 {
    match body.limit.map(|limit| u32::try_from(limit.0)) {
        None => DEFAULT_LIST,
        Some(Ok(limit @ 1..)) => limit,
        Some(_) => MAX_LIST,
    }
}

/// Answers a list. It has no cursors, so that all of it is one part.
async fn answer_list<T: Serialize + Send + Sync + 'static>(
    (call, answering, headers): (WowCall, Answering, HeaderMap),
    target: Target,
    body: WowQuery,
    is_state: bool,
    item: impl Fn(Document) -> T + Send + Sync + 'static,
) -> Result<Response, Problem> {
    let (limit, query) = (limit(&body), body.query(&call, &headers, is_state)?);
    let listing = Listing { target, name: call.path.name, query, limit, after: None };
    let form = ListForm::accepted_by_wow(&headers);
    list(call.state.queries()?, listing, form, answering, item).await
}

/// Answers with one snapshot.
async fn answer_single<T: Serialize>(
    call: &WowCall,
    headers: &HeaderMap,
    body: WowQuery,
    is_state: bool,
    item: impl Fn(Document) -> T,
) -> Result<Response, Problem> {
    let query = body.query(call, headers, is_state)?;
    let turn = call.state.queries()?.turn().await?;
    let found = turn.single(Target::Snapshots, &call.path.name, &query).await?;
    let found = found.ok_or_else(|| Problem::not_found("no snapshot meets the condition"))?;
    json_in(turn.into_permit(), &item(found))
}

fn snapshot(found: Document) -> StoredAnswer {
    StoredAnswer::new(found, Target::Snapshots)
}

fn event(found: Document) -> StoredAnswer {
    StoredAnswer::new(found, Target::Events)
}

/// The flaws with another beginning of their paths.
fn renamed(flaws: Vec<Flaw>, from: &str, to: &str) -> Vec<Flaw> {
    let renamed = |flaw: Flaw| match flaw.field.strip_prefix(from) {
        Some(rest) => Flaw { field: format!("{to}{rest}"), ..flaw },
        None => flaw,
    };
    flaws.into_iter().map(renamed).collect()
}

/// Answers with a page.
async fn answer_page<T: Serialize>(
    call: &WowCall,
    headers: &HeaderMap,
    target: Target,
    mut body: WowQuery,
    is_state: bool,
    item: impl Fn(Document) -> T,
) -> Result<Response, Problem> {
    let page = Page::from(body.pagination.take().unwrap_or_default());
    let flaws = renamed(page.flaws(), "page.", "pagination.");
    if !flaws.is_empty() {
        return Err(Problem::invalid(flaws));
    }
    let query = body.query(call, headers, is_state)?;
    let turn = call.state.queries()?.turn().await?;
    let paged = turn.page(target, &call.path.name, &query, page).await;
    let Paged { items, total } = paged.map_err(|error| match error {
        QueryError::LargePage => Problem::wrong("pagination.size", error.to_string()),
        other => other.into(),
    })?;
    let list = items.into_iter().map(item).collect();
    json_in(turn.into_permit(), &WowPage { total, list })
}

async fn count(
    call: WowCall,
    headers: &HeaderMap,
    target: Target,
    body: ConditionJson,
) -> Result<Json<u64>, Problem> {
    let query = query_of(Some(with_decimals(body)), None, None, scope(&call, headers)?)?;
    let counted = call.state.queries()?.count(target, &call.path.name, &query).await;
    // The body is the condition itself.
    let counted = counted.map_err(|error| match error {
        QueryError::Invalid(flaws) => QueryError::Invalid(renamed(flaws, "condition.", "")),
        other => other,
    });
    Ok(Json(counted?))
}
