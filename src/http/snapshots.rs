//! Snapshots over HTTP: saved unless a newer one is there, and read.

use axum::Json;
use axum::extract::State;
use bson::{Bson, DateTime};
use serde::Serialize;
use serde_json::{Map, Value, json};
use tracing::debug;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::http::auth::{Append, Caller, Read};
use crate::http::events::{context, id_of, name_of};
use crate::http::fields::Fields;
use crate::http::json::Body;
use crate::http::problem::Problem;
use crate::http::query::{Path, Query};
use crate::http::schemas::{id_text, time};
use crate::http::state::Shared;
use crate::names::AggregateId;
use crate::shown;
use crate::snapshot::{Snapshot, SnapshotError, SnapshotStore};

pub(super) fn calls() -> OpenApiRouter<Shared> {
    OpenApiRouter::new().routes(routes!(save, load))
}

/// The body.
pub(super) fn save_body() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["version", "state"],
        "properties": {
            "version": {
                "type": "integer", "minimum": 1, "maximum": i64::MAX,
                "description": "That of the last event in it.",
            },
            "state": { "$ref": "#/components/schemas/JsonObject" },
            "tenantId": id_text("Whose it is."),
            "ownerId": id_text("The owner."),
            "eventId": id_text("The id of the last event's stream."),
            "firstOperator": id_text("Who did the first event; that of an earlier snapshot without it."),
            "operator": id_text("Who did the last event."),
            "firstEventTime": time("When the first event was; that of an earlier snapshot without it."),
            "eventTime": time("When the last event was."),
            "deleted": {
                "type": ["boolean", "null"],
                "description": "Whether the aggregate is deleted.",
            },
        },
    })
}

/// A snapshot as it is read.
pub(super) fn snapshot() -> Value {
    let text = json!({ "type": "string" });
    let millis = json!({ "type": "integer", "description": "Milliseconds since 1970." });
    json!({
        "type": "object",
        "required": ["contextName", "aggregateName", "aggregateId", "version", "deleted", "state"],
        "properties": {
            "contextName": text, "aggregateName": text, "aggregateId": text,
            "tenantId": text, "ownerId": text,
            "version": { "type": "integer" },
            "eventId": text, "firstOperator": text, "operator": text,
            "firstEventTime": millis, "eventTime": millis, "snapshotTime": millis,
            "deleted": { "type": "boolean" },
            "state": { "type": "object" },
        },
    })
}

/// What became of a snapshot.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct SavedBody {
    aggregate_id: String,
    /// The version of the snapshot that is there now.
    version: i64,
    /// Whether it is this one: not where a newer one was there.
    written: bool,
}

/// Save the state of an aggregate as of a version, unless a newer snapshot is there
#[utoipa::path(put, path = "/v1/aggregates/{name}/{id}/snapshot", tag = "snapshots",
    params(
        ("name" = String, Path, description = "the kind of aggregate"),
        ("id" = String, Path, description = "the aggregate"),
    ),
    request_body(content = ref("#/components/schemas/SaveSnapshot"), content_type = "application/json"),
    responses(
        (status = 200, description = "a majority has it, or a newer one", body = SavedBody),
        (status = 404, description = "`not_found`: this instance hosts no snapshots"),
    ),
)]
async fn save(
    caller: Caller<Append>,
    path: Path,
    query: Query,
    State(shared): State<Shared>,
    Body(body): Body,
) -> Result<Json<SavedBody>, Problem> {
    query.finish()?;
    let (name, id) = (name_of(&path)?, id_of(&path)?);
    let snapshot = read(id.clone(), body)?;
    let saved = SnapshotStore::new(context(&shared)?.clone()).save(&name, snapshot).await?;
    let (version, written) = (saved.version, saved.written);
    debug!(
        actor = &*caller.name,
        aggregate = id.as_str(),
        version,
        written,
        "a snapshot was saved"
    );
    Ok(Json(SavedBody { aggregate_id: id.to_string(), version, written }))
}

fn read(id: AggregateId, mut body: Fields) -> Result<Snapshot, Problem> {
    let millis = DateTime::timestamp_millis;
    let version = body.required_integer("version", 1).unwrap_or_default();
    let state = body.required_document("state").unwrap_or_default();
    let snapshot = Snapshot {
        tenant_id: body.id("tenantId"),
        owner_id: body.id("ownerId"),
        event_id: body.id("eventId"),
        first_operator: body.id("firstOperator"),
        operator: body.id("operator"),
        first_event_time: body.time("firstEventTime").map(millis),
        event_time: body.time("eventTime").map(millis),
        deleted: body.truth("deleted").unwrap_or(false),
        ..Snapshot::new(id, version, state)
    };
    body.finish()?;
    Ok(snapshot)
}

/// The newest snapshot of an aggregate, also of one that is deleted
#[utoipa::path(get, path = "/v1/aggregates/{name}/{id}/snapshot", tag = "snapshots",
    params(
        ("name" = String, Path, description = "the kind of aggregate"),
        ("id" = String, Path, description = "the aggregate"),
        ("tenantId" = Option<String>, Query, description = "of this tenant only"),
    ),
    responses(
        (status = 200, description = "the snapshot", body = ref("#/components/schemas/Snapshot")),
        (status = 404, description = "`not_found`"),
    ),
)]
async fn load(
    _: Caller<Read>,
    path: Path,
    mut query: Query,
    State(shared): State<Shared>,
) -> Result<Json<Value>, Problem> {
    let (name, id) = (name_of(&path)?, id_of(&path)?);
    let tenant = query.text("tenantId");
    query.finish()?;
    let context = context(&shared)?;
    let found = SnapshotStore::new(context.clone()).load(&name, &id, tenant.as_deref()).await?;
    let missing = || Problem::not_found(format!("{name} {:?} has no snapshot", id.as_str()));
    Ok(Json(shown(&context.settings().name, name.as_str(), found.ok_or_else(missing)?)))
}

/// With the names under which it is stored, but for the id; what is absent there is here.
fn shown(context: &str, name: &str, snapshot: Snapshot) -> Value {
    let text = |text: Option<String>| text.map(Value::from);
    let time = |millis: Option<i64>| millis.map(Value::from);
    let fields = [
        ("contextName", Some(context.into())),
        ("aggregateName", Some(name.into())),
        ("aggregateId", Some(snapshot.aggregate_id.as_str().into())),
        ("tenantId", text(snapshot.tenant_id)),
        ("ownerId", text(snapshot.owner_id)),
        ("version", Some(snapshot.version.into())),
        ("eventId", text(snapshot.event_id)),
        ("firstOperator", text(snapshot.first_operator)),
        ("operator", text(snapshot.operator)),
        ("firstEventTime", time(snapshot.first_event_time)),
        ("eventTime", time(snapshot.event_time)),
        ("snapshotTime", time(snapshot.snapshot_time)),
        ("deleted", Some(snapshot.deleted.into())),
        ("state", Some(shown::value(&Bson::Document(snapshot.state)))),
    ];
    let present = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(present.collect::<Map<_, _>>())
}

impl From<SnapshotError> for Problem {
    fn from(error: SnapshotError) -> Self {
        let told = error.to_string();
        match error {
            SnapshotError::Version(_) => Self::wrong("version", told),
            SnapshotError::TooLarge => Self::too_large(told),
            SnapshotError::TooDeep | SnapshotError::Encode(_) => Self::wrong("state", told),
            SnapshotError::Contended => Self::unavailable(told),
            SnapshotError::Schema(source) => Self::of_schema(&source),
            SnapshotError::Store(source) => source.into(),
        }
    }
}
