//! Which fields of a document are answered.

use bson::{Bson, Document};

use super::compile::Target;
use super::field::FieldName;

/// The fields of the answers; all by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Projection {
    /// All.
    #[default]
    All,
    /// These, and the id.
    Include(Vec<FieldName>),
    /// All but these.
    Exclude(Vec<FieldName>),
}

/// Two names of a projection, one of which contains the other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {0} and {1}, one of which contains the other; remove one of the two")]
pub struct OverlappingFields(pub FieldName, pub FieldName);

impl Projection {
    /// Checks that no field contains another one, which MongoDB refuses.
    ///
    /// # Errors
    ///
    /// [`OverlappingFields`].
    pub fn check(&self, target: Target) -> Result<(), OverlappingFields> {
        let fields = self.fields();
        for (at, field) in fields.iter().enumerate() {
            let stored = target.stored(field);
            let overlaps = |other: &&FieldName| {
                let other = target.stored(other);
                other != stored && (contains(other, stored) || contains(stored, other))
            };
            if let Some(other) = fields.iter().take(at).find(overlaps) {
                return Err(OverlappingFields(other.clone(), field.clone()));
            }
        }
        Ok(())
    }

    /// The fields that it names.
    pub(super) fn fields(&self) -> &[FieldName] {
        match self {
            Self::All => &[],
            Self::Include(fields) | Self::Exclude(fields) => fields,
        }
    }

    /// The projection for MongoDB of documents that must also have these stored fields, and whether
    /// [`apply`](Self::apply) must take some away afterwards.
    pub(super) fn stored(&self, target: Target, needed: &[&str]) -> (Document, bool) {
        let mut projection = Document::new();
        let mut is_wider = false;
        match self {
            Self::All => {}
            // Without any field, MongoDB would answer all of them.
            Self::Include(fields) => {
                let mut names: Vec<&str> =
                    fields.iter().map(|field| target.stored(field)).collect();
                if names.is_empty() {
                    names.push("_id");
                }
                for needed in needed.iter().filter(|needed| **needed != "_id") {
                    if !names.iter().any(|name| contains(name, needed)) {
                        names.retain(|name| !contains(needed, name));
                        names.push(needed);
                        is_wider = true;
                    }
                }
                projection.extend(names.into_iter().map(|name| (name.to_owned(), Bson::Int32(1))));
            }
            Self::Exclude(fields) => {
                for name in fields.iter().map(|field| target.stored(field)) {
                    if needed.iter().any(|needed| contains(name, needed) || contains(needed, name))
                    {
                        is_wider = true;
                    } else {
                        projection.insert(name, 0);
                    }
                }
            }
        }
        (projection, is_wider)
    }

    /// Takes away what the projection leaves out of a stored document, as MongoDB does.
    pub(super) fn apply(&self, target: Target, document: &mut Document) {
        match self {
            Self::All => {}
            Self::Include(fields) => {
                let mut names: Vec<&str> =
                    fields.iter().map(|field| target.stored(field)).collect();
                names.push("_id");
                keep(document, &names);
            }
            Self::Exclude(fields) => {
                for field in fields {
                    remove(document, target.stored(field));
                }
            }
        }
    }
}

/// Whether a name is that of a field or of one that contains it.
fn contains(name: &str, field: &str) -> bool {
    field.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Keeps these fields of a document, and of the documents in its arrays.
fn keep(document: &mut Document, names: &[&str]) {
    let mut kept = Document::new();
    for (field, mut value) in std::mem::take(document) {
        let below: Vec<&str> = names.iter().filter_map(|name| below(name, &field)).collect();
        let is_whole = names.contains(&field.as_str());
        if is_whole || (!below.is_empty() && keep_in(&mut value, &below)) {
            kept.insert(field, value);
        }
    }
    *document = kept;
}

/// Keeps these fields of a value; `false` for one that has no fields.
fn keep_in(value: &mut Bson, names: &[&str]) -> bool {
    match value {
        Bson::Document(document) => keep(document, names),
        Bson::Array(items) => items.retain_mut(|item| keep_in(item, names)),
        _ => return false,
    }
    true
}

fn remove(document: &mut Document, name: &str) {
    match name.split_once('.') {
        None => drop(document.remove(name)),
        Some((field, rest)) => {
            if let Some(value) = document.get_mut(field) {
                remove_in(value, rest);
            }
        }
    }
}

fn remove_in(value: &mut Bson, name: &str) {
    match value {
        Bson::Document(document) => remove(document, name),
        Bson::Array(items) => items.iter_mut().for_each(|item| remove_in(item, name)),
        _ => {}
    }
}

/// The rest of a name below a field.
fn below<'n>(name: &'n str, field: &str) -> Option<&'n str> {
    name.strip_prefix(field)?.strip_prefix('.')
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn fields(names: &[&str]) -> Vec<FieldName> {
        names.iter().map(|name| FieldName::new(*name).unwrap()).collect()
    }

    #[test]
    fn fields_that_contain_each_other_are_refused() {
        for (names, is_valid) in [
            (&["a", "b"][..], true),
            (&["a", "a"], true),
            (&["a.b", "a"], false),
            (&["a", "b", "a.c"], false),
        ] {
            assert_eq!(
                Projection::Include(fields(names)).check(Target::Events).is_ok(),
                is_valid,
                "{names:?}"
            );
        }
    }

    #[test]
    fn mongodb_also_reads_what_the_order_needs() {
        let include = |names: &[&str]| Projection::Include(fields(names));
        let exclude = |names: &[&str]| Projection::Exclude(fields(names));
        for (projection, needed, stored, is_wider) in [
            (Projection::All, &["a"][..], doc! {}, false),
            (include(&["a", "aggregateId"]), &["_id"], doc! { "a": 1, "_id": 1 }, false),
            (include(&["a"]), &["a.b", "_id"], doc! { "a": 1 }, false),
            (include(&["a.b", "c"]), &["a"], doc! { "c": 1, "a": 1 }, true),
            (exclude(&["a", "b"]), &["c"], doc! { "a": 0, "b": 0 }, false),
            (exclude(&["a", "b"]), &["a.x"], doc! { "b": 0 }, true),
            (exclude(&["aggregateId"]), &["_id"], doc! {}, true),
        ] {
            assert_eq!(
                projection.stored(Target::Snapshots, needed),
                (stored, is_wider),
                "{projection:?}"
            );
        }
    }

    #[test]
    fn what_was_only_needed_is_taken_away() {
        let document = doc! { "_id": "1", "a": { "b": 1, "c": [{ "d": 1, "e": 2 }, 3, [{ "d": 4 }]] }, "f": 5 };
        for (projection, left) in [
            (
                Projection::Include(fields(&["a.c.d"])),
                doc! { "_id": "1", "a": { "c": [{ "d": 1 }, [{ "d": 4 }]] } },
            ),
            (Projection::Include(fields(&["f.x"])), doc! { "_id": "1" }),
            (
                Projection::Exclude(fields(&["a.c.d", "f", "id"])),
                doc! { "a": { "b": 1, "c": [{ "e": 2 }, 3, [{}]] } },
            ),
        ] {
            let mut projected = document.clone();
            projection.apply(Target::Events, &mut projected);
            assert_eq!(projected, left, "{projection:?}");
        }
    }
}
