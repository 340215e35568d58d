//! The client libraries with real servers: that in Rust by itself, and those of all languages around one relay.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod consumers;
mod enqueued;
mod history;
mod probe;
mod refused;
mod schema;
mod transactions;
