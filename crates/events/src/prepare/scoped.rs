//! Work while a key is held.

use std::future::Future;

use bson::Uuid;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{PrepareError, PrepareKey, Ttl};

/// Why work under a key has no result, or an unreliable one.
#[derive(Debug, thiserror::Error)]
pub enum UsingError<E, T> {
    /// The key was not prepared, or that is unknown. The work did not begin.
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    /// The work failed.
    #[error("the work of a prepared key failed")]
    Body {
        /// The error of the work.
        error: E,
        /// Whether the key was released: false if it had expired or was changed.
        rolled_back: Result<bool, PrepareError>,
    },
    /// The work succeeded, but the key was not held until its end: it expired, or another caller
    /// released it. Another caller may hold it since.
    #[error("the prepared key was lost before its work ended")]
    Lost {
        /// The result of the work.
        result: T,
    },
    /// The work succeeded, but it is unknown whether the key was held until its end.
    #[error("unknown whether the prepared key was held until its work ended")]
    Unknown {
        /// The result of the work.
        result: T,
        /// Why it is unknown.
        source: PrepareError,
    },
}

impl<V: Serialize + DeserializeOwned + 'static> PrepareKey<V> {
    /// Prepares a key, runs the work, and releases the key if the work fails. Returns `None` without
    /// running it if another caller holds the key.
    ///
    /// The key is recognised by a token of this call, which [`reprepare`](Self::reprepare) keeps. A key
    /// that another caller has prepared since is never released.
    ///
    /// After a panic, a drop or the end of the process, the key is held until its `ttl` ends.
    ///
    /// # Errors
    ///
    /// [`UsingError`]; [`UsingError::Lost`] if the work took longer than the `ttl`.
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
