//! Work that is done while a key is held.

use std::future::Future;

use bson::Uuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{PrepareError, PrepareKey, Ttl};

/// Why work under a key has no result, or one that cannot be trusted.
#[derive(Debug, thiserror::Error)]
pub enum UsingError<E, T> {
    /// The key could not be prepared, or no answer tells whether it was; the work did not begin.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The work failed.
    #[error("the work under a prepared key failed")]
    Body {
        /// What the work ended with.
        error: E,
        /// Whether the key was given back: false where it had expired or was changed.
        rolled_back: Result<bool, PrepareError>,
    },
    /// The work succeeded, and the key was not held until its end: its `ttl` ran out, or another
    /// caller gave it back. Since then another caller may hold it.
    #[error("the prepared key was lost before the work under it ended")]
    Lost {
        /// What the work answered.
        result: T,
    },
    /// The work succeeded, and MongoDB did not say whether the key was held until its end.
    #[error("it is not known whether the prepared key was held until the work under it ended")]
    Unknown {
        /// What the work answered.
        result: T,
        /// Why it is not known.
        source: PrepareError,
    },
}

impl<V: Serialize + DeserializeOwned + 'static> PrepareKey<V> {
    /// Prepares a key, does the work, and gives the key back where the work fails. Answers `None`
    /// where another caller holds the key; the work does not begin then.
    ///
    /// The key is recognised by a token of this call, which the work may keep by
    /// [`reprepare`](Self::reprepare): a key that another caller prepared meanwhile is never given
    /// back, whatever its value.
    ///
    /// Work that panics or is dropped gives nothing back, nor does a process that dies: a `ttl`
    /// does that.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`], the work's own, and [`UsingError::Lost`] where the work took
    /// longer than the `ttl`.
    pub async fn using_prepared<T, E>(
        &self,
        key: &str,
        value: &V,
        ttl: Ttl,
        body: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>, UsingError<E, T>> {
        let reservation = Uuid::new();
        if !self.take(key, value, ttl, Some(reservation)).await? {
            return Ok(None);
        }
        match body.await {
            Ok(result) => match self.is_reserved(key, reservation).await {
                Ok(true) => Ok(Some(result)),
                Ok(false) => Err(UsingError::Lost { result }),
                Err(source) => Err(UsingError::Unknown { result, source }),
            },
            Err(error) => {
                let rolled_back = self.rollback_reserved(key, reservation, value).await;
                Err(UsingError::Body { error, rolled_back })
            }
        }
    }
}
