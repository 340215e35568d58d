//! Reads and validates the producer's fields of a record.

use std::time::{Duration, SystemTime};

use bson::raw::{RawBsonRef, RawDocument};
use bson::spec::BinarySubtype;
use postrider_store::text::{MAX_NAME_CHARS, bounded};
use uuid::Uuid;

use crate::header::HeaderValue;
use crate::record::{Record, Unfit};
use crate::{fields, payload, undecoded};

/// The producer's part of a record, before routing.
#[derive(Clone, Debug, PartialEq)]
pub struct Content {
    /// The record's `_id` as text.
    pub id: String,
    /// `key`, where there is one.
    pub key: Option<String>,
    /// `type`.
    pub kind: String,
    /// `contentType`, else by the payload's BSON type.
    pub content_type: String,
    /// The body; `None` for null.
    pub payload: Option<Vec<u8>>,
    /// `headers`, in the producer's order.
    pub headers: Vec<(String, HeaderValue)>,
    /// `tenantId`.
    pub tenant_id: Option<String>,
    /// `destination`: an exchange or topic that the record names itself.
    pub destination: Option<String>,
    /// `createdAt`, else the seconds of `seq`.
    pub timestamp: Option<SystemTime>,
}

/// A producer's field that cannot be used. The record is marked dead.
///
/// `Display` is `<field>: <why>` and never quotes the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {why}")]
pub struct Malformed {
    /// The field at fault, `headers.NAME` for a header.
    pub field: String,
    /// What is wrong with it.
    pub why: String,
}

impl Malformed {
    fn new(field: &str, why: impl Into<String>) -> Self {
        Self { field: bounded(field, MAX_NAME_CHARS).into_owned(), why: why.into() }
    }
}

const WRONG_ID: &str = "is not a UUID, ObjectId, string or integer";

impl Unfit {
    /// Converts the error into the malformed field.
    pub fn malformed(self) -> Malformed {
        match self {
            Self::Nameless => Malformed::new(fields::ID, WRONG_ID),
            Self::Twice(field) => Malformed::new(field, "appears twice in the record"),
        }
    }
}

impl Record {
    /// Reads all fields of the producer.
    ///
    /// An optional field that is null counts as absent: many drivers write null
    /// for what their users left out.
    ///
    /// # Errors
    ///
    /// [`Malformed`] for the first field of a wrong type, or a missing `type` or `payload`.
    pub fn content(&self) -> Result<Content, Malformed> {
        if let Some(unfit) = self.unfit {
            return Err(unfit.malformed());
        }
        if !self.id.is_well_formed() {
            return Err(Malformed::new(fields::ID, WRONG_ID));
        }
        let mut elements = undecoded::elements(self.raw.as_bytes());
        if let Some(wrong) = elements.find(|element| std::str::from_utf8(element.name).is_err()) {
            let name = undecoded::escaped(wrong.name);
            return Err(Malformed::new(&name, "the name of the field is not valid UTF-8"));
        }
        let raw = Fields(&self.raw);
        let kind = raw.text(fields::TYPE)?;
        let kind = kind.ok_or_else(|| Malformed::new(fields::TYPE, "is missing"))?;
        let body = raw.any(fields::PAYLOAD)?;
        let body = body.ok_or_else(|| Malformed::new(fields::PAYLOAD, "is missing"))?;
        let body = payload::render(body).map_err(|why| Malformed::new(fields::PAYLOAD, why))?;
        let content_type = raw.text(fields::CONTENT_TYPE)?;
        raw.text(fields::DEDUP_KEY)?;
        Ok(Content {
            id: self.id.to_string(),
            key: raw.text(fields::KEY)?.map(str::to_owned),
            kind: kind.to_owned(),
            content_type: content_type.unwrap_or(body.content_type).to_owned(),
            payload: body.bytes,
            headers: raw.headers()?,
            tenant_id: raw.text(fields::TENANT_ID)?.map(str::to_owned),
            destination: raw.text(fields::DESTINATION)?.map(str::to_owned),
            timestamp: raw.date(fields::CREATED_AT)?.or_else(|| self.seq_time()),
        })
    }

    /// Returns the server time of the record: the seconds of its `seq`.
    pub fn seq_time(&self) -> Option<SystemTime> {
        let seconds = self.seq?.time;
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.into()))
    }
}

struct Fields<'a>(&'a RawDocument);

impl<'a> Fields<'a> {
    fn any(&self, name: &str) -> Result<Option<RawBsonRef<'a>>, Malformed> {
        for element in self.0.iter_elements() {
            let element = element.map_err(|error| Malformed::new(name, error.to_string()))?;
            if element.key().as_str() == name {
                let value = element.value();
                return value.map(Some).map_err(|_| Malformed::new(name, "is not valid BSON"));
            }
        }
        Ok(None)
    }

    fn optional(&self, name: &str) -> Result<Option<RawBsonRef<'a>>, Malformed> {
        Ok(self.any(name)?.filter(|value| !matches!(value, RawBsonRef::Null)))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, Malformed> {
        match self.optional(name)? {
            None => Ok(None),
            Some(RawBsonRef::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(name, "a string", other)),
        }
    }

    fn date(&self, name: &str) -> Result<Option<SystemTime>, Malformed> {
        match self.optional(name)? {
            None => Ok(None),
            Some(RawBsonRef::DateTime(date)) => Ok(Some(date.to_system_time())),
            Some(other) => Err(wrong_type(name, "a date", other)),
        }
    }

    fn headers(&self) -> Result<Vec<(String, HeaderValue)>, Malformed> {
        let table = match self.optional(fields::HEADERS)? {
            None => return Ok(Vec::new()),
            Some(RawBsonRef::Document(table)) => table,
            Some(other) => return Err(wrong_type(fields::HEADERS, "a document", other)),
        };
        let mut headers = Vec::new();
        for element in table.iter_elements() {
            let element =
                element.map_err(|error| Malformed::new(fields::HEADERS, error.to_string()))?;
            let name = element.key().as_str();
            let path = format!("{}.{name}", fields::HEADERS);
            let value = element.value();
            let value = value.map_err(|_| Malformed::new(&path, "is not valid BSON"))?;
            let value = header(value).ok_or_else(|| {
                wrong_type(&path, "a scalar (or binary) that a broker can carry", value)
            })?;
            headers.push((name.to_owned(), value));
        }
        Ok(headers)
    }
}

fn header(value: RawBsonRef<'_>) -> Option<HeaderValue> {
    Some(match value {
        RawBsonRef::String(text) => HeaderValue::String(text.to_owned()),
        RawBsonRef::Int32(number) => HeaderValue::Int32(number),
        RawBsonRef::Int64(number) => HeaderValue::Int64(number),
        RawBsonRef::Double(number) => HeaderValue::Double(number),
        RawBsonRef::Boolean(truth) => HeaderValue::Bool(truth),
        RawBsonRef::DateTime(date) => HeaderValue::Date(date.timestamp_millis()),
        RawBsonRef::ObjectId(id) => HeaderValue::ObjectId(id),
        RawBsonRef::Decimal128(number) => HeaderValue::Decimal128(number),
        RawBsonRef::Null => HeaderValue::Null,
        RawBsonRef::Binary(binary) => match Uuid::from_slice(binary.bytes) {
            Ok(id) if binary.subtype == BinarySubtype::Uuid => HeaderValue::Uuid(id),
            _ => HeaderValue::Binary(binary.bytes.to_vec()),
        },
        _ => return None,
    })
}

fn wrong_type(field: &str, expected: &str, found: RawBsonRef<'_>) -> Malformed {
    Malformed::new(field, format!("must be {expected}, is {:?}", found.element_type()))
}

#[cfg(test)]
mod tests {
    use bson::raw::RawDocumentBuf;
    use bson::{Bson, Document, bson, doc};

    use super::*;

    fn content(document: Document) -> Result<Content, Malformed> {
        Record::read(&RawDocumentBuf::try_from(&document).unwrap()).content()
    }

    fn with(field: &str, value: impl Into<Bson>) -> Result<Content, Malformed> {
        let mut document = doc! { "_id": "a", "type": "T", "payload": { "n": 1 } };
        document.insert(field, value);
        content(document)
    }

    #[test]
    fn content_of_a_minimal_record_is_read() {
        let content = with("status", "pending").unwrap();

        assert_eq!(content.id, "a");
        assert_eq!(content.payload.unwrap(), br#"{"n":1}"#);
        assert_eq!(content.content_type, "application/json");
        assert_eq!(content.timestamp, None);
    }

    #[test]
    fn malformed_names_each_field_of_a_wrong_type() {
        for (field, value) in [
            ("key", Bson::Int32(1)),
            ("type", Bson::Int32(1)),
            ("contentType", Bson::Boolean(true)),
            ("headers", Bson::String("a=b".into())),
            ("destination", Bson::Int32(1)),
            ("tenantId", bson!({})),
            ("createdAt", Bson::String("2026-01-01".into())),
            ("dedupKey", Bson::Int64(4)),
            ("_id", Bson::Double(1.0)),
        ] {
            let error = with(field, value).unwrap_err();

            assert_eq!(error.field, field);
        }
    }

    #[test]
    fn a_header_that_is_a_document_or_an_array_is_malformed() {
        let error = with("headers", doc! { "good": 1, "bad": [1] }).unwrap_err();

        assert_eq!(error.to_string().split(':').next().unwrap(), "headers.bad");
    }

    #[test]
    fn a_missing_type_or_payload_is_malformed_and_a_null_payload_is_not() {
        let no_type = content(doc! { "_id": 1, "payload": 1 }).unwrap_err();
        let no_payload = content(doc! { "_id": 1, "type": "T" }).unwrap_err();
        let null_payload = content(doc! { "_id": 1, "type": "T", "payload": null }).unwrap();

        assert_eq!(no_type.to_string(), "type: is missing");
        assert_eq!(no_payload.to_string(), "payload: is missing");
        assert_eq!(null_payload.payload, None);
    }

    #[test]
    fn null_counts_as_absent_for_optional_fields() {
        for field in ["key", "contentType", "headers", "destination", "tenantId", "createdAt"] {
            assert!(with(field, Bson::Null).is_ok(), "{field}");
        }
    }
}
