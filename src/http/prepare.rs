//! Prepare keys: a value reserved under a key, by one of several clients.

use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bson::{Bson, DateTime, doc};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use tracing::debug;
use utoipa::openapi::schema::{AnyOfBuilder, Object, ObjectBuilder, Schema, Type};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::context::CollectionKind;
use crate::events::Flaw;
use crate::events::json::{
    Form, IdText, Json as AnyJson, Request, Time, checked, if_present, parse, read,
};
use crate::http::answers::Answering;
use crate::http::extract::{AppendScope, Body, Call, NoBody, ReadScope};
use crate::http::location::location;
use crate::http::params::DurationText;
use crate::http::problem::Problem;
use crate::http::state::Api;
use crate::ops::problem_code::ProblemCode;
use crate::prepare::{KeyOutcome, PrepareError, PrepareKey, PrepareName, Ttl};
use crate::store::ServerClock;

pub(super) fn calls() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(
        prepare_key,
        get_prepared_key,
        reprepare_key,
        rollback_prepared_key
    ))
}

/// A prepare key, in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
struct KeyPath {
    /// The kind of key.
    #[param(inline)]
    name: PrepareName,
    /// The key.
    #[param(value_type = String, pattern = "^(?!\\.{1,2}$)[^\\u0000]{1,255}$", example = "ada")]
    key: IdText,
}

/// The value with which a key is reserved, and until when: `ttl` or `ttlAt`, not both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct PrepareRequest {
    value: AnyJson,
    /// How long the key is reserved, by MongoDB's clock. By default for ever.
    #[schema(inline)]
    ttl: Option<DurationText>,
    /// The time until which the key is reserved, by MongoDB's clock. A time in the past ends it at once.
    ttl_at: Option<Time>,
}

/// A new value of a key, and a new end: `ttl` or `ttlAt`, not both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ReprepareRequest {
    /// The value that the key must have. By default any.
    #[serde(deserialize_with = "if_present")]
    #[schema(value_type = AnyJson, required = false)]
    old_value: Option<AnyJson>,
    value: AnyJson,
    /// How long the key is reserved, by MongoDB's clock. By default for ever.
    #[schema(inline)]
    ttl: Option<DurationText>,
    /// The time until which the key is reserved, by MongoDB's clock. A time in the past ends it at once.
    ttl_at: Option<Time>,
}

impl Request for PrepareRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        one_end(self.ttl, self.ttl_at)
    }
}

impl Request for ReprepareRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        one_end(self.ttl, self.ttl_at)
    }
}

fn one_end(ttl: Option<DurationText>, ttl_at: Option<Time>) -> Vec<Flaw> {
    let both =
        ttl.and(ttl_at).map(|_| Flaw::new("ttl", "conflicts with ttlAt; remove one of the two"));
    both.into_iter().collect()
}

/// The schema of what `one_end` requires.
pub(super) fn one_end_schema() -> Schema {
    let without = |name| ObjectBuilder::new().property(name, Object::with_type(Type::Null));
    AnyOfBuilder::new().item(without("ttl")).item(without("ttlAt")).into()
}

/// A reserved key.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct KeyAnswer {
    key: String,
    /// The value, as it was sent.
    value: AnyJson,
    /// The time when it expires; null for never.
    #[schema(required = true, value_type = Option<String>, format = DateTime)]
    ttl_at: Option<AnyJson>,
}

impl KeyAnswer {
    fn new(key: &IdText, value: Bson, end: Option<DateTime>) -> Json<Self> {
        let ttl_at = end.map(|end| AnyJson(end.into()));
        Json(Self { key: key.as_str().to_owned(), value: AnyJson(value), ttl_at })
    }
}

/// Reserve a key
#[utoipa::path(post, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(KeyPath),
    request_body(content = PrepareRequest, example = json!({ "value": "ada", "ttl": "30s" })),
    responses(
        (status = 201, description = "a majority has the reservation", headers(("Location" = String, description = "the path of the key")),
            body = KeyAnswer,
            example = json!({ "key": "ada", "value": "u-7", "ttlAt": null })),
        (status = 404, description = "`not_found`: this instance does not serve prepare keys"),
        (status = 409, description = "`already_prepared`: another client has reserved the key"),
    ),
)]
async fn prepare_key(
    call: Call<AppendScope, KeyPath>,
    uri: Uri,
    Body(body): Body<PrepareRequest>,
) -> Result<impl IntoResponse, Problem> {
    let (keys, key) = keys(&call.state, call.path)?;
    let end = end(&call.state, body.ttl, body.ttl_at).await?;
    let (name, value) = (keys.name(), body.value.0);
    if !keys.prepare(key.as_str(), &value, end.map_or(Ttl::Forever, Ttl::At)).await? {
        let detail = format!("{name} {:?} is already reserved", key.as_str());
        return Err(Problem::conflict(ProblemCode::AlreadyPrepared, detail));
    }
    debug!(actor = &*call.actor, name = name.as_str(), key = key.as_str(), "prepared a key");
    Ok((StatusCode::CREATED, location(uri.path()), KeyAnswer::new(&key, value, end)))
}

/// Read a reserved key
#[utoipa::path(get, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(KeyPath),
    responses(
        (status = 200, description = "the key is reserved", body = KeyAnswer),
        (status = 404, description = "`not_found`: the key is not reserved, or has expired"),
    ),
)]
async fn get_prepared_key(
    call: Call<ReadScope, KeyPath>,
    answering: Answering,
) -> Result<Response, Problem> {
    let turn = answering.turn().await?;
    let (keys, key) = keys(&call.state, call.path)?;
    let held = keys.get(key.as_str()).await?.ok_or_else(|| not_reserved(&keys, &key))?;
    turn.json(&KeyAnswer::new(&key, held.value, held.ttl_at).0)
}

/// Change the value and the end of a reserved key
#[utoipa::path(put, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(KeyPath),
    request_body(content = ReprepareRequest, example = json!({ "oldValue": "ada", "value": "bob" })),
    responses(
        (status = 200, description = "a majority has the change", body = KeyAnswer),
        (status = 404, description = "`not_found`: the key is not reserved, or has expired"),
        (status = 409, description = "`value_mismatch`: the key has another value than `oldValue`"),
    ),
)]
async fn reprepare_key(
    call: Call<AppendScope, KeyPath>,
    Body(body): Body<ReprepareRequest>,
) -> Result<Json<KeyAnswer>, Problem> {
    let (keys, key) = keys(&call.state, call.path)?;
    let end = end(&call.state, body.ttl, body.ttl_at).await?;
    let (old, value) = (body.old_value.map(|old| old.0), body.value.0);
    let ttl = end.map_or(Ttl::Forever, Ttl::At);
    let outcome = keys.try_reprepare(key.as_str(), old.as_ref(), &value, ttl).await?;
    check(outcome, &keys, &key)?;
    debug!(actor = &*call.actor, name = keys.name().as_str(), key = key.as_str(), "changed a key");
    Ok(KeyAnswer::new(&key, value, end))
}

/// The value that a key must have.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ValueQuery {
    /// Release the key only if it has this value: JSON, or a text that is not JSON.
    #[serde(deserialize_with = "json_or_text")]
    #[param(value_type = Option<String>)]
    value: Option<AnyJson>,
}

/// A value by itself, with the limits of one in a body.
#[derive(Deserialize)]
struct JsonMember {
    value: AnyJson,
}

fn json_or_text<'de, D: Deserializer<'de>>(from: D) -> Result<Option<AnyJson>, D::Error> {
    checked(from, |text: Option<String>| {
        let Some(text) = text else { return Ok(None) };
        match parse(&text) {
            Ok((value, flaws)) => {
                let member = doc! { "value": value };
                let read = read(member, Form::Json, flaws);
                let first = |flaws: Vec<Flaw>| flaws.into_iter().next().map(|flaw| flaw.detail);
                read.map(|JsonMember { value }| Some(value))
                    .map_err(|f| first(f).unwrap_or_default())
            }
            Err(_) => Ok(Some(AnyJson(text.into()))),
        }
    })
}

/// Release a key
#[utoipa::path(delete, path = "/v1/prepare/{name}/{key}", tag = "prepare",
    params(KeyPath, ValueQuery),
    responses(
        (status = 204, description = "the key is released"),
        (status = 404, description = "`not_found`: the key was not reserved, or had expired"),
        (status = 409, description = "`value_mismatch`: the key has another value"),
    ),
)]
async fn rollback_prepared_key(
    call: Call<AppendScope, KeyPath, ValueQuery>,
    _: NoBody,
) -> Result<StatusCode, Problem> {
    let (keys, key) = keys(&call.state, call.path)?;
    let value = call.query.value.map(|value| value.0);
    check(keys.try_rollback(key.as_str(), value.as_ref()).await?, &keys, &key)?;
    debug!(actor = &*call.actor, name = keys.name().as_str(), key = key.as_str(), "released a key");
    Ok(StatusCode::NO_CONTENT)
}

fn keys(state: &Api, path: KeyPath) -> Result<(PrepareKey, IdText), Problem> {
    let context = state.event_store()?.context().clone();
    Ok((PrepareKey::new(context, path.name), path.key))
}

/// The end of a key by MongoDB's clock, computed here so that answer and document have the same. `None`
/// for never.
async fn end(
    state: &Api,
    ttl: Option<DurationText>,
    ttl_at: Option<Time>,
) -> Result<Option<DateTime>, Problem> {
    if ttl.is_none() && ttl_at.is_none() {
        return Ok(None);
    }
    let context = state.event_store()?.context();
    let now = ServerClock::asked(&context.database(CollectionKind::Prepare)).await?;
    let end = ttl_at.map(Time::date).unwrap_or_else(|| {
        let millis = ttl.unwrap_or_default().0.as_micros().div_ceil(1000);
        let millis = i64::try_from(millis).unwrap_or(i64::MAX);
        DateTime::from_millis(now.timestamp_millis().saturating_add(millis))
    });
    Ok(Ttl::end_at(end.max(now)))
}

fn check(outcome: KeyOutcome, keys: &PrepareKey, key: &IdText) -> Result<(), Problem> {
    match outcome {
        KeyOutcome::Done => Ok(()),
        KeyOutcome::NotReserved => Err(not_reserved(keys, key)),
        KeyOutcome::Differs => {
            let detail = format!("{} {:?} has another value", keys.name(), key.as_str());
            Err(Problem::conflict(ProblemCode::ValueMismatch, detail))
        }
    }
}

fn not_reserved(keys: &PrepareKey, key: &IdText) -> Problem {
    Problem::not_found(format!("{} {:?} is not reserved", keys.name(), key.as_str()))
}

impl From<PrepareError> for Problem {
    fn from(error: PrepareError) -> Self {
        let detail = error.to_string();
        match error {
            PrepareError::Key(wrong) => Self::wrong("key", wrong.to_string()),
            PrepareError::SameKey => Self::wrong("key", detail),
            PrepareError::NotPrepared => Self::conflict(ProblemCode::ValueMismatch, detail),
            PrepareError::TooLarge => Self::too_large(detail),
            PrepareError::TooDeep | PrepareError::Encode(_) => Self::wrong("value", detail),
            PrepareError::Decode(_) => Self::fault(&error),
            PrepareError::Contended => Self::unavailable(detail),
            PrepareError::Schema(source) => Self::of_schema(&source),
            PrepareError::Store(source) => source.into(),
        }
    }
}
