//! A source document → the record, or why it is skipped.

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, DateTime, Document};
use postrider_outbox::NewRecord;
use postrider_outbox::ids::RecordId;
use postrider_outbox::reason::MAX_RECORD_BYTES;

use crate::config::PayloadForm;
use crate::mapping::{Mapping, StatusWords};
use crate::value::{FieldValue, Found, at, extended_json, find, not_json, scalar_text};

/// A document that must be copied.
#[derive(Clone, Debug)]
pub struct CopyCandidate {
    /// Its `_id` in the source.
    pub id: Bson,
    /// Its status as it was read; `None` where the source has no state.
    pub status: Option<Bson>,
    /// The record.
    pub record: RawDocumentBuf,
    /// The size of the document in the source.
    pub bytes: usize,
}

/// Why a document stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SkipReason {
    /// Its status is none of the mapping.
    UnknownStatus,
    /// It has no key, type, payload or id, or one of an invalid type.
    Malformed,
    /// It is dead or exhausted.
    Failed,
    /// The outbox has a record of its id.
    Duplicate,
    /// It changed between the read and the transaction.
    Changed,
    /// MongoDB refuses the record or the mark.
    Refused,
}

impl SkipReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::UnknownStatus,
        Self::Malformed,
        Self::Failed,
        Self::Duplicate,
        Self::Changed,
        Self::Refused,
    ];

    /// Its label.
    pub fn label(self) -> &'static str {
        match self {
            Self::UnknownStatus => "unknown_status",
            Self::Malformed => "malformed",
            Self::Failed => "failed",
            Self::Duplicate => "duplicate",
            Self::Changed => "changed",
            Self::Refused => "refused",
        }
    }
}

/// A document that stays as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct SkippedDocument {
    /// Its `_id`, as text.
    pub id: String,
    /// The class of the reason.
    pub reason: SkipReason,
    /// The field, and what is wrong with it.
    pub detail: String,
}

/// What became of a document that was read.
#[derive(Clone, Debug)]
pub enum ReadOutcome {
    /// It must be copied.
    Copy(Box<CopyCandidate>),
    /// It was delivered.
    Delivered,
    /// It stays as it is.
    Skip(SkippedDocument),
}

enum Meaning {
    Undelivered,
    Delayed,
    Delivered,
}

/// Reads a document; `now` is the server's time.
pub fn read(mapping: &Mapping, raw: &RawDocument, now: DateTime) -> ReadOutcome {
    let Ok(document) = Document::try_from(raw) else {
        let id = raw.get("_id").ok().flatten().and_then(|id| Bson::try_from(id).ok());
        let id = id.map_or_else(|| "?".to_owned(), |id| RecordId::from(id).to_string());
        let detail = "the document cannot be decoded".to_owned();
        return ReadOutcome::Skip(SkippedDocument { id, reason: SkipReason::Malformed, detail });
    };
    let id = document.get("_id").cloned().unwrap_or(Bson::Null);
    let examined = status_of(mapping, &document).and_then(|status| {
        let record = examine(mapping, &document, status.as_ref(), now)?;
        Ok(record.map(|record| (status, record)))
    });
    match examined {
        Ok(None) => ReadOutcome::Delivered,
        Ok(Some((status, record))) => ReadOutcome::Copy(Box::new(CopyCandidate {
            id,
            status,
            record,
            bytes: raw.as_bytes().len(),
        })),
        Err((reason, detail)) => {
            let id = RecordId::from(id).to_string();
            ReadOutcome::Skip(SkippedDocument { id, reason, detail })
        }
    }
}

/// The status of a document; `None` where it is absent or null, or the source has none.
fn status_of(mapping: &Mapping, document: &Document) -> Result<Option<Bson>, (SkipReason, String)> {
    let Some(StatusWords { path, .. }) = &mapping.status else { return Ok(None) };
    match find(document, path) {
        Ok(None) => Ok(None),
        Ok(Some(Found::Value(status))) => Ok(Some(status)),
        Ok(Some(Found::Json(_))) | Err(_) => {
            let detail = format!("{path} is inside of a text, where MongoDB cannot change it");
            Err((SkipReason::Malformed, detail))
        }
    }
}

fn examine(
    mapping: &Mapping,
    document: &Document,
    status: Option<&Bson>,
    now: DateTime,
) -> Result<Option<RawDocumentBuf>, (SkipReason, String)> {
    let meaning = match &mapping.status {
        None => Meaning::Undelivered,
        Some(words) => meaning(mapping, words, status, document)?,
    };
    if let Meaning::Delivered = meaning {
        return Ok(None);
    }
    if let Some(words) = &mapping.status {
        check_mark(words, status)?;
    }
    let mut record = record(mapping, document).map_err(|detail| (SkipReason::Malformed, detail))?;
    if let Meaning::Delayed = meaning
        && let Some(path) = mapping.status.as_ref().and_then(|status| status.due.as_ref())
    {
        match at(document, path) {
            Some(Bson::DateTime(due)) if due > now => record = record.scheduled_for(due),
            Some(Bson::DateTime(_)) | None => {}
            Some(_) => return Err((SkipReason::Malformed, format!("{path} is not a date"))),
        }
    }
    let record = record.into_document();
    let record = record.map_err(|refusal| (SkipReason::Malformed, refusal.to_string()))?;
    let record = RawDocumentBuf::try_from(&record);
    let record = record.map_err(|error| (SkipReason::Malformed, error.to_string()))?;
    if record.as_bytes().len() > MAX_RECORD_BYTES {
        return Err((SkipReason::Malformed, "the record would be larger than 16 MB".to_owned()));
    }
    Ok(Some(record))
}

fn meaning(
    mapping: &Mapping,
    status: &StatusWords,
    found: Option<&Bson>,
    document: &Document,
) -> Result<Meaning, (SkipReason, String)> {
    let word = found.and_then(status_text);
    let shown =
        word.clone().unwrap_or_else(|| "absent, or not a text, integer or boolean".to_owned());
    let is = |words: &[String]| word.as_ref().is_some_and(|word| words.contains(word));
    if is(&status.delivered) {
        return Ok(Meaning::Delivered);
    }
    if is(&status.delayed) {
        return Ok(Meaning::Delayed);
    }
    if is(&status.undelivered) {
        return Ok(Meaning::Undelivered);
    }
    if is(&status.failed) {
        let retries = status.retries.as_ref();
        let has_retries = retries.is_some_and(|(path, most)| {
            at(document, path).as_ref().and_then(integer).is_some_and(|tried| tried < *most)
        });
        return if has_retries || mapping.copy_failed {
            Ok(Meaning::Undelivered)
        } else {
            Err((SkipReason::Failed, format!("{} = {shown}", status.path)))
        };
    }
    Err((SkipReason::UnknownStatus, format!("{} = {shown}", status.path)))
}

/// Refuses a document whose status is of another type than the mark: the mark would not be one of the source's words.
fn check_mark(words: &StatusWords, found: Option<&Bson>) -> Result<(), (SkipReason, String)> {
    let fits = match found {
        Some(Bson::Boolean(_)) => words.mark.parse::<bool>().is_ok(),
        Some(Bson::Int32(_)) => words.mark.parse::<i32>().is_ok(),
        Some(Bson::Int64(_)) => words.mark.parse::<i64>().is_ok(),
        _ => true,
    };
    if fits {
        return Ok(());
    }
    let shown = found.and_then(status_text).unwrap_or_default();
    let detail = format!("{} = {shown} is not of the type of the mark {}", words.path, words.mark);
    Err((SkipReason::Malformed, detail))
}

fn status_text(value: &Bson) -> Option<String> {
    match value {
        Bson::String(text) => Some(text.clone()),
        Bson::Boolean(is) => Some(is.to_string()),
        other => integer(other).map(|number| number.to_string()),
    }
}

fn integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some((*number).into()),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}

fn record(mapping: &Mapping, document: &Document) -> Result<NewRecord, String> {
    let of = |what: &str, value: &FieldValue| {
        value.of(document).map_err(|detail| format!("{what} {detail}"))
    };
    let id = of("the id", &mapping.id)?.ok_or("the id is absent")?;
    let id = RecordId::from(id);
    if !id.is_well_formed() {
        return Err("the id is not a UUID, ObjectId, text or integer".to_owned());
    }
    let kind = match of("the type", &mapping.kind)? {
        Some(Bson::String(kind)) => kind,
        Some(_) => return Err("the type is not a text".to_owned()),
        None => return Err("the type is absent".to_owned()),
    };
    let payload = mapping.payload.found(document);
    let payload = match payload.map_err(|detail| format!("the payload {detail}"))? {
        Some(payload) => payload,
        // (Debezium sends a tombstone.)
        None if mapping.form == PayloadForm::Canonical && mapping.payload.is_null(document) => {
            Found::Value(Bson::Null)
        }
        None => return Err("the payload is absent".to_owned()),
    };
    let (payload, is_json) = payload_of(mapping.form, payload)?;
    let mut record = NewRecord::new(kind, payload).id(id);
    if is_json {
        record = record.content_type("application/json");
    }
    match mapping.key.as_ref().map(|key| of("the key", key)).transpose()?.flatten() {
        Some(key) => {
            record = record
                .key(scalar_text(&key).ok_or("the key is not a text, integer, UUID or ObjectId")?)
        }
        None if mapping.key_is_optional => {}
        None => return Err("the key is absent".to_owned()),
    }
    if let Some(destination) = &mapping.destination {
        let Some(Bson::String(destination)) = of("the destination", destination)? else {
            return Err("the destination is absent, or not a text".to_owned());
        };
        record = record.destination(destination);
    }
    let headers = mapping.headers.as_ref().map(|headers| of("the headers", headers));
    if let Some(headers) = headers.transpose()?.flatten() {
        for (name, value) in headers_of(headers)? {
            if matches!(value, Bson::Document(_) | Bson::Array(_)) {
                return Err(format!("the header {name} is a document or an array"));
            }
            if value != Bson::Null {
                record = record.header(name, value);
            }
        }
    }
    for (name, value) in &mapping.header {
        if let Some(value) = of(&format!("the header {name}"), value)? {
            record = record.header(name, value);
        }
    }
    Ok(record)
}

/// The payload of the record, and whether it is a text with JSON.
fn payload_of(form: PayloadForm, payload: Found) -> Result<(Bson, bool), String> {
    let of_payload = |detail| format!("the payload {detail}");
    let payload = match (form, payload) {
        (_, Found::Value(payload)) => payload,
        // (CAP sends a message without a body.)
        (PayloadForm::Json, Found::Json(text)) if text == "null" => return Ok((Bson::Null, false)),
        // (Digits, spaces, and the order of names, stay as they are written.)
        (PayloadForm::Json, Found::Json(text)) => return Ok((text.into(), true)),
        (_, Found::Json(text)) => match extended_json(&text).map_err(of_payload)? {
            Bson::Null if form != PayloadForm::Canonical => {
                return Err("the payload is absent".to_owned());
            }
            payload => payload,
        },
    };
    match (form, payload) {
        (PayloadForm::Bson, payload) => Ok((payload, false)),
        (PayloadForm::Json, Bson::String(text)) => {
            match serde_json::from_str::<&serde_json::value::RawValue>(&text) {
                Ok(_) => Ok((text.into(), true)),
                Err(error) => Err(format!("the payload {}", not_json(&error))),
            }
        }
        (PayloadForm::Json, payload) => {
            Ok((payload.into_relaxed_extjson().to_string().into(), true))
        }
        (PayloadForm::ExtendedJson, Bson::String(text)) => {
            Ok((extended_json(&text).map_err(of_payload)?, false))
        }
        (PayloadForm::ExtendedJson, _) => Err("the payload is not a text".to_owned()),
        (PayloadForm::Canonical, payload @ Bson::Document(_)) => {
            Ok((payload.into_canonical_extjson().to_string().into(), true))
        }
        (PayloadForm::Canonical, payload @ (Bson::Null | Bson::Binary(_))) => Ok((payload, false)),
        (PayloadForm::Canonical, payload) => match plain(payload) {
            serde_json::Value::String(text) => Ok((text.into(), false)),
            value => Ok((value.to_string().into(), true)),
        },
    }
}

/// A value as Debezium converts it outside of a payload document, and Kafka Connect then writes it as JSON.
fn plain(value: Bson) -> serde_json::Value {
    match value {
        Bson::Document(document) => {
            document.into_iter().map(|(name, value)| (name, plain(value))).collect()
        }
        Bson::Array(values) => values.into_iter().map(plain).collect(),
        Bson::DateTime(at) => at.timestamp_millis().into(),
        Bson::ObjectId(id) => id.to_hex().into(),
        Bson::Decimal128(number) => number.to_string().into(),
        other => other.into_relaxed_extjson(),
    }
}

fn headers_of(headers: Bson) -> Result<Document, String> {
    let headers = match headers {
        Bson::String(text) => {
            extended_json(&text).map_err(|detail| format!("the headers {detail}"))?
        }
        other => other,
    };
    match headers {
        Bson::Document(headers) => Ok(headers),
        _ => Err("the headers are not a document".to_owned()),
    }
}
