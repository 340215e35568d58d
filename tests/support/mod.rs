//! Shared by the test binaries: real servers, a sink that fails on command, ways to wait.

#![allow(dead_code, reason = "each binary uses its own part of this")]
#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

pub mod authority;
pub mod broker;
pub mod child_guard;
pub mod cleanup;
pub mod clock;
pub mod command_line;
pub mod command_recorder;
pub mod doc_page;
pub mod environment;
pub mod fault_proxy;
pub mod fragile;
pub mod headers;
pub mod history;
pub mod kafka;
pub mod message;
pub mod mongod;
pub mod mutants;
pub mod oracle;
pub mod outbox;
pub mod payloads;
pub mod ports;
pub mod process;
pub mod producers;
pub mod prometheus;
pub mod publish;
pub mod queue;
pub mod queue_consumer;
pub mod rabbitmq;
pub mod relay;
pub mod relay_harness;
pub mod replica_set;
pub mod rival_relay;
pub mod roles;
pub mod schema;
pub mod sink;
pub mod sizes;
pub mod stopped;
