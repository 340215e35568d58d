//! Reads stored event streams, whatever other programs have written into them.
//!
//! An event that has a position must be read: an error here would stop every reader at this position.

use bson::raw::RawDocument;
use bson::{Bson, Document};

use crate::integer::integral;
use crate::stream::fields::{AGGREGATE_ID, CREATE_TIME, ID, REQUEST_ID, SIZE, TENANT_ID, VERSION};
use crate::stream::{Event, EventStream};

/// Reads a stream document. Fields of another type than ours are left out; each element of the body is
/// an event.
///
/// # Errors
///
/// It is not BSON.
pub(super) fn decode(found: &RawDocument) -> Result<EventStream, bson::error::Error> {
    match bson::deserialize_from_slice(found.as_bytes()) {
        Ok(stream) => Ok(stream),
        Err(_) => Ok(lenient(Document::try_from(found)?)),
    }
}

fn lenient(mut found: Document) -> EventStream {
    let body = match found.remove("body") {
        Some(Bson::Array(body)) => body.into_iter().map(event).collect(),
        _ => Vec::new(),
    };
    let header = match found.remove("header") {
        Some(Bson::Document(header)) => header,
        _ => Document::new(),
    };
    let optional = |field: &str| found.get_str(field).ok().map(str::to_owned);
    let text = |field: &str| optional(field).unwrap_or_default();
    let number = |field: &str| found.get(field).and_then(integral).unwrap_or(0);
    EventStream {
        id: match found.get(ID) {
            Some(Bson::String(id)) => id.clone(),
            Some(id) => id.to_string(),
            None => String::new(),
        },
        context_name: text("contextName"),
        aggregate_name: text("aggregateName"),
        aggregate_id: text(AGGREGATE_ID),
        tenant_id: optional(TENANT_ID),
        owner_id: optional("ownerId"),
        request_id: text(REQUEST_ID),
        command_id: optional("commandId"),
        version: number(VERSION),
        create_time: number(CREATE_TIME),
        header,
        size: number(SIZE),
        position: None,
        body,
    }
}

fn event(element: Bson) -> Event {
    let mut found = match element {
        Bson::Document(found) => found,
        _ => Document::new(),
    };
    let body = match found.remove("body") {
        Some(Bson::Document(body)) => body,
        _ => Document::new(),
    };
    let optional = |field: &str| found.get_str(field).ok().map(str::to_owned);
    Event {
        id: optional("id").unwrap_or_default(),
        name: optional("name").unwrap_or_default(),
        revision: optional("revision"),
        body_type: optional("bodyType"),
        body,
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use bson::oid::ObjectId;
    use bson::raw::RawDocumentBuf;

    use super::*;

    #[test]
    fn each_element_of_an_odd_body_is_an_event() {
        let id = ObjectId::new();
        let odd = doc! {
            "_id": id, "aggregateId": "1", "version": 2.0, "createTime": null, "header": 1,
            "body": [7, { "name": "E", "revision": 1, "body": { "n": 1 } }, { "body": "text" }],
        };

        let stream = decode(&RawDocumentBuf::try_from(&odd).unwrap()).unwrap();

        assert_eq!((stream.id, stream.version), (Bson::ObjectId(id).to_string(), 2));
        let names: Vec<&str> = stream.body.iter().map(|event| event.name.as_str()).collect();
        assert_eq!(names, ["", "E", ""]);
        assert_eq!(stream.body[1].body, doc! { "n": 1 });
    }
}
