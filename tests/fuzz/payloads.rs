//! A payload as JSON, compared with the parser of the `bson` crate.

use bson::raw::{RawDocument, RawDocumentBuf};
use bson::{Bson, Document, doc};
use postrider::outbox::payload;
use proptest::prelude::*;

use crate::arbitrary;

fn rendered(value: &Bson) -> Option<Vec<u8>> {
    let document = RawDocumentBuf::try_from(&doc! { "p": value }).unwrap();
    payload::render(document.get("p").unwrap().unwrap()).unwrap().bytes
}

/// Whether a document's fields could be the parser's own (`{"$oid": …}`).
fn is_ambiguous(value: &Bson) -> bool {
    match value {
        Bson::Document(document) => is_ambiguous_document(document),
        Bson::Array(values) => values.iter().any(is_ambiguous),
        Bson::JavaScriptCodeWithScope(code) => is_ambiguous_document(&code.scope),
        _ => false,
    }
}

fn is_ambiguous_document(document: &Document) -> bool {
    document.iter().any(|(name, value)| name.starts_with('$') || is_ambiguous(value))
}

/// What relaxed JSON keeps of a value: neither an integer's size, nor NaN's sign and bits.
fn kept(value: &Bson) -> Bson {
    match value {
        Bson::Int32(number) => Bson::Int64((*number).into()),
        Bson::Double(number) if number.is_nan() => Bson::String("a NaN".into()),
        Bson::Decimal128(number) => Bson::String(format!("a decimal {number}")),
        Bson::Array(values) => values.iter().map(kept).collect(),
        Bson::Document(document) => Bson::Document(kept_document(document)),
        Bson::JavaScriptCodeWithScope(code) => {
            let scope = kept_document(&code.scope);
            Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope {
                code: code.code.clone(),
                scope,
            })
        }
        // Its options are in alphabetical order.
        Bson::RegularExpression(regex) => {
            let mut options: Vec<char> = regex.options.as_str().chars().collect();
            options.sort_unstable();
            Bson::String(format!("a regex {:?} {options:?}", regex.pattern))
        }
        other => other.clone(),
    }
}

fn kept_document(document: &Document) -> Document {
    document.iter().map(|(name, value)| (name.clone(), kept(value))).collect()
}

/// The same except for the last bits of a double, which `serde_json` may round.
fn are_alike(one: &Bson, other: &Bson) -> bool {
    match (one, other) {
        (Bson::Double(one), Bson::Double(other)) => {
            one == other || one.to_bits().abs_diff(other.to_bits()) <= 4
        }
        (Bson::Array(one), Bson::Array(other)) => {
            one.len() == other.len()
                && one.iter().zip(other).all(|(one, other)| are_alike(one, other))
        }
        (Bson::Document(one), Bson::Document(other)) => are_alike_documents(one, other),
        (Bson::JavaScriptCodeWithScope(one), Bson::JavaScriptCodeWithScope(other)) => {
            one.code == other.code && are_alike_documents(&one.scope, &other.scope)
        }
        (one, other) => one == other,
    }
}

fn are_alike_documents(one: &Document, other: &Document) -> bool {
    one.len() == other.len()
        && one
            .iter()
            .zip(other)
            .all(|((name, one), (of_other, other))| name == of_other && are_alike(one, other))
}

proptest! {
    #[test]
    fn any_rendered_payload_is_json(value in arbitrary::value()) {
        let is_json = !matches!(value, Bson::String(_) | Bson::Binary(_) | Bson::Null);

        let bytes = rendered(&value);

        prop_assert_eq!(bytes.is_none(), value == Bson::Null);
        if is_json {
            let json: Result<serde_json::Value, _> = serde_json::from_slice(&bytes.unwrap());
            prop_assert!(json.is_ok(), "{:?}", json);
        }
    }

    #[test]
    fn a_rendered_value_parses_back(value in arbitrary::value()) {
        prop_assume!(!is_ambiguous(&value));
        let list = Bson::Array(vec![value]);

        let text = rendered(&list).unwrap();
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        let parsed = Bson::try_from(json);

        let parsed = parsed.map_err(|error| TestCaseError::fail(format!("{error}: {list:?}")))?;
        let (parsed, list) = (kept(&parsed), kept(&list));
        prop_assert!(are_alike(&parsed, &list), "\n{:?}\n{:?}", parsed, list);
    }

    #[test]
    fn a_double_is_written_to_its_last_bit(number in arbitrary::double()) {
        prop_assume!(number.is_finite());

        let text = String::from_utf8(rendered(&Bson::Double(number)).unwrap()).unwrap();

        prop_assert_eq!(text.parse::<f64>().unwrap().to_bits(), number.to_bits(), "{}", text);
        prop_assert!(text.contains(['.', 'e']), "{} is no integer", text);
    }

    #[test]
    fn broken_bytes_are_an_error(bytes in arbitrary::broken_record()) {
        let Ok(document) = RawDocument::from_bytes(&bytes) else { return Ok(()) };
        for element in document.iter_elements() {
            let Ok(element) = element else { break };
            let Ok(value) = element.value() else { continue };
            if let Ok(payload) = payload::render(value)
                && payload.content_type == "application/json"
                && let Some(bytes) = payload.bytes
            {
                let json: Result<serde::de::IgnoredAny, _> = serde_json::from_slice(&bytes);
                prop_assert!(json.is_ok(), "{:?}", String::from_utf8_lossy(&bytes));
            }
        }
    }
}
