//! Handles records as bytes: shows them as well as possible and names them by `_id`, even if text
//! or field names are invalid UTF-8, which the server stores.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bson::raw::{CStr, RawDocument, RawDocumentBuf, cstr};
use bson::{Binary, Bson, Document, RawBsonRef, spec::BinarySubtype};

use crate::collections::{Collections, names};
use crate::fields::{DEAD, DONE, ID, PENDING, SCHEDULED, STATUS, STATUSES};
use crate::ids::{RAW, RecordId, raw_text};

/// Maximum nesting to show; MongoDB stores no more.
const MAX_DEPTH: usize = 200;

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
    /// `raw:` followed by the result of [`text`](Self::text).
    pub fn parse_candidates(text: &str) -> Vec<Self> {
        let Some(raw) = text.strip_prefix(RAW) else {
            return RecordId::parse_candidates(text)
                .iter()
                .map(|id| Self::from(&Bson::from(id)))
                .collect();
        };
        let bytes = URL_SAFE_NO_PAD.decode(raw).ok();
        let document = bytes.and_then(|bytes| RawDocumentBuf::from_bytes(bytes).ok());
        document.and_then(|document| Self::find(&document, ID)).into_iter().collect()
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

const DOCUMENT: u8 = 0x03;
const ARRAY: u8 = 0x04;
const NULL: u8 = 0x0a;

/// The name of the field in [`Element::alone`].
pub(super) const VALUE: &CStr = cstr!("v");

/// A field as its bytes.
pub(super) struct Element<'a> {
    kind: u8,
    pub(super) name: &'a [u8],
    value: &'a [u8],
}

impl Element<'_> {
    /// A document with this value alone, under the name [`VALUE`].
    pub(super) fn alone(&self) -> RawDocumentBuf {
        alone(self.kind, self.value)
    }
}

fn alone(kind: u8, value: &[u8]) -> RawDocumentBuf {
    RawWriter::default().raw(kind, VALUE.as_str(), value).finish()
}

/// The fields of a document up to where its bytes are none.
pub(super) fn elements(document: &[u8]) -> impl Iterator<Item = Element<'_>> {
    let mut rest = document.get(4..document.len().saturating_sub(1)).unwrap_or_default();
    std::iter::from_fn(move || {
        let (kind, behind) = rest.split_first()?;
        let end = behind.iter().position(|byte| *byte == 0)?;
        let (name, behind) = (behind.get(..end)?, behind.get(end + 1..)?);
        let value = behind.get(..length(*kind, behind)?)?;
        rest = behind.get(value.len()..)?;
        Some(Element { kind: *kind, name, value })
    })
}

/// Returns the length of a value in bytes.
fn length(kind: u8, bytes: &[u8]) -> Option<usize> {
    let stated = || {
        let length = bytes.get(..4)?.try_into().ok()?;
        usize::try_from(i32::from_le_bytes(length)).ok()
    };
    let text = |from: usize| {
        let end = bytes.get(from..)?.iter().position(|byte| *byte == 0)?;
        Some(from + end + 1)
    };
    match kind {
        0x06 | NULL | 0x7f | 0xff => Some(0),
        0x08 => Some(1),
        0x10 => Some(4),
        0x01 | 0x09 | 0x11 | 0x12 => Some(8),
        0x07 => Some(12),
        0x13 => Some(16),
        DOCUMENT | ARRAY | 0x0f => stated(),
        0x02 | 0x0d | 0x0e => stated()?.checked_add(4),
        0x05 => stated()?.checked_add(5),
        0x0c => stated()?.checked_add(16),
        0x0b => text(text(0)?),
        _ => None,
    }
}

fn document(bytes: &[u8], path: &str, deeper: usize, invalid: &mut Vec<String>) -> Document {
    let mut document = Document::new();
    for element in elements(bytes) {
        let name = escaped(element.name);
        let path = format!("{path}{name}");
        if std::str::from_utf8(element.name).is_err() {
            invalid.push(format!("{path}: the name of the field is not valid UTF-8"));
        }
        if document.contains_key(&name) {
            invalid.push(format!("{path}: appears twice; the first value is shown"));
            continue;
        }
        document.insert(name, shown(&element, &path, deeper, invalid));
    }
    document
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
    let text = element.value.get(4..element.value.len().saturating_sub(1));
    match (element.kind, text) {
        (0x02 | 0x0d | 0x0e, Some(text)) => {
            invalid.push(format!("{path}: is not valid UTF-8"));
            Bson::String(String::from_utf8_lossy(text).into_owned())
        }
        _ => {
            invalid.push(format!("{path}: cannot be decoded; its bytes are shown"));
            let bytes = element.value.to_vec();
            Bson::Binary(Binary { subtype: BinarySubtype::Generic, bytes })
        }
    }
}

/// A value that can be decoded.
fn value(kind: u8, bytes: &[u8]) -> Option<Bson> {
    let document = alone(kind, bytes);
    let value: RawBsonRef<'_> = document.get(VALUE).ok()??;
    Bson::try_from(value).ok()
}

/// A name with the bytes that are no UTF-8 written out.
pub(super) fn escaped(name: &[u8]) -> String {
    let mut escaped = String::new();
    for chunk in name.utf8_chunks() {
        escaped.push_str(chunk.valid());
        escaped.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    escaped
}

#[cfg(test)]
mod tests {
    use bson::{doc, rawdoc};
    use proptest::prelude::*;

    use super::*;

    /// The document with each `MARK` in its bytes made no UTF-8.
    fn broken(document: &Document) -> RawDocumentBuf {
        let mut bytes = RawDocumentBuf::try_from(document).unwrap().into_bytes();
        for at in 0..bytes.len() - 4 {
            if &bytes[at..at + 4] == b"MARK" {
                bytes[at..at + 4].copy_from_slice(b"a\xff\xfeb");
            }
        }
        RawDocumentBuf::from_bytes(bytes).unwrap()
    }

    #[test]
    fn a_record_is_shown_and_what_is_wrong_is_named() {
        let record = doc! {
            "_id": 1, "status": "pending", "MARK": 1,
            "payload": { "MARK": ["x", "MARK"], "n": 7 }, "type": "MARK", "behind": true,
        };

        let shown = DecodedRecord::read(&broken(&record));

        let expected = doc! {
            "_id": 1, "status": "pending", "a\\xff\\xfeb": 1,
            "payload": { "a\\xff\\xfeb": ["x", "a\u{fffd}\u{fffd}b"], "n": 7 },
            "type": "a\u{fffd}\u{fffd}b", "behind": true,
        };
        assert_eq!(shown.document, expected);
        let expected = [
            "a\\xff\\xfeb: the name of the field is not valid UTF-8",
            "payload.a\\xff\\xfeb: the name of the field is not valid UTF-8",
            "payload.a\\xff\\xfeb.1: is not valid UTF-8",
            "type: is not valid UTF-8",
        ];
        assert_eq!(shown.invalid, expected);
    }

    #[test]
    fn a_status_that_is_none_and_a_field_that_stands_twice_are_named() {
        let mut twice = rawdoc! { "_id": 1, "status": "Pending" };
        twice.append(cstr!("status"), "done");

        let shown = DecodedRecord::read(&twice);

        assert_eq!(shown.document, doc! { "_id": 1, "status": "Pending" });
        assert_eq!(shown.invalid.len(), 2, "{:?}", shown.invalid);
        assert!(shown.invalid[1].starts_with("status: must be pending"), "{:?}", shown.invalid);
    }

    #[test]
    fn an_id_is_named_by_a_text_that_means_no_other() {
        let ids = [
            Bson::Int32(7),
            "7".into(),
            "uuid:x".into(),
            "raw:x".into(),
            bson::oid::ObjectId::from_bytes([1; 12]).into(),
            bson::Uuid::from_bytes([1; 16]).into(),
            1.5.into(),
            true.into(),
            doc! { "a": 1 }.into(),
            Bson::Null,
        ];
        for id in ids {
            let raw = RawId::from(&id);

            let again = RawId::parse_candidates(&raw.text());

            // MongoDB holds the integer types equal.
            let expected = match id {
                Bson::Int32(number) => RawId::from(&Bson::Int64(number.into())),
                _ => raw.clone(),
            };
            assert_eq!(again, [expected], "{id}: {}", raw.text());
        }
        let undecodable = RawId::of(&broken(&doc! { "_id": "MARK", "status": "dead" }));
        assert_eq!(undecodable.decoded(), None);
        assert_eq!(RawId::parse_candidates(&undecodable.text()), [undecodable]);
        assert_eq!(RawId::parse_candidates("raw:"), []);
        assert_eq!(RawId::parse_candidates("raw:!"), []);
        // A document without an `_id`.
        assert_eq!(RawId::parse_candidates("raw:BQAAAAA"), []);
    }

    proptest! {
        #[test]
        fn any_bytes_are_shown_or_passed_over(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut framed = i32::try_from(bytes.len() + 5).unwrap().to_le_bytes().to_vec();
            framed.extend(bytes);
            framed.push(0);
            let document = RawDocumentBuf::from_bytes(framed).unwrap();

            let shown = DecodedRecord::read(&document);

            prop_assert!(!shown.id.text().is_empty());
            let _ = crate::json_view::decoded(&shown);
        }

        #[test]
        fn any_byte_of_a_record_may_be_any_other(at in any::<prop::sample::Index>(), byte: u8) {
            let record = rawdoc! {
                "_id": "id", "status": "pending", "key": "k", "payload": { "a": [1, "x", { "b": 1.5 }] },
                "seq": bson::Timestamp { time: 1, increment: 1 },
            };
            let mut bytes = record.into_bytes();
            let at = 4 + at.index(bytes.len() - 5);
            bytes[at] = byte;
            if let Ok(document) = RawDocumentBuf::from_bytes(bytes) {
                let _ = crate::json_view::decoded(&DecodedRecord::read(&document));
            }
        }
    }
}
