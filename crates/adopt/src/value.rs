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
    /// The value; `None` for a null, and for JSON that has no form in BSON.
    fn into_value(self) -> Option<Bson> {
        let value = match self {
            Self::Value(value) => value,
            Self::Json(text) => {
                Bson::try_from(serde_json::from_str::<serde_json::Value>(&text).ok()?).ok()?
            }
        };
        (value != Bson::Null).then_some(value)
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
    pub fn of(&self, document: &Document) -> Option<Bson> {
        self.found(document)?.into_value()
    }

    /// The value in a document, as it is written there; `None` where it is absent, or null in the document itself.
    pub(crate) fn found(&self, document: &Document) -> Option<Found> {
        match self {
            Self::Path(path) => find(document, path),
            Self::Template(template) => {
                filled(template, document).map(|text| Found::Value(Bson::String(text)))
            }
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

/// The value at a path; `None` where it is absent or null.
pub fn at(document: &Document, path: &str) -> Option<Bson> {
    find(document, path)?.into_value()
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
    Err(format!(
        "{path:?} is not a path; write names with dots, such as data.id, or a constant, such as =order, with each \
         path in braces"
    ))
}

fn find(document: &Document, path: &str) -> Option<Found> {
    let (first, rest) =
        path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let found = document.get(first).filter(|found| !matches!(found, Bson::Null))?;
    match (rest, found) {
        (None, found) => Some(Found::Value(found.clone())),
        (Some(rest), Bson::Document(below)) => find(below, rest),
        (Some(rest), Bson::String(text)) => {
            within_json(text, rest).map(|found| Found::Json(found.to_owned()))
        }
        _ => None,
    }
}

/// The value at a path of a JSON text, as it is written.
fn within_json<'a>(mut text: &'a str, path: &str) -> Option<&'a str> {
    for name in path.split('.') {
        let members: HashMap<String, &'a RawValue> = serde_json::from_str(text).ok()?;
        text = members.get(name)?.get();
    }
    Some(text)
}

fn filled(template: &str, document: &Document) -> Option<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('{') {
        let (path, after) = behind.split_once('}')?;
        text.push_str(before);
        text.push_str(&scalar_text(&at(document, path)?)?);
        rest = after;
    }
    text.push_str(rest);
    Some(text)
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
        let of = |text: &str| FieldValue::parse(text).unwrap().of(&document);

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
            assert_eq!(found, Some(Found::Json(written.to_owned())));
        }
        let absent = doc! { "c": r#"{"w": 1}"# };
        assert_eq!(FieldValue::parse("c.v").unwrap().found(&absent), None);
    }
}
