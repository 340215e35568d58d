//! Enqueues records without an event.

use axum::Json;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::IntoResponse;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bson::raw::RawDocumentBuf;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Document};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use tracing::debug;
use utoipa::ToSchema;
use utoipa::openapi::schema::{
    AnyOfBuilder, Object, ObjectBuilder, OneOfBuilder, Schema, SchemaType, Type,
};
use uuid::Uuid;

use crate::events::Flaw;
use crate::events::json::{Json as AnyJson, JsonObject, Request, Time, checked, if_present};
use crate::http::command::IDEMPOTENCY_KEY;
use crate::http::extract::{AppendScope, Body, Call, NoParameters};
use crate::http::limits::InRecords;
use crate::http::location::{below, location};
use crate::http::params::{INVALID_ID, RecordIdText};
use crate::http::problem::Problem;
use crate::http::state::Services;
use crate::http::trace;
use crate::ids::RecordId;
use crate::ops::problem_code::ProblemCode;
use crate::outbox::fields::{
    CONTENT_TYPE, CREATED_AT, DEDUP_KEY, DESTINATION, HEADERS, ID, KEY, PARTITION, PAYLOAD,
    PENDING, SCHEDULED, SEQ, STATUS, TENANT_ID, TYPE, VISIBLE_AT,
};
use crate::outbox::inspect::Inspector;
use crate::outbox::position::NO_SEQ;
use crate::outbox::reason::MAX_RECORD_BYTES;
use crate::outbox::record::Record;
use crate::outbox::undecoded::RawId;
use crate::partition;
use crate::store::limits;
use crate::store::{DUPLICATE_KEY, ServerClock, within};
use crate::wakeup::ScanHint;

/// The code of MongoDB when a validator refuses a document.
const VALIDATION_FAILED: i32 = 121;

/// A record, with `payload` or `payloadBase64`. The server sets its partition and its place in the order.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct RecordRequest {
    /// The message id. By default a new UUID.
    #[schema(value_type = Option<RecordIdText>)]
    id: Option<NewRecordId>,
    /// The key: records of one key are delivered in order. Without it there is no order.
    key: Option<String>,
    /// The message type, which routes match.
    #[serde(rename = "type")]
    kind: String,
    /// The payload.
    #[serde(deserialize_with = "if_present")]
    #[schema(value_type = AnyJson, required = false)]
    payload: Option<AnyJson>,
    /// A binary payload in base64, in place of `payload`.
    #[serde(deserialize_with = "if_present")]
    #[schema(value_type = Base64, required = false, inline)]
    payload_base64: Option<Base64>,
    /// The content type. By default it follows from the payload.
    content_type: Option<String>,
    /// Headers of the message. The `traceparent` and `tracestate` of the request are added.
    #[schema(schema_with = headers_schema)]
    headers: Option<JsonObject>,
    /// The exchange or topic, in place of that of the route. The configuration of the sink must permit it.
    destination: Option<String>,
    /// The tenant, which is sent as a header.
    tenant_id: Option<String>,
    /// A key that is unique while the record exists.
    dedup_key: Option<String>,
    /// Not delivered before this time, by MongoDB's clock.
    visible_at: Option<Time>,
    /// The timestamp of the message. By default the present time by MongoDB's clock.
    created_at: Option<Time>,
}

impl Request for RecordRequest {
    fn conflicts(&self) -> Vec<Flaw> {
        let payload = match (&self.payload, &self.payload_base64) {
            (Some(_), Some(_)) => Some("conflicts with payloadBase64; remove one of the two"),
            (None, None) => Some("is missing, and payloadBase64 too"),
            _ => None,
        };
        let headers = self.headers.iter().flat_map(|headers| &headers.0);
        let nested =
            headers.filter(|(_, value)| matches!(value, Bson::Document(_) | Bson::Array(_)));
        let nested = nested.map(|(name, _)| {
            Flaw::new(format!("{HEADERS}.{name}"), "is an object or array; write a scalar")
        });
        payload.map(|detail| Flaw::new(PAYLOAD, detail)).into_iter().chain(nested).collect()
    }
}

/// The schema of the rule that a record has one payload.
pub(in crate::http) fn one_payload_schema() -> Schema {
    let with = |name| ObjectBuilder::new().required(name);
    OneOfBuilder::new().item(with(PAYLOAD)).item(with("payloadBase64")).into()
}

fn headers_schema() -> Schema {
    let scalars = [Type::Null, Type::Boolean, Type::String, Type::Number].map(Object::with_type);
    let integer = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(isize::MIN))
        .maximum(Some(isize::MAX));
    let scalar = scalars.into_iter().fold(AnyOfBuilder::new(), AnyOfBuilder::item).item(integer);
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
        .description(Some("The request's traceparent and tracestate are added to them."))
        .property_names(Some(
            ObjectBuilder::new().schema_type(Type::String).pattern(Some("^[^\\u0000]*$")),
        ))
        .additional_properties(Some(Schema::from(scalar)))
        .into()
}

/// The id of a new record.
#[derive(Debug)]
struct NewRecordId(RecordId);

impl Default for NewRecordId {
    fn default() -> Self {
        Self(RecordId::Uuid(Uuid::new_v4()))
    }
}

impl<'de> Deserialize<'de> for NewRecordId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| match RecordId::parse_candidates(&text).into_iter().next() {
            Some(id) if !text.is_empty() => Ok(Self(id)),
            _ => Err(INVALID_ID.to_owned()),
        })
    }
}

/// Bytes in base64.
#[derive(Debug, Default, ToSchema)]
#[schema(value_type = String, pattern = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$")]
struct Base64(Vec<u8>);

impl<'de> Deserialize<'de> for Base64 {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| {
            let bytes = STANDARD.decode(text).map(Self);
            bytes.map_err(|_| "must be base64 (RFC 4648, with padding)".to_owned())
        })
    }
}

/// The id of a record that was enqueued.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EnqueueAnswer {
    /// The message id, as consumers receive it.
    id: String,
}

/// Enqueue a record, without an event
#[utoipa::path(post, path = "/v1/outbox/records", tag = "outbox",
    request_body(content = RecordRequest, example = json!({
        "key": "o-1", "type": "OrderPlaced", "payload": { "total": 120 },
    })),
    responses(
        (status = 201, description = "a majority has the record", headers(("Location" = String, description = "the path of the record")),
            body = EnqueueAnswer,
            example = json!({ "id": "order-7-created" })),
        (status = 409, description = "`duplicate_record`: a record with this `id` or `dedupKey` exists"),
    ),
)]
pub(super) async fn enqueue_outbox_record(
    call: Call<AppendScope, NoParameters, NoParameters, InRecords>,
    uri: Uri,
    headers: HeaderMap,
    Body(mut body): Body<RecordRequest>,
) -> Result<impl IntoResponse, Problem> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        // Ignored, it would promise what this call does not do.
        let refused =
            "this call accepts none; send an id: a repeated request with it enqueues nothing";
        return Err(Problem::wrong(IDEMPOTENCY_KEY, refused));
    }
    call.reach.record(&body.kind, body.destination.as_deref())?;
    body.tenant_id = call.reach.tenant(body.tenant_id)?;
    let services = call.state.services()?;
    let now = ServerClock::asked(services.collections.database()).await?;
    let raw = encode(body.into_document(&headers, now))?;
    let record = Record::read(&raw);
    let id = record.id.to_string();
    insert(services, &raw, &record.id).await?;
    debug!(actor = &*call.actor, id, "enqueued a record");
    // A text that means this id alone: another record may have the same one of another kind.
    let location = location(&below(uri.path(), &RawId::from(&Bson::from(&record.id)).text()));
    if let Some(wake) = &services.wake {
        let partition = record.hashed_partition();
        wake.at(ScanHint::of(partition, record.lane, record.id));
    }
    Ok((StatusCode::CREATED, location, Json(EnqueueAnswer { id })))
}

impl RecordRequest {
    /// The record as stored, with MongoDB's time.
    fn into_document(self, headers: &HeaderMap, now: DateTime) -> Document {
        let mut document = Document::new();
        document.insert(ID, &self.id.unwrap_or_default().0);
        if let Some(key) = &self.key {
            document.insert(PARTITION, i32::from(partition::of_key(key)));
        }
        let bytes = |Base64(bytes)| Binary { subtype: BinarySubtype::Generic, bytes }.into();
        let payload = self.payload.map(|payload| payload.0);
        let mut table = self.headers.unwrap_or_default().0;
        let traced = trace::read(headers);
        for (name, value) in [(trace::PARENT, traced.parent), (trace::STATE, traced.state)] {
            // The record's own header takes precedence.
            if let (Some(value), false) = (value, table.contains_key(name)) {
                table.insert(name, value);
            }
        }
        let visible_at = self.visible_at.map(Time::date);
        let is_scheduled = visible_at.is_some_and(|at| at > now);
        let fields = [
            (KEY, self.key.map(Bson::from)),
            (TYPE, Some(self.kind.into())),
            (PAYLOAD, payload.or_else(|| self.payload_base64.map(bytes))),
            (CONTENT_TYPE, self.content_type.map(Bson::from)),
            (DESTINATION, self.destination.map(Bson::from)),
            (TENANT_ID, self.tenant_id.map(Bson::from)),
            (DEDUP_KEY, self.dedup_key.map(Bson::from)),
            (HEADERS, (!table.is_empty()).then_some(table.into())),
            (STATUS, Some(if is_scheduled { SCHEDULED } else { PENDING }.into())),
            // The server replaces it with its cluster time.
            (SEQ, Some(NO_SEQ.into())),
            (CREATED_AT, Some(self.created_at.map_or(now, Time::date).into())),
            (VISIBLE_AT, visible_at.map(Bson::from)),
        ];
        document
            .extend(fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        document
    }
}

/// Encodes the record, and checks it as a relay does.
fn encode(document: Document) -> Result<RawDocumentBuf, Problem> {
    let raw = RawDocumentBuf::try_from(&document)
        .map_err(|error| Problem::wrong("", format!("cannot be stored as BSON: {error}")))?;
    if raw.as_bytes().len() > MAX_RECORD_BYTES {
        return Err(Problem::too_large("a record must have at most 16 MiB as BSON"));
    }
    match Record::read(&raw).content() {
        Ok(_) => Ok(raw),
        Err(malformed) => Err(Problem::wrong(malformed.field, malformed.why)),
    }
}

async fn insert(services: &Services, raw: &RawDocumentBuf, id: &RecordId) -> Result<(), Problem> {
    let records = services.collections.records();
    let inserting = records.insert_one(raw).into_future();
    let error = match within("enqueue a record", limits::BATCH_TIMEOUT, inserting).await {
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
            let detail = format!("a record with this {field} already exists");
            Err(Problem::conflict(ProblemCode::DuplicateRecord, detail))
        }
        Some(VALIDATION_FAILED) => {
            Err(Problem::wrong("", "the validator of outbox_records rejects it"))
        }
        _ => Err(error.into()),
    }
}
