//! Reports differences from the expected schema, without changes.

use std::fmt;

use bson::{Bson, Document};

use crate::schema::compare::{IndexComparison, IndexConflict, compare};
use crate::schema::error::SchemaError;
use crate::schema::existing::ExistingSchema;
use crate::schema::index::Index;
use crate::schema::layout::{CollectionLayout, Layout};

/// A difference from the expected schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The object: a collection, or an index of one.
    pub subject: String,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub wanted: String,
    /// The MongoDB action by which [`apply`](Layout::apply) resolves it; `None` if an operator
    /// must.
    pub made_by: Option<&'static str>,
}

/// The found value of a missing object.
const MISSING: &str = "missing";

impl Difference {
    /// Returns whether the object is missing.
    pub fn is_missing(&self) -> bool {
        self.found == MISSING
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, must be {}", self.subject, self.found, self.wanted)
    }
}

impl Layout {
    /// Compares the database with the layout; without differences, [`apply`](Self::apply) would do
    /// nothing.
    ///
    /// An existing validator or the lack of one is not a difference, since a collection keeps it.
    /// Neither are other objects in the database.
    pub async fn verify(&self) -> Result<Vec<Difference>, SchemaError> {
        let found = ExistingSchema::look(self).await?;
        let of_collections = self.parts.iter().filter_map(|part| collection(part, &found));
        let of_indexes = self.parts.iter().flat_map(|part| {
            let there = found.indexes(&part.name);
            part.indexes.iter().filter_map(|index| self.index(index, part, there))
        });
        Ok(of_collections.chain(of_indexes).collect())
    }

    fn index(
        &self,
        index: &Index,
        part: &CollectionLayout,
        there: &[Document],
    ) -> Option<Difference> {
        let definition = || {
            let mut definition = index.definition(self.retention);
            definition.remove("name");
            Bson::Document(definition).into_relaxed_extjson().to_string()
        };
        let (found, wanted, made_by) = match compare(index, there, self.retention) {
            IndexComparison::Same => return None,
            IndexComparison::Missing => (MISSING.into(), definition(), Some("createIndex")),
            IndexComparison::Expiry { found, wanted } => (
                format!(
                    "configured to delete records {} s after delivery",
                    found.into_relaxed_extjson()
                ),
                format!("configured to delete them after {wanted} s"),
                Some("collMod"),
            ),
            IndexComparison::IndexConflict(IndexConflict { found, wanted, .. }) => {
                (found, wanted, None)
            }
            IndexComparison::Excluded { by, rival } => (
                format!("in conflict with the unique index {by} ({})", rival.setting),
                "the only unique index of request ids".into(),
                None,
            ),
        };
        let subject = format!("index {} of {}", index.name, part.name);
        Some(Difference { subject, found, wanted, made_by })
    }
}

fn collection(part: &CollectionLayout, found: &ExistingSchema) -> Option<Difference> {
    let (found, made_by) = match found.what_is_wrong_with(&part.name) {
        None if found.has(&part.name) => return None,
        None => (MISSING.to_owned(), Some("createCollection")),
        Some(wrong) => (wrong, None),
    };
    let subject = format!("collection {}", part.name);
    Some(Difference { subject, found, wanted: "a plain collection".into(), made_by })
}
