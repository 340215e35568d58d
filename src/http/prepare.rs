//! Prepare keys over HTTP: a value reserved under a key, by one of many who try.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use bson::{Bson, DateTime};
use serde_json::{Value, json};
use tracing::debug;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::context::Kind;
use crate::http::auth::{Append, Caller, Read};
use crate::http::events::context;
use crate::http::fields::Fields;
use crate::http::json::{Body, NoBody};
use crate::http::problem::Problem;
use crate::http::query::{Path, Query};
use crate::http::schemas::time;
use crate::http::state::Shared;
use crate::names::check_id;
use crate::prepare::{Outcome, PrepareError, PrepareKey, PrepareName, Ttl};
use crate::shown;
use crate::store::ServerClock;

pub(super) fn calls() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(prepare, get, reprepare, rollback))
}

/// The body of what takes a key.
pub(super) fn prepare_body() -> Value {
    body(json!({}))
}

/// The body of what changes one.
pub(super) fn reprepare_body() -> Value {
    body(json!({
        "oldValue": {
            "$ref": "#/components/schemas/Json",
            "description": "What the key is to be held with; anything without it.",
        },
    }))
}

fn body(more: Value) -> Value {
    let mut body = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["value"],
        // Not both.
        "anyOf": [
            { "properties": { "ttl": { "type": "null" } } },
            { "properties": { "ttlAt": { "type": "null" } } },
        ],
        "properties": {
            "value": { "$ref": "#/components/schemas/Json" },
            "ttl": {
                "type": ["string", "null"],
                "pattern": "^([0-9]{1,4}(ms|s|m|h|d)){1,3}$",
                "description": "For so long from now, by MongoDB's clock, such as 30s or 1h30m; for ever without it.",
            },
            "ttlAt": time("Until then, by MongoDB's clock; one that has passed ends it at once."),
        },
    });
    for (name, schema) in more.as_object().into_iter().flatten() {
        body["properties"][name] = schema.clone();
    }
    body
}

/// A key that is held.
pub(super) fn prepared() -> Value {
    json!({
        "type": "object",
        "required": ["key", "value", "ttlAt"],
        "properties": {
            "key": { "type": "string" },
            "value": { "description": "Any JSON, as it was written." },
            "ttlAt": {
                "type": ["string", "null"], "format": "date-time",
                "description": "When it expires; null for never.",
            },
        },
    })
}

/// Take a key that nobody holds
#[utoipa::path(post, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(
        ("name" = String, Path, description = "the kind of key"),
        ("key" = String, Path, description = "the key"),
    ),
    request_body(content = ref("#/components/schemas/Prepare"), content_type = "application/json"),
    responses(
        (status = 201, description = "a majority has it", body = ref("#/components/schemas/Prepared")),
        (status = 404, description = "`not_found`: this instance hosts no prepare keys"),
        (status = 409, description = "`already_prepared`"),
    ),
)]
async fn prepare(
    caller: Caller<Append>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
    Body(body): Body,
) -> Result<(StatusCode, Json<Value>), Problem> {
    query.finish()?;
    let (name, key) = names(&path)?;
    let asked = Asked::read(body)?;
    let keys = keys(&shared, name)?;
    let end = asked.end(&shared).await?;
    if !keys.prepare(&key, &asked.value, end.map_or(Ttl::Forever, Ttl::At)).await? {
        let detail = format!("{} {key:?} is held already", keys.name());
        return Err(Problem::conflict("already_prepared", detail));
    }
    debug!(actor = &*caller.name, name = keys.name().as_str(), key, "a key was prepared");
    Ok((StatusCode::CREATED, Json(shown(&key, &asked.value, end))))
}

/// A key, while it is held
#[utoipa::path(get, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(
        ("name" = String, Path, description = "the kind of key"),
        ("key" = String, Path, description = "the key"),
    ),
    responses(
        (status = 200, description = "it is held", body = ref("#/components/schemas/Prepared")),
        (status = 404, description = "`not_found`: nobody holds it, or it has expired"),
    ),
)]
async fn get(
    _: Caller<Read>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Problem> {
    query.finish()?;
    let (name, key) = names(&path)?;
    let keys = keys(&shared, name)?;
    let held = keys.get(&key).await?.ok_or_else(|| not_held(&keys, &key))?;
    Ok(Json(shown(&key, &held.value, held.ttl_at)))
}

/// Give a key that is held another value and end
#[utoipa::path(put, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(
        ("name" = String, Path, description = "the kind of key"),
        ("key" = String, Path, description = "the key"),
    ),
    request_body(content = ref("#/components/schemas/Reprepare"), content_type = "application/json"),
    responses(
        (status = 200, description = "a majority has it", body = ref("#/components/schemas/Prepared")),
        (status = 404, description = "`not_found`: nobody holds it, or it has expired"),
        (status = 409, description = "`value_mismatch`: it is held with another value than `oldValue`"),
    ),
)]
async fn reprepare(
    caller: Caller<Append>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
    Body(mut body): Body,
) -> Result<Json<Value>, Problem> {
    query.finish()?;
    let (name, key) = names(&path)?;
    let old = body.bson("oldValue");
    let asked = Asked::read(body)?;
    let keys = keys(&shared, name)?;
    let end = asked.end(&shared).await?;
    let ttl = end.map_or(Ttl::Forever, Ttl::At);
    done(keys.try_reprepare(&key, old.as_ref(), &asked.value, ttl).await?, &keys, &key)?;
    debug!(actor = &*caller.name, name = keys.name().as_str(), key, "a key was changed");
    Ok(Json(shown(&key, &asked.value, end)))
}

/// Give a key back
#[utoipa::path(delete, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(
        ("name" = String, Path, description = "the kind of key"),
        ("key" = String, Path, description = "the key"),
        ("value" = Option<String>, Query, description = "only where it is held with this: JSON, or, where it is none, the text itself"),
    ),
    responses(
        (status = 204, description = "nobody holds it any more"),
        (status = 404, description = "`not_found`: nobody held it, or it had expired"),
        (status = 409, description = "`value_mismatch`"),
    ),
)]
async fn rollback(
    caller: Caller<Append>,
    path: Path,
    mut query: Query,
    State(shared): State<Shared>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let value = query.bson("value");
    query.finish()?;
    let (name, key) = names(&path)?;
    let keys = keys(&shared, name)?;
    done(keys.try_rollback(&key, value.as_ref()).await?, &keys, &key)?;
    debug!(actor = &*caller.name, name = keys.name().as_str(), key, "a key was given back");
    Ok(StatusCode::NO_CONTENT)
}

/// What a key is to be held with, and how long.
struct Asked {
    value: Bson,
    ttl: Option<Duration>,
    ttl_at: Option<DateTime>,
}

impl Asked {
    fn read(mut body: Fields) -> Result<Self, Problem> {
        let value = body.required_bson("value").unwrap_or(Bson::Null);
        let (ttl, ttl_at) = (body.duration("ttl"), body.time("ttlAt"));
        if ttl.is_some() && ttl_at.is_some() {
            body.wrong("ttl", "stands beside ttlAt; keep one");
        }
        body.finish()?;
        Ok(Self { value, ttl, ttl_at })
    }

    /// When the key ends, on MongoDB's clock: asked for here, so that the answer tells what is
    /// stored. `None` for never.
    async fn end(&self, shared: &Shared) -> Result<Option<DateTime>, Problem> {
        if self.ttl.is_none() && self.ttl_at.is_none() {
            return Ok(None);
        }
        let now = ServerClock::asked(&context(shared)?.database(Kind::Prepare)).await?;
        let end = self.ttl_at.unwrap_or_else(|| {
            let millis = self.ttl.unwrap_or_default().as_micros().div_ceil(1000);
            let millis = i64::try_from(millis).unwrap_or(i64::MAX);
            DateTime::from_millis(now.timestamp_millis().saturating_add(millis))
        });
        Ok(Ttl::end_at(end.max(now)))
    }
}

fn names(path: &Path) -> Result<(PrepareName, String), Problem> {
    let key = path.part("key");
    let name = PrepareName::new(path.part("name"));
    let name = name.map_err(|wrong| Problem::wrong("name", wrong.to_string()))?;
    check_id(key).map_err(|wrong| Problem::wrong("key", wrong.to_string()))?;
    Ok((name, key.to_owned()))
}

fn keys(shared: &Shared, name: PrepareName) -> Result<PrepareKey, Problem> {
    Ok(PrepareKey::new(context(shared)?.clone(), name))
}

fn done(outcome: Outcome, keys: &PrepareKey, key: &str) -> Result<(), Problem> {
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::NotHeld => Err(not_held(keys, key)),
        Outcome::Differs => {
            let detail = format!("{} {key:?} is held with another value", keys.name());
            Err(Problem::conflict("value_mismatch", detail))
        }
    }
}

fn not_held(keys: &PrepareKey, key: &str) -> Problem {
    Problem::not_found(format!("nobody holds {} {key:?}", keys.name()))
}

fn shown(key: &str, value: &Bson, end: Option<DateTime>) -> Value {
    let end = end.map(|end| shown::value(&end.into()));
    json!({ "key": key, "value": shown::value(value), "ttlAt": end })
}

impl From<PrepareError> for Problem {
    fn from(error: PrepareError) -> Self {
        let told = error.to_string();
        match error {
            PrepareError::Key(wrong) => Self::wrong("key", wrong.to_string()),
            PrepareError::SameKey => Self::wrong("key", told),
            PrepareError::NotPrepared => Self::conflict("value_mismatch", told),
            PrepareError::TooLarge => Self::too_large(told),
            PrepareError::TooDeep | PrepareError::Encode(_) => Self::wrong("value", told),
            PrepareError::Decode(_) => Self::fault(&error),
            PrepareError::Contended => Self::unavailable(told),
            PrepareError::Schema(source) => Self::of_schema(&source),
            PrepareError::Store(source) => {
                let detail =
                    "MongoDB did not do it; whether the key was changed is unknown: ask for it";
                Self::of_meaning(source.meaning(), &source, detail)
            }
        }
    }
}
