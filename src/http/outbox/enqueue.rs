//! A record without an event.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use bson::raw::RawDocumentBuf;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document};
use serde::Serialize;
use serde_json::{Value, json};
use tracing::debug;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::http::auth::{Append, Caller};
use crate::http::fields::Fields;
use crate::http::json::Body;
use crate::http::problem::Problem;
use crate::http::query::Query;
use crate::http::schemas::{RECORD_ID, time};
use crate::http::state::{Services, Shared};
use crate::http::trace;
use crate::ids::RecordId;
use crate::outbox::fields::{
    CONTENT_TYPE, CREATED_AT, DEDUP_KEY, DESTINATION, HEADERS, ID, KEY, PARTITION, PAYLOAD,
    PENDING, SCHEDULED, SEQ, STATUS, TENANT_ID, TYPE, VISIBLE_AT,
};
use crate::outbox::inspect::Inspector;
use crate::outbox::position::NO_SEQ;
use crate::outbox::record::Record;
use crate::outbox::undecoded::RawId;
use crate::partition;
use crate::store::limits::{self, LARGEST_DOCUMENT};
use crate::store::{DUPLICATE_KEY, ServerClock, within};
use crate::wakeup::ScanHint;

/// What MongoDB holds in one document, less what a relay adds to it.
const LARGEST: usize = LARGEST_DOCUMENT - (16 << 10);

/// The body: a record, whose partition and place are made here.
pub(in crate::http) fn schema() -> Value {
    let text = |description| json!({ "type": ["string", "null"], "description": description });
    let scalar = json!({ "anyOf": [
        { "type": ["null", "boolean", "string", "number"] },
        { "type": "integer", "minimum": i64::MIN, "maximum": i64::MAX },
    ] });
    json!({
        "type": "object",
        "additionalProperties": false,
        "required": [TYPE],
        "oneOf": [{ "required": [PAYLOAD] }, { "required": [PAYLOAD_BASE64] }],
        "properties": {
            "id": {
                "type": ["string", "null"],
                "pattern": RECORD_ID,
                "description": "A UUID, ObjectId, integer or text, as text; uuid:, oid:, int:, str: force one. A fresh UUID without it.",
            },
            KEY: text("Records of one key are delivered in order."),
            TYPE: { "type": "string", "description": "What routes match on." },
            PAYLOAD: { "$ref": "#/components/schemas/Json" },
            PAYLOAD_BASE64: {
                "type": "string",
                "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
                "description": "Bytes, in place of a payload.",
            },
            CONTENT_TYPE: text("The one that follows from the payload, without it."),
            HEADERS: {
                "type": ["object", "null"],
                "propertyNames": { "pattern": "^[^\\u0000]*$" },
                "additionalProperties": scalar,
                "description": "The request's traceparent and tracestate go to them.",
            },
            DESTINATION: text("The exchange or topic, past all routes."),
            TENANT_ID: text("Passed through as a header."),
            DEDUP_KEY: text("Unique while the record exists."),
            VISIBLE_AT: time("Not delivered before it, by MongoDB's clock."),
            CREATED_AT: time("MongoDB's time without it."),
        },
    })
}

/// In place of `payload`.
const PAYLOAD_BASE64: &str = "payloadBase64";

/// The id of what was enqueued.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Enqueued {
    /// As consumers see it.
    id: String,
}

/// Enqueue a record without an event
#[utoipa::path(post, path = "/v1/outbox/records", tag = "outbox",
    request_body(content = ref("#/components/schemas/NewRecord"), content_type = "application/json"),
    responses(
        (status = 201, description = "a majority has it", body = Enqueued),
        (status = 409, description = "`duplicate_record`: its id or dedupKey is taken"),
    ),
)]
pub(super) async fn enqueue(
    caller: Caller<Append>,
    query: Query,
    State(shared): State<Shared>,
    headers: HeaderMap,
    Body(body): Body,
) -> Result<(StatusCode, Json<Enqueued>), Problem> {
    query.finish()?;
    let asked = Asked::read(body, &headers)?;
    let services = shared.services()?;
    let raw = asked.into_record(services).await?;
    let record = Record::read(&raw);
    let id = record.id.to_string();
    insert(services, &raw, &record.id).await?;
    debug!(actor = &*caller.name, id, "a record was enqueued");
    if let Some(wake) = &services.wake {
        let partition = record.hashed_partition();
        wake.at(ScanHint::of(partition, record.lane, record.id));
    }
    Ok((StatusCode::CREATED, Json(Enqueued { id })))
}

/// What was asked for, each field of the right type.
struct Asked {
    document: Document,
    visible_at: Option<DateTime>,
    created_at: Option<DateTime>,
}

impl Asked {
    fn read(mut body: Fields, headers: &HeaderMap) -> Result<Self, Problem> {
        let mut document = Document::new();
        match body.text("id") {
            None => document.insert(ID, &RecordId::Uuid(Uuid::new_v4())),
            Some(text) => match RecordId::readings(&text).first() {
                Some(id) if !text.is_empty() => document.insert(ID, id),
                _ => {
                    body.wrong("id", "is no id: a UUID, ObjectId, integer or text, not empty");
                    None
                }
            },
        };
        if let Some(key) = body.text(KEY) {
            document.insert(PARTITION, i32::from(partition::of_key(&key)));
            document.insert(KEY, key);
        }
        if let Some(kind) = body.required_text(TYPE) {
            document.insert(TYPE, kind);
        }
        match (body.bson(PAYLOAD), body.bytes(PAYLOAD_BASE64)) {
            (Some(payload), None) => drop(document.insert(PAYLOAD, payload)),
            (None, Some(bytes)) => {
                let payload = Binary { subtype: BinarySubtype::Generic, bytes };
                document.insert(PAYLOAD, payload);
            }
            (Some(_), Some(_)) => body.wrong(PAYLOAD, "stands beside payloadBase64; keep one"),
            (None, None) => body.wrong(PAYLOAD, "is missing, and payloadBase64 too"),
        }
        for field in [CONTENT_TYPE, DESTINATION, TENANT_ID, DEDUP_KEY] {
            if let Some(text) = body.text(field) {
                document.insert(field, text);
            }
        }
        let mut table = body.document(HEADERS).unwrap_or_default();
        for (name, value) in &table {
            if matches!(value, Bson::Document(_) | Bson::Array(_)) {
                body.wrong(&format!("{HEADERS}.{name}"), "is an object or array; write a scalar");
            }
        }
        for (name, value) in trace::of(headers) {
            // The record's own win.
            table.entry(name.to_owned()).or_insert(Bson::String(value));
        }
        if !table.is_empty() {
            document.insert(HEADERS, table);
        }
        let (visible_at, created_at) = (body.time(VISIBLE_AT), body.time(CREATED_AT));
        body.finish()?;
        Ok(Self { document, visible_at, created_at })
    }

    /// The record as it is stored, dated by MongoDB, and judged as a relay will judge it.
    async fn into_record(mut self, services: &Services) -> Result<RawDocumentBuf, Problem> {
        let now = ServerClock::asked(services.collections.database()).await?;
        let is_scheduled = self.visible_at.is_some_and(|at| at > now);
        self.document.insert(STATUS, if is_scheduled { SCHEDULED } else { PENDING });
        // The server replaces it with its cluster time.
        self.document.insert(SEQ, NO_SEQ);
        self.document.insert(CREATED_AT, self.created_at.unwrap_or(now));
        if let Some(at) = self.visible_at {
            self.document.insert(VISIBLE_AT, at);
        }
        let raw = RawDocumentBuf::try_from(&self.document)
            .map_err(|error| Problem::wrong("", format!("is no BSON: {error}")))?;
        if raw.as_bytes().len() > LARGEST {
            return Err(Problem::too_large("a record has 16 MiB at most, as BSON"));
        }
        match Record::read(&raw).content() {
            Ok(_) => Ok(raw),
            Err(malformed) => Err(Problem::wrong(malformed.field, malformed.why)),
        }
    }
}

async fn insert(services: &Services, raw: &RawDocumentBuf, id: &RecordId) -> Result<(), Problem> {
    let records = services.collections.records();
    let inserting = records.insert_one(raw).into_future();
    let error = match within("enqueue a record", limits::BATCH, inserting).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    match error.code() {
        Some(DUPLICATE_KEY) => {
            let inspector = Inspector::new(services.collections.clone());
            let field = match inspector.show(&[RawId::from(&Bson::from(id))]).await? {
                Some(_) => "id",
                None => "dedupKey",
            };
            let detail = format!("there is a record with this {field}");
            Err(Problem::conflict("duplicate_record", detail))
        }
        Some(INVALID) => Err(Problem::wrong("", "the validator of outbox_records refuses it")),
        _ => Err(error.into()),
    }
}

/// A validator, which may be the user's own, refuses the record.
const INVALID: i32 = 121;
