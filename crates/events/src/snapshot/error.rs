//! Errors of snapshots.

use postrider_outbox::nesting::TOO_DEEP;
use postrider_store::StoreError;
use postrider_store::schema::SchemaError;

/// Why a snapshot could not be saved or loaded.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Not a version of an aggregate.
    #[error("version = {0}: must be 1 or above")]
    Version(i64),
    /// The state exceeds a document of MongoDB.
    #[error("state: too large: a document of MongoDB has at most 16 MiB")]
    TooLarge,
    /// The state is nested too deep.
    #[error("state: {TOO_DEEP}")]
    TooDeep,
    /// The state cannot be encoded as BSON.
    #[error("state: cannot be stored as BSON")]
    Encode(#[source] bson::error::Error),
    /// The stream has ended: its snapshot is neither saved nor read.
    #[error("the stream has ended; its snapshot can neither be saved nor read")]
    Ended,
    /// Other callers changed the snapshot at each try.
    #[error("concurrent requests changed the snapshot repeatedly; retry")]
    Contended,
    /// The collection cannot be used.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// MongoDB failed. Whether the snapshot was saved is unknown.
    #[error(transparent)]
    Store(StoreError),
}

impl From<StoreError> for SnapshotError {
    fn from(error: StoreError) -> Self {
        if error.is_too_large() { Self::TooLarge } else { Self::Store(error) }
    }
}
