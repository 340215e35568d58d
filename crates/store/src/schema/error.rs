//! Errors of the schema.

use std::fmt;

use crate::StoreError;

/// The schema could not be applied or verified.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SchemaError {
    /// An index conflicts with an existing one. Nothing was dropped.
    #[error("cannot create index {index} of collection {collection}: {detail}; {remedy}")]
    Conflict {
        /// The index that should be there.
        index: String,
        /// Its collection, with the prefix.
        collection: String,
        /// What differs.
        detail: String,
        /// The remedy.
        remedy: String,
    },
    /// Something with that name exists and cannot be used.
    #[error(
        "cannot use {collection}: it is {found}, must be a plain collection; rename or drop it, \
         or set another {elsewhere}"
    )]
    Unusable {
        /// Its name, with the prefix.
        collection: String,
        /// What it is.
        found: String,
        /// The settings by which it would be another.
        elsewhere: &'static str,
    },
    /// Something is missing or differs, and creation is not permitted.
    #[error(
        "the schema differs ({differences}); run `postrider schema apply {target}`, or set \
         outbox.auto_init_schema = true"
    )]
    Differs {
        /// What differs.
        differences: String,
        /// What to apply: an argument of the command.
        target: String,
    },
    /// The name of an aggregate or of prepare keys may not be created. No collection was made.
    #[error(
        "the name {name:?} matches none of events.aggregates; use a name that does, or add it there"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The database belongs to another context.
    #[error("{0}")]
    Foreign(Box<ForeignContext>),
    /// MongoDB failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SchemaError {
    /// Returns whether an operator must repair the cause; if not, a retry can help.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Store(error) => error.is_permanent(),
            _ => true,
        }
    }
}

/// A database of another context, or with another layout version. `Display` names both contexts and
/// the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignContext {
    /// The database.
    pub database: String,
    /// Its context.
    pub found: String,
    /// Its layout version.
    pub version: String,
    /// The context of this process.
    pub wanted: String,
    /// The layout version that this release supports.
    pub known: i32,
    /// The settings by which it would be another.
    pub elsewhere: String,
}

impl fmt::Display for ForeignContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { database, found, version, wanted, known, elsewhere } = self;
        write!(
            f,
            "database {database} belongs to the context {found:?} (layout version {version}, \
             see its collection wow_database_metadata), not to {wanted:?} (version {known}); "
        )?;
        if found == wanted {
            write!(f, "run a release that supports its layout, or set another {elsewhere}")
        } else {
            write!(f, "set events.context = {found:?}, or another {elsewhere}")
        }
    }
}
