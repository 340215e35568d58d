//! The feed over all event streams, with a real replica set: positions, reads, and what disturbs them.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod backfill;
mod checker;
mod checker_proofs;
mod commands;
mod disturbances;
mod malformed;
mod many_names;
mod pages;
mod positions;
mod privileges;
mod readers;
mod reads;
mod sequencers;
mod sharded;
mod util;
