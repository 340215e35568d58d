//! The RabbitMQ sink on a real broker: a vhost for each test, and one node to be hurt in turns.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod closures;
mod connection;
mod hidden;
mod hurt_node;
mod properties;
mod returns;
mod tls;
mod unconfirmed;
mod util;
