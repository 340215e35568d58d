//! Snapshots: the state of an aggregate as of a version, so that loading it replays a few events
//! only.
//!
//! One document per aggregate, the latest; its state can be queried like any other document. A
//! snapshot is optional: without a readable one all events are replayed.

mod document;
mod error;
mod repository;
mod state;
mod store;
mod strategy;

pub(crate) use document::mark_ended;
pub use error::SnapshotError;
pub use repository::{Aggregate, Loaded, Repository, RepositoryError, Stored};
pub use state::Snapshot;
pub use store::{Saved, SnapshotStore};
pub use strategy::Strategy;
