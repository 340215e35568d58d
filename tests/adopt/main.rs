//! `postrider adopt`: the real process copies the documents of other outboxes, in every state.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod arrivals;
mod debezium;
mod disturbances;
mod failovers;
mod history;
mod oplog;
mod presets;
mod refusals;
mod starts;
mod util;
