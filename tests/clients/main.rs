//! The producer library in Rust against the conformance cases of all languages, with a real MongoDB.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod cases;
mod consumers;
mod enqueued;
mod probe;
mod refused;
mod schema;
mod transactions;
