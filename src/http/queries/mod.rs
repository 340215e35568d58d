//! Queries of events and snapshots.

mod answer;
mod parts;
pub(super) mod wow;

use axum::Json;
use axum::http::HeaderMap;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::events::Flaw;
use crate::events::json::{JsonObject, Request};
use crate::events::query::json::{ConditionJson, ProjectionJson, SortJson};
use crate::events::query::{
    Condition, MAX_LIST, MAX_PAGE, Page, Projection, Query, QueryError, QueryScope, SortKey, Target,
};
use crate::http::answers::{Answering, json_in};
use crate::http::extract::{Body, Call, ReadScope};
use crate::http::limits::InStreams;
use crate::http::params::{Bounded, KindPath, Limit, TenantQuery};
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::http::stream::ListForm;

use self::answer::StoredAnswer;
use self::parts::{Listing, list};

/// Documents of a list, by default.
const DEFAULT_LIST: u32 = 100;

/// Documents of a page, by default.
const DEFAULT_PAGE: u32 = 10;

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(query_events))
        .routes(routes!(count_events))
        .routes(routes!(query_snapshots))
        .routes(routes!(count_snapshots))
}

/// A query: a list, from a cursor on, or a page.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct QueryRequest {
    /// The condition. By default all documents.
    condition: Option<ConditionJson>,
    /// The fields of the items. By default all.
    projection: Option<ProjectionJson>,
    /// The order. Postrider adds the id at its end.
    sort: Option<Vec<SortJson>>,
    /// The most items. By default 100.
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 1_000)]
    limit: Option<Limit<{ MAX_LIST as i64 }>>,
    /// Only items after this place: the `next` of the previous part, with the same sort.
    after: Option<String>,
    /// A page with the total number, in place of `limit` and `after`.
    page: Option<PageRequest>,
}

/// A page.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct PageRequest {
    /// The number of the page. By default 1, the first.
    #[schema(value_type = Option<i64>, minimum = 1)]
    index: Option<Bounded<1, { i64::MAX }>>,
    /// The items per page. By default 10.
    #[schema(value_type = Option<i32>, minimum = 1, maximum = 100)]
    size: Option<Limit<{ MAX_PAGE as i64 }>>,
}

impl From<PageRequest> for Page {
    fn from(PageRequest { index, size }: PageRequest) -> Self {
        Self {
            index: index.map_or(1, |index| index.0.unsigned_abs()),
            size: size.map_or(DEFAULT_PAGE, u32::from).into(),
        }
    }
}

impl Request for QueryRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        let mut flaws = flaws_of(self.condition.as_ref(), self.projection.as_ref());
        if self.page.is_some() {
            for (field, is_set) in
                [("limit", self.limit.is_some()), ("after", self.after.is_some())]
            {
                if is_set {
                    flaws.push(Flaw::new(field, "conflicts with page; remove one of the two"));
                }
            }
        }
        flaws
    }
}

/// The flaws of a condition and a projection, each under its name.
pub(super) fn flaws_of(
    condition: Option<&ConditionJson>,
    projection: Option<&ProjectionJson>,
) -> Vec<Flaw> {
    let mut flaws = condition.and_then(|json| json.read("condition").err()).unwrap_or_default();
    flaws.extend(projection.and_then(|json| json.clone().read("projection").err()));
    flaws
}

/// The query of a body whose flaws were refused.
pub(super) fn query_of(
    condition: Option<ConditionJson>,
    projection: Option<ProjectionJson>,
    sort: Option<Vec<SortJson>>,
    scope: QueryScope,
) -> Result<Query, Problem> {
    let condition = condition.map_or(Ok(Condition::All), |json| json.read("condition"));
    let projection = projection.map_or(Ok(Projection::All), |json| json.read("projection"));
    Ok(Query {
        condition: condition.map_err(Problem::invalid)?,
        projection: projection.map_err(|flaw| Problem::invalid(vec![flaw]))?,
        sort: sort.into_iter().flatten().map(SortKey::from).collect(),
        is_total: true,
        scope,
    })
}

/// A part of a list, or a page.
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "describes an answer that is written as it is read")]
struct QueryAnswer {
    /// The documents as they are stored. `_id` is called `id` for events, and `aggregateId` for snapshots.
    items: Vec<JsonObject>,
    /// For a list: the `after` of the next part; null at the end.
    #[schema(required = false)]
    next: Option<String>,
    /// For a page: the number of all documents that meet the condition.
    #[schema(required = false, nullable = false)]
    total: Option<i64>,
}

/// A page.
#[derive(Debug, Serialize)]
struct PageAnswer {
    items: Vec<StoredAnswer>,
    total: u64,
}

/// The documents to count.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CountRequest {
    /// The condition. By default all documents.
    condition: Option<ConditionJson>,
}

impl Request for CountRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        flaws_of(self.condition.as_ref(), None)
    }
}

/// A number of documents.
#[derive(Debug, Serialize, ToSchema)]
struct CountAnswer {
    #[schema(minimum = 0)]
    count: u64,
}

type QueryCall = Call<ReadScope, KindPath, TenantQuery, InStreams>;

/// Find events of all aggregates of a name by a condition
///
/// With `Accept: application/x-ndjson` the answer has one item per line.
#[utoipa::path(post, path = "/v1/aggregates/{name}/events/query", tag = "queries",
    params(KindPath, TenantQuery),
    request_body(content = QueryRequest, example = json!({
        "condition": { "operator": "EQ", "field": "body.name", "value": "OrderPlaced" }, "limit": 10
    })),
    responses(
        (status = 200, description = "the documents, sent as they are read", content(
            (QueryAnswer = "application/json"),
            (String = "application/x-ndjson"),
        )),
        (status = 404, description = "`not_found`: this instance does not serve events"),
    ),
)]
async fn query_events(
    call: QueryCall,
    answering: Answering,
    headers: HeaderMap,
    Body(body): Body<QueryRequest>,
) -> Result<Response, Problem> {
    query(call, Target::Events, body, ListForm::accepted(&headers), answering).await
}

/// Find snapshots by a condition
///
/// Snapshots of deleted aggregates are found only with a condition `DELETED`. With `Accept: application/x-ndjson` the
/// answer has one item per line.
#[utoipa::path(post, path = "/v1/aggregates/{name}/snapshots/query", tag = "queries",
    params(KindPath, TenantQuery),
    request_body(content = QueryRequest, example = json!({
        "condition": { "operator": "EQ", "field": "state.status", "value": "PAID" },
        "sort": [{ "field": "state.total", "direction": "DESC" }], "page": { "index": 1, "size": 10 }
    })),
    responses(
        (status = 200, description = "the documents, sent as they are read", content(
            (QueryAnswer = "application/json", example = json!({
                "items": [{ "aggregateId": "o-1", "version": 3, "state": { "total": 120 } }], "next": null,
            })),
            (String = "application/x-ndjson"),
        )),
        (status = 404, description = "`not_found`: this instance does not serve snapshots"),
    ),
)]
async fn query_snapshots(
    call: QueryCall,
    answering: Answering,
    headers: HeaderMap,
    Body(body): Body<QueryRequest>,
) -> Result<Response, Problem> {
    query(call, Target::Snapshots, body, ListForm::accepted(&headers), answering).await
}

/// Count appends of all aggregates of a name by a condition
#[utoipa::path(post, path = "/v1/aggregates/{name}/events/count", tag = "queries",
    params(KindPath, TenantQuery),
    request_body(content = CountRequest, example = json!({ "condition": { "operator": "ALL" } })),
    responses(
        (status = 200, description = "the number", body = CountAnswer, example = json!({ "count": 42 })),
        (status = 404, description = "`not_found`: this instance does not serve events"),
    ),
)]
async fn count_events(
    call: QueryCall,
    Body(body): Body<CountRequest>,
) -> Result<Json<CountAnswer>, Problem> {
    count(call, Target::Events, body).await
}

/// Count snapshots by a condition
#[utoipa::path(post, path = "/v1/aggregates/{name}/snapshots/count", tag = "queries",
    params(KindPath, TenantQuery),
    request_body(content = CountRequest, example = json!({ "condition": { "operator": "ALL" } })),
    responses(
        (status = 200, description = "the number", body = CountAnswer, example = json!({ "count": 42 })),
        (status = 404, description = "`not_found`: this instance does not serve snapshots"),
    ),
)]
async fn count_snapshots(
    call: QueryCall,
    Body(body): Body<CountRequest>,
) -> Result<Json<CountAnswer>, Problem> {
    count(call, Target::Snapshots, body).await
}

async fn query(
    call: QueryCall,
    target: Target,
    body: QueryRequest,
    form: ListForm,
    answering: Answering,
) -> Result<Response, Problem> {
    let QueryRequest { condition, projection, sort, limit, after, page } = body;
    let tenant_id = call.reach.tenant(call.query.tenant_id)?;
    let scope = QueryScope { tenant_id, ..QueryScope::default() };
    let query = query_of(condition, projection, sort, scope)?;
    let name = &call.path.name;
    let queries = call.state.queries()?;
    if let Some(page) = page {
        let turn = queries.turn().await?;
        let paged = turn.page(target, name, &query, page.into()).await?;
        let answer = |document| StoredAnswer::new(document, target);
        let items = paged.items.into_iter().map(answer).collect();
        return json_in(turn.into_permit(), &PageAnswer { items, total: paged.total });
    }
    let limit = limit.map_or(DEFAULT_LIST, u32::from);
    let listing = Listing { target, name: name.clone(), query, limit, after };
    list(queries, listing, form, answering, move |document| StoredAnswer::new(document, target))
        .await
}

async fn count(
    call: QueryCall,
    target: Target,
    body: CountRequest,
) -> Result<Json<CountAnswer>, Problem> {
    let tenant_id = call.reach.tenant(call.query.tenant_id)?;
    let scope = QueryScope { tenant_id, ..QueryScope::default() };
    let query = query_of(body.condition, None, None, scope)?;
    let count = call.state.queries()?.count(target, &call.path.name, &query).await?;
    Ok(Json(CountAnswer { count }))
}

impl From<QueryError> for Problem {
    fn from(error: QueryError) -> Self {
        let detail = error.to_string();
        match error {
            QueryError::Invalid(flaws) => Self::invalid(flaws),
            QueryError::Scan(_)
            | QueryError::Broad { .. }
            | QueryError::NoTextIndex { .. }
            | QueryError::Refused(_) => Self::wrong("condition", detail),
            QueryError::LargePage => Self::wrong("page.size", detail),
            QueryError::LargeList => Self::wrong("limit", detail),
            QueryError::Busy { .. } => Self::overloaded(detail),
            QueryError::Unsortable(unsortable) => Self::wrong("sort", unsortable.to_string()),
            QueryError::Timeout { .. } => Self::unavailable(detail),
            QueryError::Store(error) => error.into(),
        }
    }
}
