//! Shared by the test binaries: real servers, a sink that fails on command, ways to wait.

#![allow(dead_code, reason = "each binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

pub mod arrivals;
pub mod authority;
pub mod broker;
pub mod cleanup;
pub mod clock;
pub mod command_line;
pub mod fragile;
pub mod headers;
pub mod history;
pub mod kafka;
pub mod message;
pub mod mongod;
pub mod mutants;
pub mod oracle;
pub mod outbox;
pub mod page;
pub mod payloads;
pub mod peer;
pub mod process;
pub mod producers;
pub mod prometheus;
pub mod proxy;
pub mod publish;
pub mod queue;
pub mod rabbitmq;
pub mod relay;
pub mod replica_set;
pub mod roles;
pub mod schema;
pub mod sink;
pub mod sizes;
pub mod spy;
pub mod stage;
pub mod stopped;
pub mod tcp;
pub mod watched;
pub mod wire;
