//! Telling what differs, without touching it.

use std::fmt;

use bson::{Bson, Document};

use crate::schema::error::SchemaError;
use crate::schema::found::Found;
use crate::schema::index::Index;
use crate::schema::judge::{Taken, Verdict, judge};
use crate::schema::layout::{Layout, Part};

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The thing: a collection, or an index of one.
    pub subject: String,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub wanted: String,
    /// MongoDB's action by which [`apply`](Layout::apply) makes it so; `None` where it can't,
    /// and a person must.
    pub made_by: Option<&'static str>,
}

/// What is found where there is nothing.
const MISSING: &str = "missing";

impl Difference {
    /// Whether the thing is not there at all.
    pub fn is_missing(&self) -> bool {
        self.found == MISSING
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, should be {}", self.subject, self.found, self.wanted)
    }
}

impl Layout {
    /// Compares the database with it; no difference means that [`apply`](Self::apply) would do
    /// nothing.
    ///
    /// Not a difference: a validator that a collection has or lacks, since a collection that
    /// exists keeps what it has, and whatever else is in the database.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub async fn verify(&self) -> Result<Vec<Difference>, SchemaError> {
        let found = Found::look(self).await?;
        let of_collections = self.parts.iter().filter_map(|part| collection(part, &found));
        let of_indexes = self.parts.iter().flat_map(|part| {
            let there = found.indexes(&part.name);
            part.indexes.iter().filter_map(|index| self.index(index, part, there))
        });
        Ok(of_collections.chain(of_indexes).collect())
    }

    fn index(&self, index: &Index, part: &Part, there: &[Document]) -> Option<Difference> {
        let definition = || {
            let mut definition = index.definition(self.retention);
            definition.remove("name");
            Bson::Document(definition).into_relaxed_extjson().to_string()
        };
        let (found, wanted, made_by) = match judge(index, there, self.retention) {
            Verdict::Same => return None,
            Verdict::Missing => (MISSING.into(), definition(), Some("createIndex")),
            Verdict::Expiry { found, wanted } => (
                format!("deleting records {} s after delivery", found.into_relaxed_extjson()),
                format!("deleting them after {wanted} s"),
                Some("collMod"),
            ),
            Verdict::Taken(Taken { found, wanted, .. }) => (found, wanted, None),
            Verdict::Excluded { by, rival } => (
                format!("excluded by the unique index {by} ({})", rival.setting),
                "the only one that makes requests unique".into(),
                None,
            ),
        };
        let subject = format!("index {} of {}", index.name, part.name);
        Some(Difference { subject, found, wanted, made_by })
    }
}

fn collection(part: &Part, found: &Found) -> Option<Difference> {
    let (found, made_by) = match found.what_is_wrong_with(&part.name) {
        None if found.has(&part.name) => return None,
        None => (MISSING.to_owned(), Some("createCollection")),
        Some(wrong) => (wrong, None),
    };
    let subject = format!("collection {}", part.name);
    Some(Difference { subject, found, wanted: "a plain collection".into(), made_by })
}
