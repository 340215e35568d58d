//! The HTTP API of the real process.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod api;
mod conditions;
mod described;
mod documented;
mod drain;
mod ending;
mod events;
mod feed;
mod fleet;
mod idempotency;
mod killed;
mod limited;
mod limits;
mod limits_alone;
mod locations;
mod metrics;
mod origin;
mod outbox;
mod prepare;
mod problems;
mod queries;
mod readers;
mod record_ids;
mod record_lists;
mod reports;
mod schema;
mod snapshots;
mod start;
mod tls;
mod tokens;
mod values;
