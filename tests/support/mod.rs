//! Shared by the test binaries: real servers, a sink that fails on command, ways to wait.

#![allow(dead_code, reason = "each binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

pub mod fragile;
pub mod outbox;
pub mod peer;
pub mod proxy;
pub mod relay;
pub mod schema;
pub mod sink;
pub mod spy;
pub mod stage;
