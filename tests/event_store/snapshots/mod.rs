//! Snapshots.

mod answers;
mod document;
mod guard;
mod refusals;
mod repository;
mod time;
