//! Append.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tracing::debug;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::events::{Append, AppendError, Appended, Expected, NewEvent, Trace};
use crate::http::auth::{self, Caller};
use crate::http::events::{id_of, name_of, store};
use crate::http::fields::Fields;
use crate::http::json::Body;
use crate::http::problem::{FieldError, Problem};
use crate::http::query::{Path, Query};
use crate::http::scan;
use crate::http::schemas::id_text;
use crate::http::state::Shared;
use crate::http::trace;
use crate::names::{AggregateId, AggregateName};

/// The body.
pub(in crate::http) fn schema() -> Value {
    let object = json!({ "$ref": "#/components/schemas/JsonObject" });
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["requestId", "events"],
        "properties": {
            "requestId": {
                "type": "string", "minLength": 1, "maxLength": 255,
                "description": "The same again is answered with what came of the first.",
            },
            "commandId": id_text("Identifies the command."),
            "expectedVersion": {
                "description": "The version before this append; 0 is none. Without it: any.",
                "anyOf": [
                    { "type": "null" },
                    { "type": "integer", "minimum": 0, "maximum": i64::MAX },
                    { "enum": ["any", "none", "exists"] },
                ],
            },
            "tenantId": id_text("Passed through as a header of the messages."),
            "ownerId": id_text("The owner."),
            "header": { "anyOf": [{ "type": "null" }, object] },
            "events": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": false,
                    "required": ["name", "body"],
                    "properties": {
                        "name": {
                            "type": "string", "minLength": 1, "maxLength": 255,
                            "description": "The type of its message; 255 bytes at most.",
                        },
                        "revision": id_text("The revision of its body's form."),
                        "bodyType": id_text("What a reader makes of its body."),
                        "body": object,
                    },
                },
            },
        },
    })
}

/// What came of an append.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct AppendedBody {
    /// Of the event stream's document.
    id: String,
    aggregate_id: String,
    /// The aggregate's version now.
    version: i64,
    /// How many events there were.
    size: i64,
    /// By MongoDB's clock, in milliseconds since 1970.
    create_time: i64,
    /// The message ids of the events, in their order.
    records: Vec<Uuid>,
    /// Whether an earlier request of the same id has done it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    replayed: bool,
}

impl From<Appended> for AppendedBody {
    fn from(done: Appended) -> Self {
        let Appended { id, aggregate_id, version, size, create_time, records, replayed } = done;
        Self { id, aggregate_id, version, size, create_time, records, replayed }
    }
}

/// Append events to an aggregate, and enqueue each as a message, in one transaction
#[utoipa::path(post, path = "/v1/aggregates/{name}/{id}/events", tag = "events",
    params(
        ("name" = String, Path, description = "the kind of aggregate"),
        ("id" = String, Path, description = "the aggregate"),
    ),
    request_body(content = ref("#/components/schemas/Append"), content_type = "application/json"),
    responses(
        (status = 201, description = "a majority has it", body = AppendedBody),
        (status = 200, description = "an earlier request of this id has done it: its answer", body = AppendedBody),
        (status = 404, description = "`not_found`: this instance hosts no events"),
        (status = 409, description = "`version_conflict` or `duplicate_aggregate`, with `actual`; `duplicate_request`"),
    ),
)]
pub(super) async fn append(
    caller: Caller<auth::Append>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<(StatusCode, Json<AppendedBody>), Problem> {
    query.finish()?;
    let (name, id) = (name_of(&path)?, id_of(&path)?);
    let append = read(name, id, body, &headers)?;
    let done = store(&shared)?.append(append).await?;
    debug!(
        actor = &*caller.name,
        aggregate = done.aggregate_id,
        version = done.version,
        replayed = done.replayed,
        "appended"
    );
    let status = if done.replayed { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(done.into())))
}

/// Reads a body, in which these fields win: for the command line.
///
/// # Errors
///
/// All that is wrong with it.
pub(crate) fn parse(
    name: AggregateName,
    id: AggregateId,
    text: &str,
    given: Map<String, Value>,
) -> Result<Append, Vec<FieldError>> {
    let one = |detail: String| vec![FieldError { field: "the body".to_owned(), detail }];
    let value = serde_json::from_str(text).map_err(|error| one(format!("is no JSON: {error}")))?;
    let Value::Object(mut fields) = value else {
        return Err(one("is to be an object".to_owned()));
    };
    fields.extend(given);
    let body = Fields::new(fields, scan::faults(text));
    read(name, id, body, &HeaderMap::new()).map_err(Problem::into_errors)
}

/// The answer, as it is sent.
pub(crate) fn answer(done: Appended) -> Value {
    json!(AppendedBody::from(done))
}

fn read(
    name: AggregateName,
    id: AggregateId,
    mut body: Fields,
    headers: &HeaderMap,
) -> Result<Append, Problem> {
    let request_id = body.required_text("requestId").unwrap_or_default();
    let expected = expected(&mut body);
    let (command_id, tenant_id) = (body.text("commandId"), body.text("tenantId"));
    let owner_id = body.text("ownerId");
    let header = body.document("header").unwrap_or_default();
    let mut events = Vec::new();
    for mut event in body.objects("events") {
        let new = NewEvent {
            name: event.required_text("name").unwrap_or_default(),
            revision: event.text("revision"),
            body_type: event.text("bodyType"),
            body: event.required_document("body").unwrap_or_default(),
        };
        event.judge(new.flaws());
        events.push(new);
        body.absorb(event);
    }
    let mut given = Trace::default();
    for (name, value) in trace::of(headers) {
        match name {
            trace::PARENT => given.parent = Some(value),
            _ => given.state = Some(value),
        }
    }
    let append = Append {
        name,
        id,
        request_id,
        command_id,
        expected,
        tenant_id,
        owner_id,
        header,
        trace: given,
        events,
    };
    body.judge(append.flaws());
    body.finish()?;
    Ok(append)
}

fn expected(body: &mut Fields) -> Expected {
    const FIELD: &str = "expectedVersion";
    let expected = match body.any(FIELD) {
        None | Some(Value::Null) => Some(Expected::Any),
        Some(Value::String(word)) => match word.as_str() {
            "any" => Some(Expected::Any),
            "none" => Some(Expected::None),
            "exists" => Some(Expected::Exists),
            _ => None,
        },
        Some(Value::Number(number)) => super::super::fields::integer(&number).map(Expected::Exact),
        Some(_) => None,
    };
    expected.unwrap_or_else(|| {
        body.wrong(FIELD, "must be a version (0 or above), \"any\", \"none\" or \"exists\"");
        Expected::Any
    })
}

impl From<AppendError> for Problem {
    fn from(error: AppendError) -> Self {
        let told = error.to_string();
        match error {
            AppendError::Invalid(flaws) => Self::invalid(
                flaws
                    .into_iter()
                    .map(|flaw| FieldError { field: flaw.field, detail: flaw.detail })
                    .collect(),
            ),
            AppendError::VersionConflict { actual, .. } => {
                Self::conflict("version_conflict", told).at_version(actual)
            }
            AppendError::DuplicateAggregate { actual } => {
                Self::conflict("duplicate_aggregate", told).at_version(actual)
            }
            AppendError::DuplicateRequest { .. } => Self::conflict("duplicate_request", told),
            AppendError::Overloaded => Self::overloaded(told),
            AppendError::Closed => Self::unavailable(told),
            AppendError::Schema(source) => Self::of_schema(&source),
            AppendError::Unavailable(ref source) | AppendError::Unknown(ref source) => {
                Self::of_meaning(source.meaning(), &error, told)
            }
        }
    }
}
