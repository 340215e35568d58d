//! Work that is done while a key is held.

use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{PrepareError, PrepareKey, Ttl};

/// Why work under a key has no result.
#[derive(Debug, thiserror::Error)]
pub enum UsingError<E> {
    /// The key could not be prepared, or no answer tells whether it was; the work was not begun.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The work has failed.
    #[error("the work under a prepared key has failed")]
    Body {
        /// What the work ended with.
        error: E,
        /// Whether the key was given back: not where it had expired or was changed.
        rolled_back: Result<bool, PrepareError>,
    },
}

impl<V: Serialize + DeserializeOwned + 'static> PrepareKey<V> {
    /// Prepares a key, does the work, and gives the key back where the work fails. Answers `None`
    /// where somebody else holds the key; the work is not begun then.
    ///
    /// Work that panics or is dropped gives nothing back, nor does a process that dies: a `ttl`
    /// does that.
    ///
    /// # Errors
    ///
    /// Those of [`PrepareError`], and the work's own.
    pub async fn using_prepared<T, E>(
        &self,
        key: &str,
        value: &V,
        ttl: Ttl,
        body: impl Future<Output = Result<T, E>>,
    ) -> Result<Option<T>, UsingError<E>> {
        if !self.prepare(key, value, ttl).await? {
            return Ok(None);
        }
        match body.await {
            Ok(result) => Ok(Some(result)),
            Err(error) => {
                // Only what is still ours.
                let rolled_back = self.rollback_value(key, value).await;
                Err(UsingError::Body { error, rolled_back })
            }
        }
    }
}
