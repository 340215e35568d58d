//! Several instances of one outbox: they divide the partitions among themselves, and the promise
//! is kept while they come, go, hang and die.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod handover;
mod instance;
mod lost;
mod membership;
mod peer;
mod suspended;
mod unreadable;
