//! What stands between the schema and the database.

use crate::store::{Meaning, StoreError};

/// The schema could not be applied or looked at.
#[derive(Debug, thiserror::Error)]
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
    /// Something of that name exists which can't hold an outbox.
    #[error(
        "{collection} can't be used: it is {found}, and a plain collection is needed; rename or \
         drop it, or choose another outbox.database or outbox.collection_prefix"
    )]
    Unusable {
        /// Its name, with the prefix.
        collection: String,
        /// What it is.
        found: String,
    },
    /// MongoDB did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SchemaError {
    /// Whether trying again can help.
    pub fn meaning(&self) -> Meaning {
        match self {
            Self::Conflict { .. } | Self::Unusable { .. } => Meaning::Permanent,
            Self::Store(error) => error.meaning(),
        }
    }
}
