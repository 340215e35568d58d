//! Errors of prepare keys.

use postrider_outbox::nesting::TOO_DEEP;
use postrider_store::StoreError;
use postrider_store::schema::SchemaError;

use crate::names::InvalidName;

/// Why an operation on a prepare key failed.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The key is invalid.
    #[error("the key {0}")]
    Key(InvalidName),
    /// Old and new key of a move are the same.
    #[error("cannot move a key to itself")]
    SameKey,
    /// The key to be moved does not exist, has expired or has another value. Nothing was changed.
    #[error("the key to move is not prepared with this value")]
    NotPrepared,
    /// The value cannot be encoded as BSON.
    #[error("cannot store the value as BSON")]
    Encode(#[source] bson::error::Error),
    /// The stored value is of another type.
    #[error("the stored value has another type")]
    Decode(#[source] bson::error::Error),
    /// The value exceeds a document of MongoDB.
    #[error("value: too large: a document of MongoDB has at most 16 MiB")]
    TooLarge,
    /// The value is nested too deep.
    #[error("value: {TOO_DEEP}")]
    TooDeep,
    /// Other callers changed the key at each try.
    #[error("concurrent requests changed the key repeatedly; retry")]
    Contended,
    /// The collection cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// MongoDB failed. Whether the operation took effect is unknown.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for PrepareError {
    fn from(error: StoreError) -> Self {
        if error.is_too_large() { Self::TooLarge } else { Self::Store(error) }
    }
}
