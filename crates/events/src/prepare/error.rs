//! What can go wrong with a prepare key.

use postrider_store::StoreError;
use postrider_store::schema::SchemaError;

use crate::names::WrongName;

/// A prepare key could not be used.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The key is none of the contract.
    #[error("the key {0}")]
    Key(WrongName),
    /// A key is to be moved to itself.
    #[error("a key can't be moved to itself")]
    SameKey,
    /// What is to be moved is not there, has expired, or has another value. Nothing was changed.
    #[error("the key to be moved is not prepared with this value")]
    NotPrepared,
    /// The value can't be written as BSON.
    #[error("the value can't be written as BSON")]
    Encode(#[source] bson::error::Error),
    /// The value that is stored is not of the type that it is to be read as.
    #[error("the stored value is of another type")]
    Decode(#[source] bson::error::Error),
    /// The value doesn't fit into a document of MongoDB.
    #[error("value: too large: a document of MongoDB has at most 16 MiB")]
    TooLarge,
    /// The value is nested deeper than MongoDB takes it.
    #[error("value: nested too deep for a document of MongoDB")]
    TooDeep,
    /// Others have changed the key each time that it was to be compared and changed.
    #[error("others kept changing the key")]
    Contended,
    /// Its collection can't be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// MongoDB did not do it, or no answer tells whether it did.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for PrepareError {
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
