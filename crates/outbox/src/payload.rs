//! Renders a record's payload as bytes, by its BSON type.

use bson::raw::RawBsonRef;

use crate::extjson;

/// Body of a message, and its content type unless the producer set one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// The body; `None` for null.
    pub bytes: Option<Vec<u8>>,
    /// The default content type of this kind.
    pub content_type: &'static str,
}

/// Renders a payload of any BSON type.
///
/// Documents and arrays become relaxed extended JSON, compact, in field order;
/// binaries of any subtype their bytes; strings their UTF-8; null nothing; every
/// other kind its relaxed extended JSON.
///
/// # Errors
///
/// The decoder's message if the bytes are not valid BSON.
pub fn render(value: RawBsonRef<'_>) -> Result<Payload, String> {
    let (bytes, content_type) = match value {
        RawBsonRef::Binary(binary) => (Some(binary.bytes.to_vec()), "application/octet-stream"),
        RawBsonRef::String(text) => (Some(text.as_bytes().to_vec()), "text/plain; charset=utf-8"),
        RawBsonRef::Null => (None, "application/json"),
        other => (Some(extjson::relaxed(other)?), "application/json"),
    };
    Ok(Payload { bytes, content_type })
}

#[cfg(test)]
mod tests {
    use bson::oid::ObjectId;
    use bson::raw::RawDocumentBuf;
    use bson::{Binary, Bson, DateTime, bson, doc};

    use super::*;

    fn rendered(value: Bson) -> (Option<String>, &'static str) {
        let document = RawDocumentBuf::try_from(&doc! { "p": value }).unwrap();
        let payload = render(document.get("p").unwrap().unwrap()).unwrap();
        let text = payload.bytes.map(|bytes| String::from_utf8(bytes).unwrap());
        (text, payload.content_type)
    }

    #[test]
    fn a_document_is_relaxed_extended_json_in_its_own_field_order() {
        let id = ObjectId::parse_str("0123456789abcdef01234567").unwrap();
        let value = bson!({
            "z": 1, "a": 2_i64, "d": 1.5, "whole": 2.0, "at": DateTime::from_millis(0), "id": id,
            "list": [true, null], "nan": f64::NAN,
        });

        let (text, content_type) = rendered(value);

        assert_eq!(
            text.unwrap(),
            r#"{"z":1,"a":2,"d":1.5,"whole":2.0,"at":{"$date":"1970-01-01T00:00:00Z"},"#.to_owned()
                + r#""id":{"$oid":"0123456789abcdef01234567"},"list":[true,null],"#
                + r#""nan":{"$numberDouble":"NaN"}}"#
        );
        assert_eq!(content_type, "application/json");
    }

    #[test]
    fn text_and_bytes_are_unchanged_and_null_is_empty() {
        let bytes =
            Binary { subtype: bson::spec::BinarySubtype::UserDefined(0x80), bytes: b"\x01".into() };

        assert_eq!(rendered("é".into()), (Some("é".into()), "text/plain; charset=utf-8"));
        assert_eq!(rendered(bytes.into()), (Some("\u{1}".into()), "application/octet-stream"));
        assert_eq!(rendered(Bson::Null), (None, "application/json"));
        assert_eq!(rendered(5.into()), (Some("5".into()), "application/json"));
    }
}
