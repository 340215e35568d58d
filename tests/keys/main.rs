//! Snapshots and prepare keys, as a library has them.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod examples;
mod home;
mod prepare;
mod refused;
mod snapshot;
