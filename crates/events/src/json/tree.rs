//! JSON to BSON, as it was written: `{"$oid": …}` stays an object, integers become int32 or int64.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;

use bson::{Bson, Document};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::Flaw;

/// The most flaws of one text that are reported.
const MAX_FLAWS: usize = 20;

/// The deepest nesting of one value: MongoDB accepts it wherever the value is stored.
const MAX_LEVELS: usize = 100;

/// Parses a JSON text. Its flaws are what a JSON parser accepts and MongoDB would store otherwise than
/// written: integers beyond 64 bits, a name twice in one object, a NUL in a name.
///
/// # Errors
///
/// The text is not JSON. The error names the position and quotes nothing.
pub fn parse(text: &str) -> Result<(Bson, Vec<Flaw>), serde_json::Error> {
    let scan = Scan::of(text);
    let mut json = serde_json::Deserializer::from_str(text);
    let value = AsWritten { scan: Some(&scan), path: FieldPath::Body, level: 0 };
    let value = value.deserialize(&mut json)?;
    json.end()?;
    Ok((value, scan.flaws.into_inner()))
}

/// The path to a field, such as `events[0].name`.
#[derive(Clone, Copy, Debug)]
pub enum FieldPath<'a> {
    /// The whole body.
    Body,
    /// A field of an object.
    Field(&'a FieldPath<'a>, &'a str),
    /// An item of an array.
    Item(&'a FieldPath<'a>, usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Body => Ok(()),
            Self::Field(Self::Body, name) => f.write_str(name),
            Self::Field(path, name) => write!(f, "{path}.{name}"),
            Self::Item(path, index) => write!(f, "{path}[{index}]"),
        }
    }
}

/// What is known of a text while it is parsed.
struct Scan<'a> {
    text: &'a str,
    /// The end of the last number.
    at: Cell<usize>,
    flaws: RefCell<Vec<Flaw>>,
}

impl<'a> Scan<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, at: Cell::new(0), flaws: RefCell::default() }
    }

    fn note(&self, path: FieldPath<'_>, detail: &str) {
        let mut flaws = self.flaws.borrow_mut();
        if flaws.len() < MAX_FLAWS {
            flaws.push(Flaw::new(path.to_string(), detail));
        }
    }

    /// The next number as written. serde_json reads an integer beyond 64 bits as a float.
    fn number(&self) -> &'a str {
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
    /// Set while a text is parsed; a value that is read again was checked then.
    scan: Option<&'a Scan<'a>>,
    path: FieldPath<'a>,
    level: usize,
}

impl AsWritten<'static> {
    /// Reads a value that was parsed, up to the deepest nesting of one value.
    pub(super) fn again() -> Self {
        Self { scan: None, path: FieldPath::Body, level: 0 }
    }
}

impl<'a> AsWritten<'a> {
    fn inner<'b>(&self, path: FieldPath<'b>) -> AsWritten<'b>
    where
        'a: 'b,
    {
        AsWritten { scan: self.scan, path, level: self.level + 1 }
    }

    /// Whether the number is an integer beyond 64 bits. Called once for each number, in their order.
    fn check_integer(&self, is_beyond: bool) {
        let Some(scan) = self.scan else { return };
        let number = scan.number();
        if is_beyond && !number.contains(['.', 'e', 'E']) {
            scan.note(self.path, "is an integer beyond 64 bits; write a string");
        }
    }
}

impl<'de> DeserializeSeed<'de> for AsWritten<'_> {
    type Value = Bson;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Bson, D::Error> {
        if self.scan.is_none() && self.level > MAX_LEVELS {
            return Err(D::Error::custom(format_args!(
                "is nested deeper than {MAX_LEVELS} levels"
            )));
        }
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
        self.check_integer(false);
        Ok(i32::try_from(integer).map_or(Bson::Int64(integer), Bson::Int32))
    }

    fn visit_u64<E: Error>(self, integer: u64) -> Result<Bson, E> {
        match i64::try_from(integer) {
            Ok(integer) => self.visit_i64(integer),
            Err(_) => {
                self.check_integer(true);
                Ok(Bson::Double(integer as f64))
            }
        }
    }

    fn visit_f64<E>(self, float: f64) -> Result<Bson, E> {
        self.check_integer(float.abs() >= I64_END);
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
        let (mut document, mut names) = (Document::new(), HashSet::new());
        while let Some(name) = from.next_key::<String>()? {
            let path = FieldPath::Field(&self.path, &name);
            let value = from.next_value_seed(self.inner(path))?;
            if let Some(scan) = self.scan {
                if !names.insert(name.clone()) {
                    scan.note(path, "appears twice in its object");
                }
                if name.contains('\0') {
                    scan.note(path, "has a NUL in its name, which BSON cannot store");
                }
            }
            document.insert(name, value);
        }
        Ok(Bson::Document(document))
    }
}

/// 2^63: the first float above every int64.
const I64_END: f64 = 9_223_372_036_854_775_808.0;

/// The integer that a number is, however it is written: `1`, `1.0`, `1e3`.
pub fn integer(number: &Bson) -> Option<i64> {
    match *number {
        Bson::Int32(small) => Some(small.into()),
        Bson::Int64(integer) => Some(integer),
        Bson::Double(float) if float.fract() == 0.0 && float.abs() < I64_END => Some(float as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::bson;

    use super::*;

    fn fields(text: &str) -> Vec<String> {
        parse(text).unwrap().1.into_iter().map(|flaw| flaw.field).collect()
    }

    #[test]
    fn integers_beyond_64_bits_are_found_by_their_path() {
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
            r#"{"a":"\\","b":"\"12345678901234567890\"","c":[true,false,null,-0]}"#,
            r#"{"12345678901234567890":1,"ä\u00e4":-1E+300}"#,
            "-9223372036854775808",
        ] {
            assert_eq!(fields(text), [""; 0], "{text}");
        }
    }

    #[test]
    fn a_name_that_appears_twice_is_found_however_it_is_written() {
        assert_eq!(fields(r#"{"a":{"x":1,"\u0078":2},"b":{"x":1}}"#), ["a.x"]);
        assert_eq!(fields("{\"a\":{\"b\\u0000\":1}}"), ["a.b\0"]);
    }

    #[test]
    fn json_stays_as_written_and_never_becomes_extended_json() {
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
}
