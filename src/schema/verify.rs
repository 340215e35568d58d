//! Telling what differs, without touching it.

use std::fmt;

use bson::Bson;

use crate::outbox::collections::{Collections, names};
use crate::schema::error::SchemaError;
use crate::schema::found::Found;
use crate::schema::judge::{Taken, Verdict, judge};
use crate::schema::{SchemaOptions, index};

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The thing: a collection, or an index of one.
    pub subject: String,
    /// What it is.
    pub found: String,
    /// What it should be.
    pub wanted: String,
    /// MongoDB's action by which [`apply`](super::apply()) makes it so; `None` where it can't,
    /// and a person must.
    pub made_by: Option<&'static str>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}, should be {}", self.subject, self.found, self.wanted)
    }
}

/// Compares the database with the schema; no difference means that [`apply`](super::apply())
/// would do nothing.
///
/// Not a difference: a validator that a collection has or lacks, since a collection that
/// exists keeps what it has, and whatever else is in the database.
///
/// # Errors
///
/// Those of the store.
pub async fn verify(
    collections: &Collections,
    options: &SchemaOptions,
) -> Result<Vec<Difference>, SchemaError> {
    let found = Found::look(collections).await?;
    let mut differences = Vec::new();
    for base in names::ALL {
        let name = collections.name(base);
        let (state, made_by) = match found.what_is_wrong_with(&name) {
            None if found.has(&name) => continue,
            None => ("missing".to_owned(), Some("createCollection")),
            Some(wrong) => (wrong, None),
        };
        differences.push(Difference {
            subject: format!("collection {name}"),
            found: state,
            wanted: "a plain collection".into(),
            made_by,
        });
    }
    let records = collections.name(names::RECORDS);
    let expire_after_seconds = options.expire_after_seconds();
    for index in &index::ALL {
        let definition = || {
            let mut definition = index.definition(expire_after_seconds);
            definition.remove("name");
            Bson::Document(definition).into_relaxed_extjson().to_string()
        };
        let (is, should_be, made_by) = match judge(index, &found.indexes, expire_after_seconds) {
            Verdict::Same => continue,
            Verdict::Missing => ("missing".into(), definition(), Some("createIndex")),
            Verdict::Expiry { found, wanted } => (
                format!("deleting records {} s after delivery", found.into_relaxed_extjson()),
                format!("deleting them after {wanted} s"),
                Some("collMod"),
            ),
            Verdict::Taken(Taken { found, wanted, .. }) => (found, wanted, None),
        };
        differences.push(Difference {
            subject: format!("index {} of {records}", index.name),
            found: is,
            wanted: should_be,
            made_by,
        });
    }
    Ok(differences)
}
