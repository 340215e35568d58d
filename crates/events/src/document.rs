//! Documents of users by serde, and optional fields of ours.

use bson::Document;
use bson::raw::{CStr, RawDocumentBuf};
use postrider_outbox::json_view;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Reads a document with its names as they are: serde would take one such as `{"$oid": …}` that an
/// application has written for extended JSON.
pub(crate) fn as_written<'de, D: Deserializer<'de>>(input: D) -> Result<Document, D::Error> {
    let raw = RawDocumentBuf::deserialize(input)?;
    Document::try_from(raw).map_err(serde::de::Error::custom)
}

/// Writes a document in the JSON form of HTTP ([`json_view`]), or as BSON.
pub(crate) fn as_json<S: Serializer>(document: &Document, to: S) -> Result<S::Ok, S::Error> {
    if to.is_human_readable() {
        json_view::serialize_document(document, to)
    } else {
        document.serialize(to)
    }
}

/// Appends a text that may be absent.
pub(crate) fn append_text(document: &mut RawDocumentBuf, field: &CStr, text: Option<&String>) {
    if let Some(text) = text {
        document.append(field, text.as_str());
    }
}
