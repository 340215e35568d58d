//! Records to be enqueued, and what is refused in them.

use bson::{Bson, DateTime, Document, doc};
use mongodb::error::Error;
use postrider_store::text::{MAX_NAME_CHARS, bounded};
use uuid::Uuid;

use crate::fields::{
    CONTENT_TYPE, CREATED_AT, DEDUP_KEY, DESTINATION, HEADERS, ID, KEY, PARTITION, PAYLOAD,
    PENDING, SCHEDULED, SEQ, STATUS, TENANT_ID, TYPE, VISIBLE_AT,
};
use crate::ids::RecordId;
use crate::nesting;
use crate::partition;
use crate::position::NO_SEQ;

/// The name of the id in errors: a field of the record, not of the document.
const RECORD_ID: &str = "id";

/// A record to be enqueued.
#[derive(Clone, Debug)]
pub struct NewRecord {
    id: Bson,
    record_id: RecordId,
    key: Option<String>,
    kind: String,
    payload: Bson,
    content_type: Option<String>,
    headers: Document,
    destination: Option<String>,
    tenant_id: Option<String>,
    created_at: DateTime,
    visible_at: Option<DateTime>,
    dedup_key: Option<String>,
}

/// A record that was refused before MongoDB was asked.
///
/// [`Outbox::enqueue`](crate::Outbox::enqueue) returns it within the driver's error:
/// `error.get_custom::<EnqueueRefusal>()`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("outbox record: {field}: {why}")]
pub struct EnqueueRefusal {
    /// The field at fault: `id`, `type`, `payload`, `headers` or `headers.NAME`; `session` without a running transaction.
    pub field: String,
    /// What is wrong with it, and what to do. It never quotes the value.
    pub why: &'static str,
}

impl EnqueueRefusal {
    pub(crate) fn new(field: &str, why: &'static str) -> Self {
        Self { field: bounded(field, MAX_NAME_CHARS).into_owned(), why }
    }
}

impl From<EnqueueRefusal> for Error {
    fn from(refusal: EnqueueRefusal) -> Self {
        Error::custom(refusal)
    }
}

impl NewRecord {
    /// Makes a record with a new UUID, of this message type (such as `OrderCreated`) and payload.
    ///
    /// A document or array is sent as JSON, a binary as its bytes, a string as UTF-8 text. The record's id does not
    /// change when a transaction is repeated: make the record outside of the callback, or clone it within.
    pub fn new(kind: impl Into<String>, payload: impl Into<Bson>) -> Self {
        let record_id = RecordId::Uuid(Uuid::new_v4());
        Self {
            id: Bson::from(&record_id),
            record_id,
            key: None,
            kind: kind.into(),
            payload: payload.into(),
            content_type: None,
            headers: Document::new(),
            destination: None,
            tenant_id: None,
            created_at: DateTime::now(),
            visible_at: None,
            dedup_key: None,
        }
    }

    /// Sets another id than a new UUID: a UUID, an ObjectId, a string or an integer.
    ///
    /// An id that exists already aborts the transaction.
    pub fn id(mut self, id: impl Into<Bson>) -> Self {
        self.id = id.into();
        self.record_id = RecordId::from(self.id.clone());
        self
    }

    /// Sets the key: records of one key are delivered in order. Without a key there is no order.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Sets a message header: a scalar or a binary.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bson>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Sets the headers that the record does not have yet.
    pub fn default_headers(mut self, headers: Document) -> Self {
        for (name, value) in headers {
            self.headers.entry(name).or_insert(value);
        }
        self
    }

    /// Sets the content type; by default it follows from the payload.
    pub fn content_type(mut self, content_type: impl Into<String>) -> Self {
        self.content_type = Some(content_type.into());
        self
    }

    /// Sets the exchange or topic; routes are bypassed.
    pub fn destination(mut self, destination: impl Into<String>) -> Self {
        self.destination = Some(destination.into());
        self
    }

    /// Sets the tenant: a header of the message.
    pub fn tenant_id(mut self, tenant: impl Into<String>) -> Self {
        self.tenant_id = Some(tenant.into());
        self
    }

    /// Sets a text that is unique while the record exists: a second one aborts its transaction.
    pub fn dedup_key(mut self, key: impl Into<String>) -> Self {
        self.dedup_key = Some(key.into());
        self
    }

    /// Sets the timestamp of the message; by default the time at which the record was made.
    pub fn created_at(mut self, at: DateTime) -> Self {
        self.created_at = at;
        self
    }

    /// Schedules the record: not before `due`, by the server's clock. It takes its place in its key when it is due.
    pub fn scheduled_for(mut self, due: DateTime) -> Self {
        self.visible_at = Some(due);
        self
    }

    /// The record's id: the message id that consumers receive.
    pub fn record_id(&self) -> &RecordId {
        &self.record_id
    }

    /// Returns the document that is inserted.
    ///
    /// # Errors
    ///
    /// An id that is not a UUID, an ObjectId, a string or an integer; an empty id or type; a payload that is
    /// nested too deep; a header that a broker cannot carry.
    pub fn into_document(self) -> Result<Document, EnqueueRefusal> {
        self.check()?;
        let status = if self.visible_at.is_some() { SCHEDULED } else { PENDING };
        let partition = self.key.as_deref().map(|key| i32::from(partition::of_key(key)));
        let fields = [
            (KEY, self.key.map(Bson::from)),
            (TYPE, Some(self.kind.into())),
            (PAYLOAD, Some(self.payload)),
            (CONTENT_TYPE, self.content_type.map(Bson::from)),
            (HEADERS, (!self.headers.is_empty()).then_some(self.headers.into())),
            (DESTINATION, self.destination.map(Bson::from)),
            (TENANT_ID, self.tenant_id.map(Bson::from)),
            (STATUS, Some(status.into())),
            // The server replaces it with its cluster time.
            (SEQ, Some(NO_SEQ.into())),
            (CREATED_AT, Some(self.created_at.into())),
            (VISIBLE_AT, self.visible_at.map(Bson::from)),
            (DEDUP_KEY, self.dedup_key.map(Bson::from)),
            (PARTITION, partition.map(Bson::from)),
        ];
        let mut document = doc! { ID: self.id };
        for (name, value) in fields {
            if let Some(value) = value {
                document.insert(name, value);
            }
        }
        Ok(document)
    }

    fn check(&self) -> Result<(), EnqueueRefusal> {
        let is_empty = matches!(&self.record_id, RecordId::String(text) if text.is_empty());
        if is_empty {
            return Err(EnqueueRefusal::new(RECORD_ID, "is empty; set a value or omit it"));
        }
        if !self.record_id.is_well_formed() {
            let why = "must be a UUID (binary subtype 4), an ObjectId, a string or an integer";
            return Err(EnqueueRefusal::new(RECORD_ID, why));
        }
        if self.kind.is_empty() {
            return Err(EnqueueRefusal::new(TYPE, "is empty; set it, since routes match on it"));
        }
        if nesting::is_too_deep(&self.payload) {
            return Err(EnqueueRefusal::new(PAYLOAD, nesting::TOO_DEEP));
        }
        for (name, value) in &self.headers {
            if name.contains('\0') {
                return Err(EnqueueRefusal::new(HEADERS, "a name contains U+0000; remove it"));
            }
            if !is_scalar(value) {
                let why = "must be a scalar or a binary; write a text, or move it to the payload";
                return Err(EnqueueRefusal::new(&format!("{HEADERS}.{name}"), why));
            }
        }
        Ok(())
    }
}

/// Returns whether a broker can carry the value as a header.
fn is_scalar(value: &Bson) -> bool {
    matches!(
        value,
        Bson::String(_)
            | Bson::Int32(_)
            | Bson::Int64(_)
            | Bson::Double(_)
            | Bson::Decimal128(_)
            | Bson::Boolean(_)
            | Bson::DateTime(_)
            | Bson::ObjectId(_)
            | Bson::Binary(_)
            | Bson::Null
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_that_is_nested_too_deep_is_refused() {
        let nested = |levels| (0..levels).fold(Bson::Null, |inner, _| Bson::Array(vec![inner]));
        let refused = |levels| NewRecord::new("T", nested(levels)).into_document().err();

        assert_eq!(refused(nesting::MAX_LEVELS), None);
        assert_eq!(refused(nesting::MAX_LEVELS + 1).unwrap().field, PAYLOAD);
    }
}
