//! Sinks: the contract that each sink passes, RabbitMQ and Kafka on real brokers, where a record goes
//! (routes, destinations, dead letters), and in which form it arrives.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod contract;
mod destinations;
mod kafka;
mod payloads;
mod rabbitmq;
