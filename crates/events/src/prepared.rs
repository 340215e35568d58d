//! An append that is valid by itself, encoded.

use bson::raw::{RawArrayBuf, RawBson, RawDocumentBuf, cstr};
use bson::{Bson, Document};
use postrider_outbox::erase::PendingRecords;
use postrider_outbox::nesting::{TOO_DEEP, is_document_too_deep};
use postrider_store::limits::MAX_DOCUMENT_BYTES;
use uuid::Uuid;

use crate::append::{Append, Appended, Expected, NewEvent};
use crate::commits::CommittedAppend;
use crate::document::append_text;
use crate::error::Flaw;
use crate::names::{self, AggregateKey, MAX_ID_CHARS};
use crate::state::EndKind;
use crate::stream::{record_id, record_ids};

/// The longest name of an event, in bytes: it becomes the type of a message (AMQP's limit).
const MAX_NAME_BYTES: usize = 255;

/// The beginning of the names of reserved events.
pub(crate) const RESERVED_PREFIX: &str = "postrider.";

/// The largest stream document: MongoDB's 16 MiB, less what an outbox record has in addition to one
/// event's body, its lease fields among them.
const MAX_STREAM_BYTES: usize = MAX_DOCUMENT_BYTES - (64 << 10);

/// About what an event takes in the stream and in the outbox in addition to its body.
const EVENT_OVERHEAD_BYTES: usize = 512;

/// An append with its ids, encode once.
#[derive(Debug)]
pub(crate) struct PreparedAppend {
    pub(crate) append: Append,
    /// What it does to its stream, if it is a reserved one.
    pub(crate) ending: Option<EndKind>,
    /// The id of the stream document.
    pub(crate) id: Uuid,
    pub(crate) header: RawDocumentBuf,
    pub(crate) bodies: Vec<RawDocumentBuf>,
    /// About its size in a transaction.
    pub(crate) bytes: usize,
}

/// The place of an append in its aggregate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) version: i64,
    pub(crate) create_time: i64,
}

impl Place {
    /// The version as int32 if it fits, as the Wow framework writes it.
    pub(crate) fn version_as_stored(self) -> RawBson {
        i32::try_from(self.version).map_or(RawBson::Int64(self.version), RawBson::Int32)
    }
}

impl PreparedAppend {
    /// Checks and encodes an append.
    ///
    /// # Errors
    ///
    /// All flaws.
    pub(crate) fn new(append: Append) -> Result<Self, Vec<Flaw>> {
        Self::of_kind(append, None)
    }

    /// The same for an append that ends its stream.
    ///
    /// # Errors
    ///
    /// All flaws.
    pub(crate) fn ending(append: Append, ending: EndKind) -> Result<Self, Vec<Flaw>> {
        Self::of_kind(append, Some(ending))
    }

    fn of_kind(append: Append, ending: Option<EndKind>) -> Result<Self, Vec<Flaw>> {
        // (The request of an ending is checked; the ids that its append continues are those that are stored.)
        let mut flaws = if ending.is_none() { append.flaws() } else { Vec::new() };
        let header = encode(&mut flaws, "header", &append.header);
        let mut bodies = Vec::with_capacity(append.events.len());
        for (index, event) in append.events.iter().enumerate() {
            // The events of an ending have reserved names.
            let of_event = if ending.is_none() { event.flaws() } else { Vec::new() };
            flaws.extend(
                of_event
                    .into_iter()
                    .map(|flaw| Flaw { field: format!("events[{index}].{}", flaw.field), ..flaw }),
            );
            bodies.push(encode(&mut flaws, &format!("events[{index}].body"), &event.body));
        }
        if !flaws.is_empty() {
            return Err(flaws);
        }
        let length = |body: &RawDocumentBuf| body.as_bytes().len();
        let given: usize = bodies.iter().map(length).sum::<usize>() + length(&header);
        let overhead = EVENT_OVERHEAD_BYTES * (bodies.len() + 1);
        let prepared = Self {
            append,
            ending,
            id: Uuid::new_v4(),
            header,
            bodies,
            bytes: 2 * given + overhead,
        };
        let whole = prepared.document("", Place { version: i64::MAX, create_time: 0 });
        if length(&whole) > MAX_STREAM_BYTES {
            let detail = format!(
                "has {} bytes; MongoDB's limit for an append is {MAX_STREAM_BYTES}; split it",
                length(&whole)
            );
            return Err(vec![Flaw::new("events", detail)]);
        }
        Ok(prepared)
    }

    /// The stream document at this place.
    pub(crate) fn document(&self, context: &str, place: Place) -> RawDocumentBuf {
        let given = &self.append;
        let mut document = RawDocumentBuf::new();
        document.append(cstr!("_id"), self.id.to_string());
        document.append(cstr!("contextName"), context);
        document.append(cstr!("aggregateName"), given.name.as_str());
        document.append(cstr!("aggregateId"), given.id.as_str());
        append_text(&mut document, cstr!("tenantId"), given.tenant_id.as_ref());
        append_text(&mut document, cstr!("ownerId"), given.owner_id.as_ref());
        document.append(cstr!("requestId"), given.request_id.as_str());
        append_text(&mut document, cstr!("commandId"), given.command_id.as_ref());
        document.append(cstr!("version"), place.version_as_stored());
        document.append(cstr!("createTime"), place.create_time);
        document.append(cstr!("header"), self.header.as_ref());
        document.append(cstr!("size"), i32::try_from(given.events.len()).unwrap_or(i32::MAX));
        let mut body = RawArrayBuf::new();
        for (index, (event, encode)) in given.events.iter().zip(&self.bodies).enumerate() {
            let mut item = RawDocumentBuf::new();
            item.append(cstr!("id"), record_id(&self.id, index).to_string());
            item.append(cstr!("name"), event.name.as_str());
            append_text(&mut item, cstr!("revision"), event.revision.as_ref());
            append_text(&mut item, cstr!("bodyType"), event.body_type.as_ref());
            item.append(cstr!("body"), encode.as_ref());
            body.push(item);
        }
        document.append(cstr!("body"), body);
        if self.ending.is_some() {
            document.append(cstr!("ended"), true);
        }
        if let Some(EndKind::Erase(pending)) = self.ending {
            let mut erasure = RawDocumentBuf::new();
            erasure.append(cstr!("discardPending"), pending == PendingRecords::Discard);
            document.append(cstr!("erasure"), erasure);
        }
        document
    }

    /// The answer of the append at this place.
    pub(crate) fn appended(&self, place: Place) -> Appended {
        let size = self.append.events.len();
        Appended {
            id: self.id.to_string(),
            aggregate_id: self.append.id.to_string(),
            version: place.version,
            size: i64::try_from(size).unwrap_or(i64::MAX),
            create_time: place.create_time,
            records: record_ids(&self.id, size),
            replayed: false,
        }
    }

    /// The report that a majority has the append at this place.
    pub(crate) fn committed(&self, place: Place) -> CommittedAppend {
        CommittedAppend {
            aggregate: self.aggregate(),
            id: Bson::String(self.id.to_string()),
            version: place.version,
            create_time: place.create_time,
            events: i64::try_from(self.append.events.len()).unwrap_or(i64::MAX),
            has_null_position: false,
        }
    }

    pub(crate) fn aggregate(&self) -> AggregateKey {
        self.append.aggregate()
    }
}

/// Checks the id of a request, command, tenant or owner: as an aggregate's.
fn check_id(flaws: &mut Vec<Flaw>, field: &str, value: Option<&String>) {
    if value.is_some_and(|text| names::check_id(text).is_err()) {
        flaws.push(Flaw::new(field, format!("must have between 1 and {MAX_ID_CHARS} characters")));
    }
}

impl Append {
    /// The flaws of its values, without its events.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        check_id(&mut flaws, "requestId", Some(&self.request_id));
        check_id(&mut flaws, "commandId", self.command_id.as_ref());
        check_id(&mut flaws, "tenantId", self.tenant_id.as_ref());
        check_id(&mut flaws, "ownerId", self.owner_id.as_ref());
        if let Expected::Exact(version) = self.expected
            && version < 0
        {
            flaws.push(Flaw::new("expectedVersion", "must be 0 or above"));
        }
        if self.events.is_empty() {
            flaws.push(Flaw::new("events", "must contain at least one event"));
        }
        flaws
    }
}

impl NewEvent {
    /// The flaws of its name, revision and body type.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        if !(1..=MAX_NAME_BYTES).contains(&self.name.len()) {
            let detail = format!(
                "must have between 1 and {MAX_NAME_BYTES} bytes, since it is the type of the \
                 message"
            );
            flaws.push(Flaw::new("name", detail));
        }
        if self.name.starts_with(RESERVED_PREFIX) {
            let detail = format!("must not start with {RESERVED_PREFIX:?}, which is reserved");
            flaws.push(Flaw::new("name", detail));
        }
        check_id(&mut flaws, "revision", self.revision.as_ref());
        check_id(&mut flaws, "bodyType", self.body_type.as_ref());
        flaws
    }
}

/// Encodes a document, unless it is nested too deep or has a name with a NUL.
fn encode(flaws: &mut Vec<Flaw>, field: &str, document: &Document) -> RawDocumentBuf {
    if is_document_too_deep(document) {
        flaws.push(Flaw::new(field, TOO_DEEP));
        return RawDocumentBuf::new();
    }
    RawDocumentBuf::try_from(document).unwrap_or_else(|error| {
        flaws.push(Flaw::new(field, format!("cannot be stored as BSON: {error}")));
        RawDocumentBuf::new()
    })
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;
    use crate::names::{AggregateId, AggregateName};

    fn append(events: Vec<NewEvent>) -> Append {
        let name = AggregateName::new("order").unwrap();
        Append::new(name, AggregateId::new("1").unwrap(), "r", events)
    }

    fn fields(append: Append) -> Vec<String> {
        let flaws = PreparedAppend::new(append).err().unwrap_or_default();
        flaws.into_iter().map(|flaw| flaw.field).collect()
    }

    #[test]
    fn each_flaw_names_its_field() {
        let event = || NewEvent::new("E", doc! {});
        let deep = |levels| (1..levels).fold(doc! {}, |inner, _| doc! { "d": inner });
        let long = "x".repeat(256);

        assert_eq!(fields(append(vec![])), ["events"]);
        assert_eq!(fields(append(vec![event(), NewEvent::new("", doc! {})])), ["events[1].name"]);
        assert_eq!(fields(append(vec![NewEvent::new("E", deep(101))])), ["events[0].body"]);
        assert!(fields(append(vec![NewEvent::new("E", deep(100))])).is_empty());
        assert_eq!(
            fields(append(vec![NewEvent::new("E", doc! { "a\0b": 1 })])),
            ["events[0].body"]
        );
        assert_eq!(
            fields(Append { request_id: "".into(), ..append(vec![event()]) }),
            ["requestId"]
        );
        assert_eq!(fields(append(vec![event()]).tenant(&long)), ["tenantId"]);
        assert_eq!(
            fields(append(vec![event()]).expecting(Expected::Exact(-1))),
            ["expectedVersion"]
        );
        assert!(fields(append(vec![event()])).is_empty());
    }

    #[test]
    fn reserved_name_is_refused_in_an_ordinary_append() {
        let event = |name: &str| vec![NewEvent::new(name, doc! {})];

        assert_eq!(fields(append(event("postrider.StreamEnded"))), ["events[0].name"]);
        assert!(fields(append(event("postrider"))).is_empty());
        assert!(
            PreparedAppend::ending(append(event("postrider.StreamEnded")), EndKind::End).is_ok()
        );
    }

    #[test]
    fn append_is_refused_when_a_record_cannot_hold_it() {
        let large = |length| vec![NewEvent::new("E", doc! { "a": "x".repeat(length) })];

        assert_eq!(fields(append(large(MAX_STREAM_BYTES))), ["events"]);
        assert!(fields(append(large(MAX_STREAM_BYTES - 2_000))).is_empty());
    }
}
