//! The append path at a real replica set: what is written, who wins, what a fault leaves.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod command;
mod examples;
mod failover;
mod faults;
mod group;
mod reads;
mod unit;
mod unit_faults;
mod unit_replays;
mod util;
mod versions;
mod wakes;
mod written;
