//! Reads events and lists aggregates.

use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::events::{EventStream, Range, load_in_parts};
use crate::http::answers::Answering;
use crate::http::entity_tag::{EntityTag, ReadCondition};
use crate::http::extract::{Call, ReadScope};
use crate::http::limits::InStreams;
use crate::http::list::Listed;
use crate::http::params::{
    AggregatePath, Bounded, KindPath, Limit, TenantQuery, TimeText, VersionPath,
};
use crate::http::problem::Problem;
use crate::http::stream::{ListForm, streamed};
use crate::store::page::PageSize;

/// Aggregates of one answer, by default.
const DEFAULT_AGGREGATES: u32 = 100;

/// The list has two forms.
const VARY: [(HeaderName, &str); 1] = [(header::VARY, "Accept")];

/// Which events to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventsQuery {
    /// The first version, included.
    #[param(value_type = Option<i64>, minimum = 0)]
    from_version: Option<Bounded<0, { i64::MAX }>>,
    /// The last version, included.
    #[param(value_type = Option<i64>, minimum = 0)]
    to_version: Option<Bounded<0, { i64::MAX }>>,
    /// The earliest time, included: milliseconds since 1970, or RFC 3339.
    #[param(inline)]
    from_time: Option<TimeText>,
    /// The latest time, included.
    #[param(inline)]
    to_time: Option<TimeText>,
    /// Only this tenant.
    tenant_id: Option<String>,
    /// The most appends. `next` is then the `fromVersion` of the next page.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 1_000_000)]
    limit: Option<Limit<1_000_000>>,
}

/// Read the events of an aggregate, ascending by version
///
/// With `Accept: application/x-ndjson` the answer has one append per line.
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/events", tag = "events",
    params(AggregatePath, EventsQuery, ReadCondition),
    responses(
        (status = 200, description = "the appends, sent as they are read", content(
            (Listed<EventStream> = "application/json", example = json!({ "items": [{
                "id": "0f8fad5b-d9cb-469f-a165-70867728950e", "contextName": "default", "aggregateName": "order",
                "aggregateId": "o-1", "version": 1, "requestId": "place-o-1", "createTime": 1795300063572_i64,
                "header": {}, "size": 1, "body": [{ "id": "7c9e6679-7425-40de-944b-e07fc1f90ae7", "name": "OrderPlaced",
                    "body": { "total": 120 } }],
            }], "next": null })),
            (String = "application/x-ndjson"),
        ), headers(
            ("ETag" = String, description = "the version of the aggregate up to which events were read, in quotes; `\"0\"` if it does not exist"),
        )),
        (status = 304, description = "the version is that of `If-None-Match`",
            headers(("ETag" = String, description = "the version of the aggregate, in quotes"))),
        (status = 404, description = "`not_found`: this instance does not serve events"),
        (status = 410, description = "`stream_ended`: the stream has ended"),
    ),
)]
pub(super) async fn list_events(
    call: Call<ReadScope, AggregatePath, EventsQuery, InStreams>,
    answering: Answering,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (path, query) = (call.path, call.query);
    let limit = query.limit.map(u32::from);
    let range = Range {
        from_version: query.from_version.map(|version| version.0),
        to_version: query.to_version.map(|version| version.0),
        from_time: query.from_time.map(|time| time.0),
        to_time: query.to_time.map(|time| time.0),
        tenant_id: call.reach.tenant(query.tenant_id)?,
        // One more is the beginning of the next part.
        limit: limit.map(|limit| limit + 1),
    };
    let flaws = range.flaws();
    if !flaws.is_empty() {
        return Err(Problem::invalid(flaws));
    }
    let events = call.state.event_store()?;
    let tenant = range.tenant_id.as_deref();
    // A stream of another tenant is answered as an aggregate that does not exist.
    let version = if call.reach.knows(events, &path.name, &path.id, tenant).await? {
        events.check_open(&path.name, &path.id).await?
    } else {
        0
    };
    let tag = EntityTag(version);
    if tag.is_known_to(&headers) {
        return Ok((VARY, tag.not_modified()).into_response());
    }
    // What is appended from now on is not part of the version of the answer.
    let context = &call.state.reading()?.context;
    let found = load_in_parts(context, &path.name, &path.id, range, version);
    let found = found.map(|stream| stream.map(|stream| (stream.version.to_string(), stream)));
    let list = streamed(found.boxed(), limit, ListForm::accepted(&headers), answering).await?;
    Ok((tag.header(), VARY, list).into_response())
}

/// Read the append of a version
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/events/{version}", tag = "events",
    params(VersionPath, TenantQuery, ReadCondition),
    responses(
        (status = 200, description = "the append", body = EventStream,
            headers(("ETag" = String, description = "the version of the append, in quotes"))),
        (status = 304, description = "the version is that of `If-None-Match`",
            headers(("ETag" = String, description = "the version of the append, in quotes"))),
        (status = 404, description = "`not_found`: there is no such append"),
        (status = 410, description = "`stream_ended`: the stream has ended"),
    ),
)]
pub(super) async fn get_events_of_version(
    call: Call<ReadScope, VersionPath, TenantQuery, InStreams>,
    answering: Answering,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let turn = answering.turn().await?;
    let VersionPath { name, id, version: Bounded(version) } = call.path;
    let (store, tenant) = (call.state.event_store()?, call.reach.tenant(call.query.tenant_id)?);
    let missing =
        || Problem::not_found(format!("{name} {:?} has no version {version}", id.as_str()));
    let tenant = tenant.as_deref();
    if !call.reach.knows(store, &name, &id, tenant).await? {
        return Err(missing());
    }
    let found = store.single(&name, &id, version, tenant).await?.ok_or_else(missing)?;
    EntityTag(found.version).answer(&headers, turn, &found)
}

/// Read the newest append
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/events/last", tag = "events",
    params(AggregatePath, TenantQuery, ReadCondition),
    responses(
        (status = 200, description = "the append", body = EventStream,
            headers(("ETag" = String, description = "the version of the append, in quotes"))),
        (status = 304, description = "the version is that of `If-None-Match`",
            headers(("ETag" = String, description = "the version of the append, in quotes"))),
        (status = 404, description = "`not_found`: there is no such append"),
        (status = 410, description = "`stream_ended`: the stream has ended"),
    ),
)]
pub(super) async fn get_last_events(
    call: Call<ReadScope, AggregatePath, TenantQuery, InStreams>,
    answering: Answering,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let turn = answering.turn().await?;
    let AggregatePath { name, id } = call.path;
    let (store, tenant) = (call.state.event_store()?, call.reach.tenant(call.query.tenant_id)?);
    let missing = || Problem::not_found(format!("{name} {:?} has no events", id.as_str()));
    let tenant = tenant.as_deref();
    if !call.reach.knows(store, &name, &id, tenant).await? {
        return Err(missing());
    }
    let found = store.last(&name, &id, tenant).await?.ok_or_else(missing)?;
    EntityTag(found.version).answer(&headers, turn, &found)
}

/// Which aggregates to list.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AggregatesQuery {
    /// Only ids after this one: the `next` of the previous page.
    after: Option<String>,
    /// The most ids. By default 100. A page may be shorter, because of the size of its ids.
    #[param(value_type = Option<i32>, minimum = 1, maximum = 10_000)]
    limit: Option<Limit<10_000>>,
    /// Only this tenant.
    tenant_id: Option<String>,
}

/// List the ids of aggregates, in byte order
#[utoipa::path(get, path = "/v1/aggregates/{name}", tag = "events",
    params(KindPath, AggregatesQuery),
    responses(
        (status = 200, description = "a page of the list", body = Listed<String>,
            example = json!({ "items": ["o-1", "o-2"], "next": null })),
        (status = 404, description = "`not_found`: this instance does not serve events"),
    ),
)]
pub(super) async fn list_aggregates(
    call: Call<ReadScope, KindPath, AggregatesQuery, InStreams>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.turn().await?;
    let AggregatesQuery { after, limit, tenant_id } = call.query;
    let size = PageSize::of_answer(limit.map_or(DEFAULT_AGGREGATES, u32::from));
    let store = call.state.event_store()?;
    let (name, tenant) = (&call.path.name, call.reach.tenant(tenant_id)?);
    let page = store.aggregate_page(name, after.as_deref(), size, tenant.as_deref()).await?;
    let next = page.ids.last().filter(|_| page.has_more).cloned();
    turn.json(&Listed { items: page.ids, next, note: None })
}
