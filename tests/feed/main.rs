//! The feed over all event streams, with a real replica set: positions, reads, and what disturbs them.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod positions;
mod privileges;
mod reads;
mod sharded;
mod util;
