//! Errors of reads.

use postrider_store::StoreError;

/// Why a page of the feed could not be read. Nothing is skipped: the same position can be read again.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// The position is of another feed: after a restore, positions name other events.
    #[error(
        "the position belongs to feed {given}, but this is feed {actual}: after a restore, \
         positions refer to other events; start again at position 0"
    )]
    WrongFeed {
        /// The feed of the position.
        given: String,
        /// The id of this feed.
        actual: String,
    },
    /// The position is beyond the head: no event has had it.
    #[error(
        "position {after} is ahead of the feed, whose head is {head}; use a position that the \
         feed returned, or start again at position 0 after a restore"
    )]
    PositionAhead {
        /// The position.
        after: i64,
        /// The last position.
        head: i64,
    },
    /// No process with `feed.enabled` has created the feed.
    #[error("the feed does not exist yet; a process with feed.enabled = true creates it")]
    Missing,
    /// MongoDB failed.
    #[error("cannot read the feed")]
    Store(#[from] StoreError),
}
