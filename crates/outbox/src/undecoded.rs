//! Handles records as bytes: shows them as well as possible and names them by `_id`, even if text
//! or field names are invalid UTF-8, which the server stores.

mod elements;

use std::collections::HashSet;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Binary, Bson, Document, spec::BinarySubtype};

use crate::collections::{Collections, names};
use crate::fields::{DEAD, DONE, ID, PENDING, SCHEDULED, STATUS, STATUSES};
use crate::ids::{RAW, RecordId, raw_text};
use crate::undecoded::elements::{
    ARRAY, CODE, CODE_WITH_SCOPE, DOCUMENT, NULL, REGEX, UNDEFINED, is_whole, value,
};

pub(crate) use elements::{Element, VALUE, elements, escaped};

/// Maximum nesting to show; MongoDB stores no more.
const MAX_DEPTH: usize = 200;

/// Maximum nesting of an id that a text names.
const MAX_ID_DEPTH: usize = 100;

/// The field of a record in a list that has the names of its other fields.
pub(super) const FIELD_NAMES: &str = "fieldNames";

/// A record, decoded as far as possible.
#[derive(Clone, Debug)]
pub struct DecodedRecord {
    /// What names it.
    pub id: RawId,
    /// Its fields. Invalid UTF-8 in text becomes replacement characters; in a field name, its bytes
    /// are written as `\xff`.
    pub document: Document,
    /// Its invalid fields; empty for most records.
    pub invalid: Vec<String>,
}

impl DecodedRecord {
    /// Reads a record of a list, which has the names of other fields in [`FIELD_NAMES`]. This never fails.
    pub(super) fn read_listed(record: &RawDocument) -> Self {
        let (mut fields, mut names) = (RawWriter::default(), Vec::new());
        for element in elements(record.as_bytes()) {
            if element.name == FIELD_NAMES.as_bytes() && element.kind == ARRAY {
                names = elements(element.value).filter_map(|name| name.text()).collect();
            } else if element.name != FIELD_NAMES.as_bytes() {
                fields = fields.raw(element.kind, &escaped(element.name), element.value);
            }
        }
        let mut listed = Self::read(&fields.finish());
        let mut seen = HashSet::new();
        for name in names {
            if std::str::from_utf8(name).is_err() {
                listed.invalid.push(invalid_name(&escaped(name)));
            }
            if !seen.insert(name) {
                listed.invalid.push(appears_twice(&escaped(name)));
            }
        }
        listed
    }

    /// Reads a record. This never fails.
    pub fn read(record: &RawDocument) -> Self {
        let (document, mut invalid) = decode_lossy(record);
        let status = document.get_str(STATUS);
        if !status.is_ok_and(|status| STATUSES.contains(&status)) {
            invalid.push(format!(
                "{STATUS}: must be {PENDING}, {SCHEDULED}, {DONE} or {DEAD}; the record is never delivered"
            ));
        }
        Self { id: RawId::of(record), document, invalid }
    }
}

/// Decodes a document as for [`DecodedRecord`]; returns it and its invalid fields.
pub fn decode_lossy(record: &RawDocument) -> (Document, Vec<String>) {
    let mut invalid = Vec::new();
    let document = document(record.as_bytes(), "", MAX_DEPTH, &mut invalid);
    (document, invalid)
}

/// Returns the fields that can be decoded, and the names of the others.
pub fn decode_valid_fields(record: &RawDocument) -> (Document, Vec<String>) {
    let (mut document, mut others) = (Document::new(), Vec::new());
    for element in elements(record.as_bytes()) {
        match (std::str::from_utf8(element.name), value(element.kind, element.value)) {
            (Ok(name), Some(value)) => {
                document.insert(name, value);
            }
            _ => others.push(escaped(element.name)),
        }
    }
    (document, others)
}

/// The `_id` of a record as its bytes, so that any record can be named; or another value to sort
/// by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RawId {
    kind: u8,
    value: Vec<u8>,
}

impl RawId {
    /// Returns the id of a record.
    pub fn of(record: &RawDocument) -> Self {
        Self::field(record, ID)
    }

    /// Returns the value of another field; null if absent.
    pub fn field(record: &RawDocument, name: &str) -> Self {
        Self::find(record, name).unwrap_or(Self { kind: NULL, value: Vec::new() })
    }

    fn find(record: &RawDocument, name: &str) -> Option<Self> {
        let mut elements = elements(record.as_bytes());
        let found = elements.find(|element| element.name == name.as_bytes())?;
        Some(Self { kind: found.kind, value: found.value.to_vec() })
    }

    /// Returns the value as a number, of any numeric type.
    pub(super) fn number(&self) -> Option<f64> {
        match value(self.kind, &self.value)? {
            Bson::Int32(number) => Some(number.into()),
            Bson::Int64(number) => Some(number as f64),
            Bson::Double(number) => Some(number),
            Bson::Decimal128(number) => number.to_string().parse().ok(),
            _ => None,
        }
    }

    /// Returns whether it is null; an absent value is null.
    pub fn is_null(&self) -> bool {
        self.kind == NULL
    }

    /// Returns the ids that a text can mean, likeliest first: those of [`RecordId::parse_candidates`], and
    /// `raw:` followed by the result of [`text`](Self::text). None if a `raw:` text has no value that can be
    /// an id ([`can_be_named`](Self::can_be_named)).
    pub fn parse_candidates(text: &str) -> Vec<Self> {
        let Some(raw) = text.strip_prefix(RAW) else {
            return RecordId::parse_candidates(text)
                .iter()
                .map(|id| Self::from(&Bson::from(id)))
                .collect();
        };
        let bytes = URL_SAFE_NO_PAD.decode(raw).ok();
        let document = bytes.and_then(|bytes| RawDocumentBuf::from_bytes(bytes).ok());
        let id = document.and_then(|document| Self::find(&document, ID));
        id.filter(Self::can_be_named).into_iter().collect()
    }

    /// Returns whether a `raw:` text may name this value: what MongoDB cannot have as `_id`, and what it
    /// could run or take for operators, may not.
    pub fn can_be_named(&self) -> bool {
        let is_id = match self.kind {
            ARRAY | UNDEFINED | REGEX | CODE | CODE_WITH_SCOPE => false,
            DOCUMENT => !elements(&self.value).any(|element| element.name.starts_with(b"$")),
            _ => true,
        };
        is_id && self.is_whole()
    }

    /// Returns whether its bytes have the structure of its kind. A text from outside may have any.
    pub(super) fn is_whole(&self) -> bool {
        is_whole(self.kind, &self.value, MAX_ID_DEPTH)
    }

    /// Returns whether this id and a stored one are the same: the same bytes, or the same integer. MongoDB
    /// holds more values equal, such as `1` and `1.0`.
    pub fn is_same(&self, stored: &Self) -> bool {
        self == stored || self.decoded().is_some_and(|id| stored.decoded() == Some(id))
    }

    /// Returns a text that means this id and no other.
    pub fn text(&self) -> String {
        match self.decoded() {
            Some(RecordId::Uuid(id)) => format!("uuid:{id}"),
            Some(RecordId::ObjectId(id)) => format!("oid:{id}"),
            Some(RecordId::Int(id)) => format!("int:{id}"),
            Some(RecordId::String(id)) if !id.contains(char::is_control) => format!("str:{id}"),
            _ => {
                let document = RawWriter::default().element(self, ID).finish();
                raw_text(&document)
            }
        }
    }

    /// Returns the id if it is of a valid kind.
    pub fn decoded(&self) -> Option<RecordId> {
        let id = RecordId::from(value(self.kind, &self.value)?);
        id.is_well_formed().then_some(id)
    }
}

impl From<&Bson> for RawId {
    fn from(value: &Bson) -> Self {
        let mut document = Document::new();
        document.insert(ID, value.clone());
        // A single decoded value can be encoded.
        Self::of(&RawDocumentBuf::try_from(&document).unwrap_or_default())
    }
}

/// Encodes a document that contains raw ids: the driver's types hold UTF-8 only.
#[derive(Default)]
pub struct RawWriter(Vec<u8>);

impl RawWriter {
    /// Adds a field with an id.
    pub fn element(self, id: &RawId, name: &str) -> Self {
        self.raw(id.kind, name, &id.value)
    }

    /// Adds the condition that a field has this value, even if the value looks like an operator.
    pub fn equal(self, name: &str, value: &RawId) -> Self {
        self.document(name, &Self::default().element(value, "$eq").finish())
    }

    /// Adds a field with a document.
    pub fn document(self, name: &str, value: &RawDocumentBuf) -> Self {
        self.raw(DOCUMENT, name, value.as_bytes())
    }

    /// Adds a field with a list of a text and a document.
    pub(crate) fn pair(self, name: &str, text: &str, document: &RawDocumentBuf) -> Self {
        let pair = Self::default().fields(&bson::doc! { "0": text }).document("1", document);
        self.raw(ARRAY, name, pair.finish().as_bytes())
    }

    /// Adds a field with a list of documents.
    pub fn documents(self, name: &str, values: &[RawDocumentBuf]) -> Self {
        let list = values.iter().enumerate();
        let list =
            list.fold(Self::default(), |list, (at, one)| list.document(&at.to_string(), one));
        self.raw(ARRAY, name, list.finish().as_bytes())
    }

    /// Adds a field with a list of ids.
    pub(crate) fn list<'a>(self, name: &str, ids: impl IntoIterator<Item = &'a RawId>) -> Self {
        let list = ids.into_iter().enumerate();
        let list = list.fold(Self::default(), |list, (at, id)| list.element(id, &at.to_string()));
        self.raw(ARRAY, name, list.finish().as_bytes())
    }

    /// Adds these fields.
    pub fn fields(mut self, fields: &Document) -> Self {
        // A `Document` can be encoded.
        let bytes = RawDocumentBuf::try_from(fields).unwrap_or_default().into_bytes();
        self.0.extend_from_slice(&bytes[4..bytes.len() - 1]);
        self
    }

    /// Returns the document.
    pub fn finish(self) -> RawDocumentBuf {
        let length = i32::try_from(self.0.len() + 5).unwrap_or(i32::MAX);
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.extend(self.0);
        bytes.push(0);
        RawDocumentBuf::from_bytes(bytes).unwrap_or_default()
    }

    /// Builds a command of these writes: `update` or `delete`.
    pub(crate) fn writes(
        collections: &Collections,
        command: &str,
        statements: &[RawDocumentBuf],
        options: &Document,
    ) -> RawDocumentBuf {
        Self::default()
            .fields(&bson::doc! { command: collections.name(names::RECORDS) })
            .documents(&format!("{command}s"), statements)
            .fields(options)
            .finish()
    }

    fn raw(mut self, kind: u8, name: &str, value: &[u8]) -> Self {
        self.0.push(kind);
        self.0.extend_from_slice(name.as_bytes());
        self.0.push(0);
        self.0.extend_from_slice(value);
        self
    }
}

fn document(bytes: &[u8], path: &str, deeper: usize, invalid: &mut Vec<String>) -> Document {
    let mut document = Document::new();
    for element in elements(bytes) {
        let name = escaped(element.name);
        let path = format!("{path}{name}");
        if std::str::from_utf8(element.name).is_err() {
            invalid.push(invalid_name(&path));
        }
        if document.contains_key(&name) {
            invalid.push(appears_twice(&path));
            continue;
        }
        document.insert(name, shown(&element, &path, deeper, invalid));
    }
    document
}

fn invalid_name(path: &str) -> String {
    format!("{path}: the name of the field is not valid UTF-8")
}

fn appears_twice(path: &str) -> String {
    format!("{path}: appears twice; the first value is shown")
}

fn shown(element: &Element<'_>, path: &str, deeper: usize, invalid: &mut Vec<String>) -> Bson {
    let below = format!("{path}.");
    match (element.kind, deeper.checked_sub(1)) {
        (DOCUMENT, Some(deeper)) => {
            return document(element.value, &below, deeper, invalid).into();
        }
        (ARRAY, Some(deeper)) => {
            let items = elements(element.value).enumerate();
            let items =
                items.map(|(at, item)| shown(&item, &format!("{below}{at}"), deeper, invalid));
            return Bson::Array(items.collect());
        }
        _ => {}
    }
    if let Some(value) = value(element.kind, element.value) {
        return value;
    }
    match element.text() {
        Some(text) => {
            invalid.push(format!("{path}: is not valid UTF-8"));
            Bson::String(String::from_utf8_lossy(text).into_owned())
        }
        None => {
            invalid.push(format!("{path}: cannot be decoded; its bytes are shown"));
            let bytes = element.value.to_vec();
            Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes })
        }
    }
}

#[cfg(test)]
mod tests;
