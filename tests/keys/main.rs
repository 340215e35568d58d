//! Snapshots and prepare keys, as a library has them.

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod home;
mod prepare;
mod snapshot;
