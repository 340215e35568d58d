//! Several instances of one outbox: they divide the partitions among themselves, and keep the order while
//! instances start, stop, hang and die.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod handover;
mod instance;
mod lost;
mod membership;
mod peer;
mod suspended;
mod unreadable;
