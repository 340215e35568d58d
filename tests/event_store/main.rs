//! The event store with a real replica set: events, snapshots, prepare keys, and the schema of their
//! databases.
//!
//! `contract` is one suite that every store passes.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod ending;
mod events;
mod examples;
mod home;
mod prepare_keys;
mod schema;
mod snapshots;
mod upserts;
mod wrong_clock;
