//! Errors of read models.

use std::error::Error;

use mongodb::error::{Error as DriverError, TRANSIENT_TRANSACTION_ERROR};
use postrider_events::feed::{FeedError, FeedEvent};
use postrider_store::StoreError;
use postrider_store::text::chain;

use crate::name::Generation;

/// The error of a projector: made from any error by `?`, or from a text.
///
/// It does not implement `Error`, so that every error converts into it.
#[derive(Debug)]
pub struct ApplyError {
    source: Box<dyn Error + Send + Sync>,
    place: Option<(i64, String)>,
}

impl ApplyError {
    /// An error for a reason of the projector's own, such as a text.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self { source: reason.into(), place: None }
    }

    /// Names the event, where an append has several. Without it, the error names the first one.
    #[must_use]
    pub fn at(self, event: &FeedEvent) -> Self {
        Self { place: Some((event.position, event.id.clone())), ..self }
    }

    /// The error of MongoDB in its chain, if another transaction may succeed after it; else itself.
    pub(crate) fn into_transient(self) -> Result<Box<DriverError>, Self> {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&*self.source);
        while let Some(error) = cause {
            if let Some(driver) = error.downcast_ref::<DriverError>() {
                let is_transient = driver.contains_label(TRANSIENT_TRANSACTION_ERROR);
                return if is_transient { Ok(Box::new(driver.clone())) } else { Err(self) };
            }
            cause = error.source();
        }
        Err(self)
    }

    pub(crate) fn into_source(self) -> Box<dyn Error + Send + Sync> {
        self.source
    }

    /// The text of the error, with its sources.
    pub(crate) fn detail(&self) -> String {
        chain(&*self.source)
    }

    /// The position and id of the event that it names, or of the first one of the append.
    pub(crate) fn place(&self, append: &[FeedEvent]) -> (i64, String) {
        let first = || append.first().map(|event| (event.position, event.id.clone()));
        self.place.clone().or_else(first).unwrap_or_default()
    }

    /// The poison error of this append, after so many tries.
    pub(crate) fn into_poison(self, append: &[FeedEvent], attempts: u32) -> ProjectionError {
        let (position, event) = self.place(append);
        let aggregate = aggregate_of(append);
        ProjectionError::Poison { position, event, aggregate, attempts, source: self.source }
    }
}

/// The aggregate of an append, as `order/o-1`.
pub(crate) fn aggregate_of(append: &[FeedEvent]) -> String {
    let name = |event: &FeedEvent| format!("{}/{}", event.aggregate_name, event.aggregate_id);
    append.first().map(name).unwrap_or_default()
}

impl<E: Error + Send + Sync + 'static> From<E> for ApplyError {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

/// Why a read model does not advance. Nothing was skipped.
#[derive(Debug, thiserror::Error)]
pub enum ProjectionError {
    /// The name is invalid.
    #[error(
        "read model: name = {name:?}: must be a lower-case letter, then at most 63 lower-case letters, \
         digits, `_` and `-`"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// The projector failed with this event, each time.
    #[error(
        "position {position}: event {event} of {aggregate}: the projector failed {attempts} \
         times; correct it and restart; nothing was skipped"
    )]
    Poison {
        /// The position of the event. The checkpoint is before it.
        position: i64,
        /// The id of the event.
        event: String,
        /// The aggregate, as `order/o-1`.
        aggregate: String,
        /// How often it was tried.
        attempts: u32,
        /// The error of the last try.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The checkpoint is of another feed: positions name other events since a restore.
    #[error(
        "generation {generation}: checkpoint of feed {given}, but this is feed {actual}: after \
         a restore, positions refer to other events; rebuild; if this generation is being built, \
         drop it first"
    )]
    WrongFeed {
        /// The generation.
        generation: Generation,
        /// The feed of the checkpoint.
        given: String,
        /// The feed.
        actual: String,
    },
    /// The checkpoint is beyond the head of the feed.
    #[error(
        "generation {generation}: position = {position}: is ahead of the feed, whose head is \
         {head}; the checkpoint belongs to another database; rebuild; if this generation is being \
         built, drop it first"
    )]
    PositionAhead {
        /// The generation.
        generation: Generation,
        /// The position of the checkpoint.
        position: i64,
        /// The head of the feed.
        head: i64,
    },
    /// The generation was built with another revision of the projector.
    #[error(
        "generation {generation}: revision = {stored}: this process has revision {own}; \
         rebuild, or run revision {stored}"
    )]
    OtherRevision {
        /// The generation.
        generation: Generation,
        /// The revision of the generation.
        stored: i64,
        /// The revision of this process.
        own: i64,
    },
    /// The generation was built with another filter: it lacks events, or has too many.
    #[error("generation {generation}: filter = {stored}: this process has {own}; rebuild")]
    OtherFilter {
        /// The generation.
        generation: Generation,
        /// The filter of the generation.
        stored: String,
        /// The filter of this process.
        own: String,
    },
    /// There is no such generation: it was dropped, or never begun.
    #[error(
        "generation {generation}: does not exist; it was dropped, or its rebuild was never \
         started"
    )]
    NoGeneration {
        /// The generation.
        generation: Generation,
    },
    /// The read model does not exist yet.
    #[error("read model: name = {name}: does not exist yet; a process must run it first")]
    Missing {
        /// The name.
        name: String,
    },
    /// The generation is live, so that it cannot be dropped.
    #[error("generation {generation}: is live; switch to another one first")]
    Live {
        /// The generation.
        generation: Generation,
    },
    /// The runner of the generation has stopped with an error.
    #[error("generation {generation}: has stopped at position {position}: {detail}")]
    Stopped {
        /// The generation.
        generation: Generation,
        /// The position of the event that the projector failed with.
        position: i64,
        /// The error.
        detail: String,
    },
    /// The feed cannot be read.
    #[error("failed to read the feed")]
    Feed(#[source] FeedError),
    /// MongoDB failed.
    #[error("failed to update the read model")]
    Store(#[from] StoreError),
    /// The projector could not prepare the collections.
    #[error("generation {generation}: failed to prepare its collections")]
    Prepare {
        /// The generation.
        generation: Generation,
        /// The error of the projector.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ProjectionError {
    /// Whether it passes by itself: MongoDB is unreachable, or the feed does not exist yet.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Store(error) | Self::Feed(FeedError::Store(error)) => !error.is_permanent(),
            Self::Feed(FeedError::Missing) => true,
            _ => false,
        }
    }

    /// The error of a projector that could not prepare.
    pub(crate) fn prepare(generation: Generation, error: ApplyError) -> Self {
        Self::Prepare { generation, source: error.source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("wrapped")]
    struct Wrapped(#[source] DriverError);

    /// That a transient one is recognised needs a server: `tests/projections/feed.rs`.
    #[test]
    fn other_errors_are_not_transient() {
        let wrapped = ApplyError::from(Wrapped(DriverError::custom("x")));

        assert!(wrapped.into_transient().is_err());
        assert!(ApplyError::new("a text").into_transient().is_err());
    }
}
