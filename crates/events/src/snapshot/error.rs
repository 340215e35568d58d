//! What can go wrong with a snapshot.

use postrider_store::StoreError;
use postrider_store::schema::SchemaError;

/// A snapshot could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// No version of an aggregate.
    #[error("version: {0} is none: the first one is 1")]
    Version(i64),
    /// The state doesn't fit into a document of MongoDB.
    #[error("state: too large: a document of MongoDB has at most 16 MiB")]
    TooLarge,
    /// The state is nested deeper than MongoDB takes it.
    #[error("state: nested too deep for a document of MongoDB")]
    TooDeep,
    /// The state can't be written as BSON.
    #[error("state: can't be written as BSON")]
    Encode(#[source] bson::error::Error),
    /// Others have saved and removed the snapshot each time that it was to be saved.
    #[error("others kept changing the snapshot")]
    Contended,
    /// Its collection can't be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// MongoDB did not do it, or no answer tells whether it did.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> Self {
        if error.is_too_large() {
            Self::TooLarge
        } else if error.is_too_deep() {
            Self::TooDeep
        } else {
            Self::Store(error)
        }
    }
}
