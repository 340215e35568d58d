//! Parses JSON to BSON as written: `{"$oid": …}` stays an object, integers become int32 or int64.

use std::cell::Cell;
use std::fmt;

use bson::{Bson, Document};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::Flaw;
use crate::integer::smallest;
use crate::json::flaws::{FieldPath, FlawList};

/// Parses a JSON text. Flaws are what MongoDB cannot store as written: integers beyond 64 bits, a name
/// twice in one object, a NUL in a name.
///
/// # Errors
///
/// Invalid JSON. The error names the position and quotes nothing.
pub fn parse(text: &str) -> Result<(Bson, Vec<Flaw>), serde_json::Error> {
    let source = Source { text, at: Cell::new(0), flaws: FlawList::default() };
    let mut json = serde_json::Deserializer::from_str(text);
    let value = AsWritten { source: Some(&source), path: FieldPath::Body };
    let value = value.deserialize(&mut json)?;
    json.end()?;
    Ok((value, source.flaws.into()))
}

/// A text while it is parsed.
struct Source<'a> {
    text: &'a str,
    /// The end of the last number.
    at: Cell<usize>,
    flaws: FlawList,
}

impl<'a> Source<'a> {
    /// The next number as written. Must be called once for each number, in their order.
    fn next_number(&self) -> &'a str {
        let (mut in_string, mut at) = (false, self.at.get());
        while let Some(byte) = self.text.as_bytes().get(at) {
            match byte {
                b'\\' => at += 1,
                b'"' => in_string = !in_string,
                b'-' | b'0'..=b'9' if !in_string => break,
                _ => {}
            }
            at += 1;
        }
        let tail = self.text.get(at..).unwrap_or_default();
        let is_part = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        let end = tail.find(|c| !is_part(c)).unwrap_or(tail.len());
        self.at.set(at + end);
        tail.get(..end).unwrap_or_default()
    }
}

/// The visitor from JSON to BSON.
#[derive(Clone, Copy)]
pub(super) struct AsWritten<'a> {
    /// Not set when a parsed value is read again.
    source: Option<&'a Source<'a>>,
    path: FieldPath<'a>,
}

impl AsWritten<'static> {
    /// Reads a value that was parsed before.
    pub(super) const PARSED: Self = Self { source: None, path: FieldPath::Body };
}

impl<'a> AsWritten<'a> {
    fn inner<'b>(&self, path: FieldPath<'b>) -> AsWritten<'b>
    where
        'a: 'b,
    {
        AsWritten { source: self.source, path }
    }

    fn note(&self, path: FieldPath<'_>, detail: &str) {
        if let Some(source) = self.source {
            source.flaws.add(path, || detail.to_owned());
        }
    }
}

impl<'de> DeserializeSeed<'de> for AsWritten<'_> {
    type Value = Bson;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Bson, D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for AsWritten<'_> {
    type Value = Bson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Bson, E> {
        Ok(Bson::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Bson, E> {
        Ok(Bson::Boolean(value))
    }

    fn visit_i64<E>(self, integer: i64) -> Result<Bson, E> {
        self.source.map(Source::next_number);
        Ok(smallest(integer))
    }

    fn visit_u64<E: Error>(self, integer: u64) -> Result<Bson, E> {
        match i64::try_from(integer) {
            Ok(integer) => self.visit_i64(integer),
            Err(_) => self.visit_f64(integer as f64),
        }
    }

    fn visit_f64<E>(self, float: f64) -> Result<Bson, E> {
        let number = self.source.map(Source::next_number);
        if number.is_some_and(|number| !number.contains(['.', 'e', 'E'])) {
            // serde_json reads these integers as floats: -0, and those beyond 64 bits.
            if float == 0.0 {
                return Ok(Bson::Int32(0));
            }
            self.note(self.path, "is an integer with more than 64 bits; write it as a string");
        }
        Ok(Bson::Double(float))
    }

    fn visit_str<E>(self, text: &str) -> Result<Bson, E> {
        Ok(Bson::String(text.to_owned()))
    }

    fn visit_string<E>(self, text: String) -> Result<Bson, E> {
        Ok(Bson::String(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Bson, A::Error> {
        let mut items = Vec::new();
        while let Some(item) =
            from.next_element_seed(self.inner(FieldPath::Item(&self.path, items.len())))?
        {
            items.push(item);
        }
        Ok(Bson::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Bson, A::Error> {
        let mut document = Document::new();
        while let Some(name) = from.next_key::<String>()? {
            let path = FieldPath::Field(&self.path, &name);
            let value = from.next_value_seed(self.inner(path))?;
            if document.contains_key(&name) {
                self.note(path, "appears twice in its object");
            }
            if name.contains('\0') {
                self.note(path, "contains U+0000 in its name, which BSON cannot store");
            }
            document.insert(name, value);
        }
        Ok(Bson::Document(document))
    }
}

#[cfg(test)]
mod tests {
    use bson::bson;
    use postrider_outbox::json_view;

    use super::*;

    fn fields(text: &str) -> Vec<String> {
        parse(text).unwrap().1.into_iter().map(|flaw| flaw.field).collect()
    }

    #[test]
    fn integers_beyond_64_bits_are_found_by_path() {
        let text = r#" { "a" : [ 1 , {"b":9223372036854775808} ], "c": -9223372036854775809,
            "d\"": 123456789012345678901234567890 , "e": 9223372036854775807 } "#;

        assert_eq!(fields(text), ["a[1].b", "c", "d\""]);
    }

    #[test]
    fn floats_and_integers_of_64_bits_are_accepted() {
        for text in [
            "{}",
            "[]",
            "[[],{}]",
            r#"{"a":1e300,"b":12345678901234567890.0,"c":"12345678901234567890"}"#,
            r#"{"a":"\\","b":"\"12345678901234567890\"","c":[true,false,null,-0,-1]}"#,
            r#"{"12345678901234567890":1,"ä\u00e4":-1E+300}"#,
            "-9223372036854775808",
        ] {
            assert_eq!(fields(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn duplicate_names_are_found_despite_escapes() {
        assert_eq!(fields(r#"{"a":{"x":1,"\u0078":2},"b":{"x":1}}"#), ["a.x"]);
        assert_eq!(fields("{\"a\":{\"b\\u0000\":1}}"), ["a.b\0"]);
    }

    #[test]
    fn json_never_becomes_extended_json() {
        let text = r#"{"b":1,"a":{"$oid":"65a000000000000000000000"},"long":3000000000,
            "float":1.0,"null":null,"list":[true,"x"]}"#;

        let (value, flaws) = parse(text).unwrap();

        assert!(flaws.is_empty());
        assert_eq!(
            value,
            bson!({
                "b": 1, "a": { "$oid": "65a000000000000000000000" },
                "long": 3_000_000_000_i64, "float": 1.0, "null": null, "list": [true, "x"],
            })
        );
    }

    #[test]
    fn numbers_are_written_as_they_were_read() {
        for text in [
            "0.30000000000000004",
            "0.1",
            "1e300",
            "5e-324",
            "2.225073858507201e-308",
            "1.7976931348623157e308",
            "9007199254740993.0",
            "123456789.12345679",
            "-0.0",
            "1.0",
            "-1",
            "9223372036854775807",
        ] {
            let expected: f64 = text.parse().unwrap();

            let (value, flaws) = parse(text).unwrap();
            let written = json_view::value(&value).to_string();

            assert!(flaws.is_empty());
            assert_eq!(written.parse::<f64>().unwrap().to_bits(), expected.to_bits(), "{text}");
            assert_eq!(written.contains(['.', 'e']), text.contains(['.', 'e']), "{text} {written}");
        }
        assert_eq!(parse("-0").unwrap().0, Bson::Int32(0));
        assert_eq!(parse("[-0,1.5]").unwrap().0, bson!([0, 1.5]));
    }
}
