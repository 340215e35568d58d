//! Shared by the test binaries: real servers, a sink that fails on command, ways to wait.

#![allow(dead_code, reason = "each binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

pub mod message;
pub mod outbox;
pub mod proxy;
pub mod rabbitmq;
pub mod relay;
pub mod schema;
pub mod sink;
