//! The order of the records of a key, and its guards.
//!
//! The guards of the prefix rule and the hazards, each by an interleaving made on purpose; whole
//! runs whose arrivals a history checker judges; and bad input among good records. Each test of a
//! guard was seen to fail with the guard taken out of `src`.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod bad_input;
mod blocks;
mod delivery;
mod end_to_end;
mod everything_pending;
mod held_front;
mod history_checker;
mod isolation;
mod known_death;
mod line;
mod odd_records;
mod read_cost;
mod snapshot;
mod standalone;
mod unstamped;
