//! Events, and the aggregates that have some.

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::StreamExt;
use serde_json::{Map, Value, json};

use crate::events::{EventStream, Range};
use crate::http::auth::{Caller, Read};
use crate::http::events::{id_of, name_of, store};
use crate::http::guard::Place;
use crate::http::list::Listed;
use crate::http::problem::{FieldError, Problem};
use crate::http::query::{Path, Query};
use crate::http::state::Shared;
use crate::http::stream::{Form, streamed};
use crate::shown;

/// Aggregates of a list where nothing is said, and at most.
const LIMIT: (u32, i64) = (100, 10_000);

/// What one append has left behind.
pub(in crate::http) fn schema() -> Value {
    let text = json!({ "type": "string" });
    let object = json!({ "type": "object" });
    json!({
        "type": "object",
        "required": ["id", "contextName", "aggregateName", "aggregateId", "requestId", "version",
            "createTime", "header", "size", "body"],
        "properties": {
            "id": text, "contextName": text, "aggregateName": text, "aggregateId": text,
            "tenantId": text, "ownerId": text, "requestId": text, "commandId": text,
            "version": { "type": "integer" },
            "createTime": { "type": "integer", "description": "Milliseconds since 1970." },
            "header": object,
            "size": { "type": "integer" },
            "body": { "type": "array", "items": {
                "type": "object",
                "required": ["id", "name", "body"],
                "properties": {
                    "id": text, "name": text, "revision": text, "bodyType": text, "body": object,
                },
            } },
        },
    })
}

/// The events of an aggregate, ascending by version; as NDJSON where that is accepted
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/events", tag = "events",
    params(
        ("name" = String, Path, description = "the kind of aggregate"),
        ("id" = String, Path, description = "the aggregate"),
        ("fromVersion" = Option<i64>, Query, description = "the first version", minimum = 0),
        ("toVersion" = Option<i64>, Query, description = "the last version", minimum = 0),
        ("fromTime" = Option<String>, Query, description = "the earliest time: milliseconds since 1970, or RFC 3339"),
        ("toTime" = Option<String>, Query, description = "the latest time"),
        ("tenantId" = Option<String>, Query, description = "of this tenant only"),
        ("limit" = Option<i32>, Query, description = "at most so many appends; `next` is then the `fromVersion` to go on with", minimum = 1, maximum = 1000000),
    ),
    responses(
        (status = 200, description = "sent as they are read", content(
            (ref("#/components/schemas/EventStreams") = "application/json"),
            (String = "application/x-ndjson"),
        )),
        (status = 404, description = "`not_found`: this instance hosts no events"),
    ),
)]
pub(super) async fn events(
    _: Caller<Read>,
    path: Path,
    mut query: Query,
    State(shared): State<Shared>,
    Extension(place): Extension<Place>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (name, id) = (name_of(&path)?, id_of(&path)?);
    let limit = query.integer("limit", 1..=1_000_000);
    let range = Range {
        from_version: query.integer("fromVersion", 0..=i64::MAX),
        to_version: query.integer("toVersion", 0..=i64::MAX),
        from_time: query.time("fromTime"),
        to_time: query.time("toTime"),
        tenant_id: query.text("tenantId"),
        limit: None,
    };
    query.finish()?;
    let flaws = range.flaws();
    if !flaws.is_empty() {
        let error =
            |flaw: crate::events::Flaw| FieldError { field: flaw.field, detail: flaw.detail };
        return Err(Problem::invalid(flaws.into_iter().map(error).collect()));
    }
    let limit = limit.and_then(|limit| u32::try_from(limit).ok());
    // One more tells where the next part begins.
    let range = Range { limit: limit.map(|limit| limit + 1), ..range };
    let found = store(&shared)?.load(&name, &id, &range).await?;
    let found = found.map(|read| read.map(|stream| (stream.version.to_string(), shown(&stream))));
    streamed(found, limit, Form::accepted(&headers), place).await
}

/// The append that made a version
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/events/{version}", tag = "events",
    params(
        ("name" = String, Path, description = "the kind of aggregate"),
        ("id" = String, Path, description = "the aggregate"),
        ("version" = i64, Path, description = "the version", minimum = 0),
        ("tenantId" = Option<String>, Query, description = "of this tenant only"),
    ),
    responses(
        (status = 200, description = "the append", body = ref("#/components/schemas/EventStream")),
        (status = 404, description = "`not_found`"),
    ),
)]
pub(super) async fn single(
    _: Caller<Read>,
    path: Path,
    mut query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Problem> {
    let (name, id) = (name_of(&path)?, id_of(&path)?);
    let version = path.part("version").parse().ok().filter(|version: &i64| *version >= 0);
    let wrong = || Problem::wrong("version", "is to be an integer of 0 or above, or `last`");
    let version = version.ok_or_else(wrong)?;
    let tenant = query.text("tenantId");
    query.finish()?;
    let found = store(&shared)?.single(&name, &id, version, tenant.as_deref()).await?;
    let missing =
        || Problem::not_found(format!("{name} {:?} has no version {version}", id.as_str()));
    Ok(Json(shown(&found.ok_or_else(missing)?)))
}

/// The newest append
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/events/last", tag = "events",
    params(
        ("name" = String, Path, description = "the kind of aggregate"),
        ("id" = String, Path, description = "the aggregate"),
        ("tenantId" = Option<String>, Query, description = "of this tenant only"),
    ),
    responses(
        (status = 200, description = "the append", body = ref("#/components/schemas/EventStream")),
        (status = 404, description = "`not_found`"),
    ),
)]
pub(super) async fn last(
    _: Caller<Read>,
    path: Path,
    mut query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Problem> {
    let (name, id) = (name_of(&path)?, id_of(&path)?);
    let tenant = query.text("tenantId");
    query.finish()?;
    let found = store(&shared)?.last(&name, &id, tenant.as_deref()).await?;
    let missing = || Problem::not_found(format!("{name} {:?} has no events", id.as_str()));
    Ok(Json(shown(&found.ok_or_else(missing)?)))
}

/// The ids of aggregates, in their order
#[utoipa::path(get, path = "/v1/aggregates/{name}", tag = "events",
    params(
        ("name" = String, Path, description = "the kind of aggregate"),
        ("after" = Option<String>, Query, description = "behind this id: `next`"),
        ("limit" = Option<i32>, Query, description = "how many at most; 100", minimum = 1, maximum = 10000),
        ("tenantId" = Option<String>, Query, description = "of this tenant only"),
    ),
    responses(
        (status = 200, description = "a part of the list", body = Listed<String>),
        (status = 404, description = "`not_found`: this instance hosts no events"),
    ),
)]
pub(super) async fn aggregates(
    _: Caller<Read>,
    path: Path,
    mut query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Listed<String>>, Problem> {
    let name = name_of(&path)?;
    let (after, tenant) = (query.text("after"), query.text("tenantId"));
    let limit = query.integer("limit", 1..=LIMIT.1);
    query.finish()?;
    let limit = limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(LIMIT.0);
    let store = store(&shared)?;
    let found = store.aggregate_ids(&name, after.as_deref(), limit + 1, tenant.as_deref());
    let mut items = found.await?;
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next = items.last().filter(|_| has_more).cloned();
    Ok(Json(Listed { items, next, note: None }))
}

/// A stream's document, and in it bodies as they were written.
fn shown(stream: &EventStream) -> Value {
    let document = |document: &bson::Document| shown::value(&document.clone().into());
    let body = stream.body.iter().map(|event| {
        let mut fields = Map::new();
        fields.insert("id".into(), json!(event.id));
        fields.insert("name".into(), json!(event.name));
        put(&mut fields, "revision", event.revision.as_ref());
        put(&mut fields, "bodyType", event.body_type.as_ref());
        fields.insert("body".into(), document(&event.body));
        Value::Object(fields)
    });
    let mut fields = Map::new();
    fields.insert("id".into(), json!(stream.id));
    fields.insert("contextName".into(), json!(stream.context_name));
    fields.insert("aggregateName".into(), json!(stream.aggregate_name));
    fields.insert("aggregateId".into(), json!(stream.aggregate_id));
    put(&mut fields, "tenantId", stream.tenant_id.as_ref());
    put(&mut fields, "ownerId", stream.owner_id.as_ref());
    fields.insert("requestId".into(), json!(stream.request_id));
    put(&mut fields, "commandId", stream.command_id.as_ref());
    fields.insert("version".into(), json!(stream.version));
    fields.insert("createTime".into(), json!(stream.create_time));
    fields.insert("header".into(), document(&stream.header));
    fields.insert("size".into(), json!(stream.size));
    fields.insert("body".into(), Value::Array(body.collect()));
    Value::Object(fields)
}

fn put(fields: &mut Map<String, Value>, name: &str, value: Option<&String>) {
    if let Some(value) = value {
        fields.insert(name.to_owned(), json!(value));
    }
}
