//! Errors of reads.

use postrider_store::StoreError;

/// Why a page of the feed could not be read. Nothing is skipped: the same position can be read again.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The position is of another feed: after a restore, positions name other events.
    #[error(
        "the position is of feed {given}, and this is feed {actual}: positions name other events \
         since a restore; rebuild from position 0"
    )]
    WrongFeed {
        /// The feed of the position.
        given: String,
        /// The id of this feed.
        actual: String,
    },
    /// The position is beyond the head: no event has had it.
    #[error(
        "position {after} is ahead of the feed, whose head is {head}: read from a position that the feed \
         has given; after a restore rebuild from position 0"
    )]
    PositionAhead {
        /// The position.
        after: i64,
        /// The last position.
        head: i64,
    },
    /// No process with `feed.enabled` has created the feed.
    #[error("the feed does not exist yet: a process with feed.enabled = true creates it")]
    Missing,
    /// MongoDB failed.
    #[error("the feed could not be read")]
    Store(#[from] StoreError),
    /// A stored document is not an event stream.
    #[error("a document of the event stream can't be read")]
    Decode(#[source] bson::error::Error),
}
