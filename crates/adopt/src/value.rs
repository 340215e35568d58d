//! Where a value of the record comes from: a path, a constant, or a constant with paths in braces.

use bson::{Bson, Document};
use postrider_outbox::ids::RecordId;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A path of names and dots. It continues inside a text that is JSON.
    Path(String),
    /// A text, in which each path in braces is replaced.
    Template(String),
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
            return Ok(Self::Template(template.to_owned()));
        }
        if text.is_empty() || text.split('.').any(str::is_empty) {
            return Err("must be a path, such as data.id, or a constant, such as =order".to_owned());
        }
        Ok(Self::Path(text.to_owned()))
    }

    /// The value in a document; `None` where it is absent or null.
    pub fn of(&self, document: &Document) -> Option<Bson> {
        match self {
            Self::Path(path) => at(document, path),
            Self::Template(template) => filled(template, document).map(Bson::String),
        }
    }
}

/// The value at a path; `None` where it is absent or null.
pub fn at(document: &Document, path: &str) -> Option<Bson> {
    let (first, rest) =
        path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let found = document.get(first).filter(|found| !matches!(found, Bson::Null))?;
    match (rest, found) {
        (None, found) => Some(found.clone()),
        (Some(rest), Bson::Document(below)) => at(below, rest),
        (Some(rest), Bson::String(text)) => within_json(text, rest),
        _ => None,
    }
}

/// The value at a path of a JSON text. Its numbers and their digits stay as they are written.
fn within_json(text: &str, path: &str) -> Option<Bson> {
    let mut value: serde_json::Value = serde_json::from_str(text).ok()?;
    for name in path.split('.') {
        value = value.as_object_mut()?.remove(name)?;
    }
    match value {
        serde_json::Value::Null => None,
        value => Bson::try_from(value).ok(),
    }
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
        for wrong in ["", "a..b", ".a", "={a"] {
            assert!(FieldValue::parse(wrong).is_err(), "{wrong}");
        }
    }
}
