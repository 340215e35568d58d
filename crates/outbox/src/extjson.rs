//! Converts BSON to relaxed extended JSON, version 2.
//!
//! The `bson` crate converts recursively: a document with the maximum nesting of MongoDB can
//! overflow the stack of a worker. This module is not recursive.

use bson::raw::{RawBsonRef, RawDocument, RawIter};
use bson::{Bson, DateTime};
use serde::Serialize;
use serde_json::json;

/// The first millisecond whose year has five digits.
const YEAR_10000: i64 = 253_402_300_800_000;

/// Writes a value of any BSON type as compact JSON. Fields keep their order; duplicate fields stay.
///
/// # Errors
///
/// The decoder's message if the bytes are not valid BSON.
pub fn relaxed(value: RawBsonRef<'_>) -> Result<Vec<u8>, String> {
    let mut writer = Writer::default();
    writer.value(value)?;
    while let Some(mut level) = writer.open.pop() {
        let Some(element) = level.elements.next() else {
            writer.text.extend(level.end);
            continue;
        };
        let element = element.map_err(|error| error.to_string())?;
        if level.begun {
            writer.text.push(b',');
        }
        level.begun = true;
        if level.named {
            writer.json(element.key().as_str())?;
            writer.text.push(b':');
        }
        writer.open.push(level);
        writer.value(element.value().map_err(|error| error.to_string())?)?;
    }
    Ok(writer.text)
}

#[derive(Default)]
struct Writer<'a> {
    text: Vec<u8>,
    /// Open documents and arrays, innermost last.
    open: Vec<Level<'a>>,
}

struct Level<'a> {
    elements: RawIter<'a>,
    /// Whether to write the names of elements (false for an array).
    named: bool,
    begun: bool,
    end: &'static [u8],
}

impl<'a> Writer<'a> {
    fn value(&mut self, value: RawBsonRef<'a>) -> Result<(), String> {
        match value {
            RawBsonRef::Document(document) => {
                self.text.push(b'{');
                self.begin(document, true, b"}");
                Ok(())
            }
            RawBsonRef::Array(array) => {
                self.text.push(b'[');
                let elements = RawDocument::from_bytes(array.as_bytes());
                self.begin(elements.map_err(|error| error.to_string())?, false, b"]");
                Ok(())
            }
            RawBsonRef::JavaScriptCodeWithScope(code) => {
                self.text.extend(br#"{"$code":"#);
                self.json(code.code)?;
                self.text.extend(br#","$scope":{"#);
                self.begin(code.scope, true, b"}}");
                Ok(())
            }
            RawBsonRef::String(text) => self.json(text),
            // The specification has no sign of NaN; 0.0 / 0.0 has one on x86.
            RawBsonRef::Double(number) if number.is_nan() => {
                self.json(&json!({ "$numberDouble": "NaN" }))
            }
            RawBsonRef::DateTime(date) => self.json(&json!({ "$date": relaxed_date(date) })),
            scalar => {
                let value = Bson::try_from(scalar).map_err(|error| error.to_string())?;
                self.json(&value.into_relaxed_extjson())
            }
        }
    }

    fn begin(&mut self, document: &'a RawDocument, named: bool, end: &'static [u8]) {
        let elements = document.iter_elements();
        self.open.push(Level { elements, named, begun: false, end });
    }

    fn json(&mut self, value: &(impl Serialize + ?Sized)) -> Result<(), String> {
        serde_json::to_writer(&mut self.text, value).map_err(|error| error.to_string())
    }
}

/// Formats a date as text from 1970 to 9999, with three fraction digits or none, else as a number.
fn relaxed_date(date: DateTime) -> serde_json::Value {
    let millis = date.timestamp_millis();
    let text = (0..YEAR_10000).contains(&millis).then(|| {
        let fraction = millis % 1_000;
        let whole = DateTime::from_millis(millis - fraction).try_to_rfc3339_string().ok()?;
        match fraction {
            0 => Some(whole),
            _ => Some(format!("{}.{fraction:03}Z", whole.strip_suffix('Z')?)),
        }
    });
    match text.flatten() {
        Some(text) => json!(text),
        None => json!({ "$numberLong": millis.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use bson::raw::{RawDocumentBuf, cstr};
    use bson::{Bson, JavaScriptCodeWithScope, bson, doc, rawdoc};

    use super::*;

    fn text(value: impl Into<Bson>) -> String {
        let document = RawDocumentBuf::try_from(&doc! { "v": value.into() }).unwrap();
        String::from_utf8(relaxed(document.get("v").unwrap().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn a_fraction_of_a_second_has_three_digits() {
        for (millis, expected) in [
            (0, r#"{"$date":"1970-01-01T00:00:00Z"}"#),
            (1_500, r#"{"$date":"1970-01-01T00:00:01.500Z"}"#),
            (YEAR_10000 - 1, r#"{"$date":"9999-12-31T23:59:59.999Z"}"#),
            (YEAR_10000, r#"{"$date":{"$numberLong":"253402300800000"}}"#),
            (-1, r#"{"$date":{"$numberLong":"-1"}}"#),
        ] {
            assert_eq!(text(DateTime::from_millis(millis)), expected);
        }
    }

    #[test]
    fn the_sign_of_nan_is_not_shown() {
        assert_eq!(text(-f64::NAN), r#"{"$numberDouble":"NaN"}"#);
    }

    #[test]
    fn code_keeps_its_scope_and_arrays_have_no_indexes() {
        let scope = doc! { "a": [1, { "b": [] }], "c": {} };
        let code = JavaScriptCodeWithScope { code: "f\"".into(), scope };

        let expected = r#"[{"$code":"f\"","$scope":{"a":[1,{"b":[]}],"c":{}}},2]"#;
        assert_eq!(text(bson!([code, 2])), expected);
    }

    #[test]
    fn deep_nesting_does_not_overflow_the_stack() {
        const DEPTH: usize = 10_000;
        let mut deep = rawdoc! {};
        for _ in 0..DEPTH {
            let inner = deep;
            deep = RawDocumentBuf::new();
            deep.append(cstr!("d"), inner);
        }

        let text = relaxed(RawBsonRef::Document(&deep)).unwrap();

        assert_eq!(text.len(), DEPTH * r#"{"d":}"#.len() + 2);
    }
}
