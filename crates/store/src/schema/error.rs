//! What stands between the schema and the database.

use std::fmt;

use crate::{Meaning, StoreError};

/// The schema could not be applied or looked at.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SchemaError {
    /// An index can't be created beside what is there. Nothing was dropped.
    #[error("index {index} of collection {collection} can't be created: {detail}; {remedy}")]
    Conflict {
        /// The index that should be there.
        index: String,
        /// Its collection, with the prefix.
        collection: String,
        /// What differs.
        detail: String,
        /// What a person can do about it.
        remedy: String,
    },
    /// Something of that name exists which can't hold what it should.
    #[error(
        "{collection} can't be used: it is {found}, and a plain collection is needed; rename or \
         drop it, or choose another {elsewhere}"
    )]
    Unusable {
        /// Its name, with the prefix.
        collection: String,
        /// What it is.
        found: String,
        /// The settings by which it would be another.
        elsewhere: &'static str,
    },
    /// Something is missing, or differs, where nothing may be made.
    #[error(
        "the schema differs ({differences}); run `postrider schema apply {target}`, or set \
         outbox.auto_init_schema = true"
    )]
    Differs {
        /// What differs.
        differences: String,
        /// What is to be applied: an argument of the command.
        target: String,
    },
    /// The database is another context's.
    #[error("{0}")]
    Foreign(Box<Foreign>),
    /// MongoDB did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SchemaError {
    /// Whether trying again can help.
    pub fn meaning(&self) -> Meaning {
        match self {
            Self::Store(error) => error.meaning(),
            _ => Meaning::Permanent,
        }
    }
}

/// A database that is not this context's, or not as this version lays it out. `Display` names both
/// contexts and what can be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The database.
    pub database: String,
    /// Whose it is.
    pub found: String,
    /// Its layout version.
    pub version: String,
    /// Who we are.
    pub wanted: String,
    /// The version that we know.
    pub known: i32,
    /// The settings by which it would be another.
    pub elsewhere: String,
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { database, found, version, wanted, known, elsewhere } = self;
        write!(
            f,
            "database {database} belongs to the context {found:?} (layout version {version}, see its \
             collection wow_database_metadata), and not to {wanted:?} (version {known}); "
        )?;
        match found == wanted {
            true => write!(f, "run a release that knows its layout, or set another {elsewhere}"),
            false => write!(f, "set events.context = {found:?}, or another {elsewhere}"),
        }
    }
}
