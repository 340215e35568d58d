//! Outages of MongoDB, RabbitMQ and Kafka, one folder or file for each server: it is gone, frozen,
//! without a majority or out of room, and comes back.
//!
//! Real servers, and mostly the real process, judged from outside: by what MongoDB has, what the broker
//! has, the metrics, `/readyz` and the log. The relay reports an outage once, and resumes by itself.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod kafka;
mod metrics_page;
mod mongodb;
mod outage;
mod rabbitmq;
