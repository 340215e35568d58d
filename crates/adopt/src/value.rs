//! Where a value of the record comes from: a path, a constant, or a constant with paths in braces.

use std::collections::HashMap;

use bson::{Bson, Document};
use postrider_outbox::ids::RecordId;
use serde_json::value::RawValue;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A path of names and dots. It continues inside a text that is JSON.
    Path(String),
    /// A text, in which each path in braces is replaced.
    Template(String),
}

/// What a path leads to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Found {
    /// A value of the document.
    Value(Bson),
    /// A value inside of a text that is JSON, as it is written there.
    Json(String),
}

impl Found {
    /// The value; `None` for a null.
    fn into_value(self) -> Result<Option<Bson>, String> {
        let value = match self {
            Self::Value(value) => value,
            Self::Json(text) => extended_json(&text)?,
        };
        Ok(Some(value).filter(|value| *value != Bson::Null))
    }
}

/// Reads JSON, or extended JSON.
///
/// # Errors
///
/// It is neither, or a number would lose digits.
pub(crate) fn extended_json(text: &str) -> Result<Bson, String> {
    let value: serde_json::Value = serde_json::from_str(text).map_err(|error| not_json(&error))?;
    if let Some(number) = beyond_64_bits(&value) {
        return Err(format!("contains the number {number}, which has more than 64 bits"));
    }
    Bson::try_from(value).map_err(|error| not_json(&error))
}

pub(crate) fn not_json(error: &dyn std::fmt::Display) -> String {
    format!("cannot be read as JSON: {error}")
}

/// A number whose digits neither an integer of 64 bits nor, for all that is known, a double has.
fn beyond_64_bits(value: &serde_json::Value) -> Option<&serde_json::Number> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    match value {
        serde_json::Value::Number(number) => {
            let is_beyond =
                number.as_i64().is_none() && number.as_f64().is_some_and(|it| it.abs() >= LIMIT);
            is_beyond.then_some(number)
        }
        serde_json::Value::Array(values) => values.iter().find_map(beyond_64_bits),
        serde_json::Value::Object(members) => members.values().find_map(beyond_64_bits),
        _ => None,
    }
}

impl FieldValue {
    /// Reads `path`, `=constant` or `=constant {path}`.
    ///
    /// # Errors
    ///
    /// What is wrong, and what to do.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(template) = text.strip_prefix('=') {
            if template.matches('{').count() != template.matches('}').count() {
                return Err("has a brace without its other one; write {path}".to_owned());
            }
            for part in template.split('{').skip(1) {
                check_path(part.split('}').next().unwrap_or_default())?;
            }
            return Ok(Self::Template(template.to_owned()));
        }
        check_path(text)?;
        Ok(Self::Path(text.to_owned()))
    }

    /// The value in a document; `None` where it is absent or null.
    ///
    /// # Errors
    ///
    /// What cannot be read.
    pub fn of(&self, document: &Document) -> Result<Option<Bson>, String> {
        self.found(document)?.map_or(Ok(None), Found::into_value)
    }

    /// The value in a document, as it is written there; `None` where it is absent, or null in the document itself.
    pub(crate) fn found(&self, document: &Document) -> Result<Option<Found>, String> {
        match self {
            Self::Path(path) => find(document, path),
            Self::Template(template) => {
                let filled = filled(template, document)?;
                Ok(filled.map(|text| Found::Value(Bson::String(text))))
            }
        }
    }

    /// The path, unless it is a constant.
    pub(crate) fn path(&self) -> Option<&str> {
        match self {
            Self::Path(path) => Some(path),
            Self::Template(_) => None,
        }
    }

    /// Whether the document has the field, and it is null.
    pub fn is_null(&self, document: &Document) -> bool {
        let Self::Path(path) = self else { return false };
        match path.rsplit_once('.') {
            None => document.get(path.as_str()) == Some(&Bson::Null),
            Some((above, name)) => match at(document, above) {
                Some(Bson::Document(above)) => above.get(name) == Some(&Bson::Null),
                _ => false,
            },
        }
    }
}

/// The value at a path; `None` where it is absent or null, or cannot be read.
pub fn at(document: &Document, path: &str) -> Option<Bson> {
    find(document, path).ok()??.into_value().ok()?
}

/// Checks a path of names and dots.
///
/// # Errors
///
/// What is wrong, and what to do.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let is_name = |name: &str| {
        !name.is_empty() && !name.starts_with(['$', '=']) && !name.contains(['\0', '{', '}'])
    };
    if path.split('.').all(is_name) {
        return Ok(());
    }
    let detail = "has an invalid path; write names with dots, such as data.id, or a constant, such as =order, with each \
                  path in braces";
    Err(detail.to_owned())
}

/// What is at a path; `None` where it is absent, or null in the document itself.
///
/// # Errors
///
/// A text on the path is not a JSON object.
pub(crate) fn find(document: &Document, path: &str) -> Result<Option<Found>, String> {
    let (first, rest) =
        path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let Some(found) = document.get(first).filter(|found| !matches!(found, Bson::Null)) else {
        return Ok(None);
    };
    match (rest, found) {
        (None, found) => Ok(Some(Found::Value(found.clone()))),
        (Some(rest), Bson::Document(below)) => find(below, rest),
        (Some(rest), Bson::String(text)) => {
            let found = within_json(text, rest);
            let found = found.map_err(|error| format!("({first}) {}", not_json(&error)))?;
            Ok(found.map(|found| Found::Json(found.to_owned())))
        }
        _ => Ok(None),
    }
}

/// The value at a path of a JSON text, as it is written.
fn within_json<'a>(mut text: &'a str, path: &str) -> Result<Option<&'a str>, serde_json::Error> {
    for name in path.split('.') {
        let members: Option<HashMap<String, &'a RawValue>> = serde_json::from_str(text)?;
        let Some(found) = members.as_ref().and_then(|members| members.get(name)) else {
            return Ok(None);
        };
        text = found.get();
    }
    Ok(Some(text))
}

fn filled(template: &str, document: &Document) -> Result<Option<String>, String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, (path, after))) = next_path(rest) {
        let found = find(document, path)?.map_or(Ok(None), Found::into_value)?;
        let Some(value) = found else { return Ok(None) };
        let value = scalar_text(&value);
        text.push_str(before);
        text.push_str(
            &value.ok_or_else(|| format!("({path}) is not a text, integer, UUID or ObjectId"))?,
        );
        rest = after;
    }
    text.push_str(rest);
    Ok(Some(text))
}

fn next_path(template: &str) -> Option<(&str, (&str, &str))> {
    let (before, behind) = template.split_once('{')?;
    Some((before, behind.split_once('}')?))
}

/// The text of an id or key: of a text, an integer, a UUID or an ObjectId.
pub fn scalar_text(value: &Bson) -> Option<String> {
    let id = RecordId::from(value.clone());
    id.is_well_formed().then(|| id.to_string())
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use bson::oid::ObjectId;

    use super::*;

    #[test]
    fn path_continues_inside_a_text_that_is_json() {
        let id = ObjectId::new();
        let document = doc! { "a": { "b": 1 }, "c": r#"{"d": {"e-f": "x"}}"#, "n": null, "id": id };
        let of = |text: &str| FieldValue::parse(text).unwrap().of(&document).unwrap();

        assert_eq!(of("a.b"), Some(Bson::Int32(1)));
        assert_eq!(of("c.d.e-f"), Some("x".into()));
        assert_eq!(of("=t.{c.d.e-f}/{id}"), Some(format!("t.x/{id}").into()));
        assert_eq!(of("=order"), Some("order".into()));
        for absent in ["n", "a.x", "c.x", "a.b.c", "=t.{x}"] {
            assert_eq!(of(absent), None, "{absent}");
        }
        for wrong in ["", "a..b", ".a", "={a", "$a", "a.$b", "=x{}", "={a..b}", "={a}}{"] {
            assert!(FieldValue::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn value_inside_of_json_stays_as_it_is_written() {
        for written in [
            r#""hello""#,
            "1.10",
            "12345678901234567890123",
            "null",
            "[1, 2]",
            r#"{"b": 1,  "a": 2}"#,
        ] {
            let document = doc! { "c": format!(r#"{{"v": {written}}}"#) };
            let found = FieldValue::parse("c.v").unwrap().found(&document);
            assert_eq!(found, Ok(Some(Found::Json(written.to_owned()))));
        }
        let found = |document| FieldValue::parse("c.v").unwrap().found(&document);
        assert_eq!(found(doc! { "c": r#"{"w": 1}"# }), Ok(None));
        assert!(found(doc! { "c": "plain" }).unwrap_err().contains("(c) cannot be read as JSON"));
    }

    #[test]
    fn json_that_bson_cannot_hold_is_an_error() {
        for text in [
            r#"{"d": {"$date": "x"}}"#,
            r#"{"a": 12345678901234567890123}"#,
            "[18446744073709551615]",
            r#"{"e": 1e400}"#,
            r#"{"a": "\ud800"}"#,
        ] {
            let document = doc! { "c": format!(r#"{{"v": {text}}}"#) };
            assert!(FieldValue::parse("c.v").unwrap().of(&document).is_err(), "{text}");
        }
    }
}
