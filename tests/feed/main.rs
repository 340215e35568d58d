//! The feed over all event streams, with a real replica set: positions, reads, and what disturbs them.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod checker;
mod checker_proofs;
mod malformed;
mod positions;
mod readers;
mod reads;
mod util;
