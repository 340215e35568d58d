//! Reads stored event streams, whatever other programs have written into them.
//!
//! Nothing here fails: an error would stop every reader at this document. What is invalid is named in
//! [`EventStream::invalid`].

use bson::raw::RawDocument;
use bson::{Bson, Document};
use postrider_outbox::undecoded::{RawId, decode_lossy};

use crate::integer::integral;
use crate::stream::fields::{
    AGGREGATE_ID, BODY, CREATE_TIME, HEADER, ID, POSITION, REQUEST_ID, SIZE, TENANT_ID, VERSION,
};
use crate::stream::{Event, EventStream};

/// Reads a stream document. Each element of the body is an event. Fields of another type than ours are left
/// out, and bytes that are not UTF-8 become replacement characters.
pub(crate) fn decode(found: &RawDocument) -> EventStream {
    bson::deserialize_from_slice(found.as_bytes()).unwrap_or_else(|_| lenient(found))
}

/// Reads any stored document, and names its invalid fields.
pub(crate) fn decode_any(found: &RawDocument) -> (Document, Vec<String>) {
    match Document::try_from(found) {
        Ok(document) => (document, Vec::new()),
        Err(_) => decode_lossy(found),
    }
}

/// The id of a stream document as text: the same for every reader, and another one for each document.
pub(crate) fn id_text(found: &RawDocument) -> String {
    match found.get(ID).map(|id| id.map(Bson::try_from)) {
        Ok(Some(Ok(Bson::String(id)))) => id,
        Ok(Some(Ok(id))) => id.to_string(),
        Ok(None) => String::new(),
        Ok(Some(Err(_))) | Err(_) => RawId::of(found).text(),
    }
}

/// Whether this invalid field of an append is one of the event at `index`, or of none.
pub(crate) fn concerns(field: &str, index: i64) -> bool {
    let of_events = field.strip_prefix(BODY).and_then(|rest| rest.strip_prefix('.'));
    let digits = |rest: &str| rest.split(|it: char| !it.is_ascii_digit()).next()?.parse().ok();
    of_events.and_then(digits).is_none_or(|of: i64| of == index)
}

fn lenient(raw: &RawDocument) -> EventStream {
    let (mut found, mut invalid) = decode_lossy(raw);
    let elements = found.remove(BODY);
    let mut fields = Fields { found, path: String::new(), invalid: &mut invalid };
    let mut stream = EventStream {
        id: id_text(raw),
        context_name: fields.optional_text("contextName").unwrap_or_default(),
        aggregate_name: fields.optional_text("aggregateName").unwrap_or_default(),
        aggregate_id: fields.text(AGGREGATE_ID),
        tenant_id: fields.optional_text(TENANT_ID),
        owner_id: fields.optional_text("ownerId"),
        request_id: fields.text(REQUEST_ID),
        command_id: fields.optional_text("commandId"),
        version: fields.integer(VERSION),
        create_time: fields.integer(CREATE_TIME),
        header: fields.document(HEADER),
        size: fields.integer(SIZE),
        position: fields.found.get(POSITION).and_then(integral),
        body: Vec::new(),
        invalid: Vec::new(),
    };
    match elements {
        Some(Bson::Array(elements)) => {
            for (index, element) in elements.into_iter().enumerate() {
                stream.body.push(event(element, format!("{BODY}.{index}"), &mut invalid));
            }
        }
        None => invalid.push(format!("{BODY}: is missing")),
        Some(_) => invalid.push(format!("{BODY}: must be an array")),
    }
    EventStream { invalid, ..stream }
}

fn event(element: Bson, path: String, invalid: &mut Vec<String>) -> Event {
    let found = match element {
        Bson::Document(found) => found,
        _ => {
            invalid.push(format!("{path}: must be a document"));
            Document::new()
        }
    };
    if found.is_empty() {
        return Event::default();
    }
    let mut fields = Fields { found, path: format!("{path}."), invalid };
    Event {
        id: fields.optional_text("id").unwrap_or_default(),
        name: fields.text("name"),
        revision: fields.optional_text("revision"),
        body_type: fields.optional_text("bodyType"),
        body: fields.document(BODY),
    }
}

/// The fields of a document, each of which may have any type.
struct Fields<'a> {
    found: Document,
    path: String,
    invalid: &'a mut Vec<String>,
}

impl Fields<'_> {
    fn text(&mut self, field: &str) -> String {
        if !self.found.contains_key(field) {
            self.flaw(field, "is missing");
        }
        self.optional_text(field).unwrap_or_default()
    }

    fn optional_text(&mut self, field: &str) -> Option<String> {
        match self.found.remove(field) {
            Some(Bson::String(text)) => Some(text),
            None | Some(Bson::Null) => None,
            Some(_) => {
                self.flaw(field, "must be text");
                None
            }
        }
    }

    fn integer(&mut self, field: &str) -> i64 {
        let found = self.found.get(field);
        let detail = if found.is_some() { "must be an integer" } else { "is missing" };
        found.and_then(integral).unwrap_or_else(|| {
            self.flaw(field, detail);
            0
        })
    }

    /// A document that may be absent.
    fn document(&mut self, field: &str) -> Document {
        match self.found.remove(field) {
            Some(Bson::Document(found)) => found,
            None => Document::new(),
            Some(_) => {
                self.flaw(field, "must be a document");
                Document::new()
            }
        }
    }

    fn flaw(&mut self, field: &str, detail: &str) {
        self.invalid.push(format!("{}{field}: {detail}", self.path));
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use bson::oid::ObjectId;
    use bson::raw::RawDocumentBuf;

    use super::*;

    /// The document with each `MARK` in its bytes made invalid UTF-8.
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
    fn each_element_of_an_odd_body_is_an_event() {
        let id = ObjectId::new();
        let odd = doc! {
            "_id": id, "aggregateId": "1", "version": 2.0, "createTime": null, "header": 1,
            "body": [7, { "name": "E", "revision": 1, "body": { "n": 1 } }, { "body": "text" }],
        };

        let stream = decode(&RawDocumentBuf::try_from(&odd).unwrap());

        assert_eq!((stream.id, stream.version), (Bson::ObjectId(id).to_string(), 2));
        let names: Vec<&str> = stream.body.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["", "E", ""]);
        assert_eq!(stream.body[1].body, doc! { "n": 1 });
        let invalid = [
            "requestId: is missing",
            "createTime: must be an integer",
            "header: must be a document",
            "size: is missing",
            "body.0: must be a document",
            "body.1.revision: must be text",
            "body.2.name: is missing",
            "body.2.body: must be a document",
        ];
        assert_eq!(stream.invalid, invalid);
        let of_second = stream.invalid.iter().filter(|field| concerns(field, 1));
        assert_eq!(of_second.count(), 5);
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced_and_named() {
        let stored = doc! {
            "_id": "MARK", "contextName": "c", "aggregateName": "a", "aggregateId": "1",
            "tenantId": "MARK", "requestId": "r", "version": 1, "createTime": 5_i64, "size": 1,
            "header": { "h": "MARK" }, "extra": "MARK", "position": 7_i64,
            "body": [{ "id": "e", "name": "MARK", "body": { "MARK": "x", "sound": "MARK" } }],
        };
        let raw = broken(&stored);

        let stream = decode(&raw);

        let text = "a\u{fffd}\u{fffd}b";
        assert_eq!((stream.version, stream.create_time, stream.position), (1, 5, Some(7)));
        assert_eq!((stream.tenant_id.as_deref(), &*stream.body[0].name), (Some(text), text));
        assert_eq!(stream.header, doc! { "h": text });
        assert_eq!(stream.body[0].body, doc! { "a\\xff\\xfeb": "x", "sound": text });
        // Two ids stay two.
        assert!(stream.id.starts_with("raw:"), "{}", stream.id);
        let paths: Vec<&str> =
            stream.invalid.iter().map(|field| field.split(':').next().unwrap()).collect();
        let expected = [
            "_id",
            "tenantId",
            "header.h",
            "extra",
            "body.0.name",
            "body.0.body.a\\xff\\xfeb",
            "body.0.body.sound",
        ];
        assert_eq!(paths, expected);
    }

    #[test]
    fn valid_stream_has_no_invalid_fields() {
        let valid = doc! {
            "_id": "s", "aggregateId": "1", "requestId": "r", "version": 1, "createTime": 5_i64,
            "size": 0, "body": [], "more": { "of": "Wow" },
        };

        assert!(decode(&RawDocumentBuf::try_from(&valid).unwrap()).invalid.is_empty());
    }
}
