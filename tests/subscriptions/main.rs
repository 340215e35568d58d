//! Subscriptions to the feed, with a real replica set: push, pull, their owners, and their commands.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../http/api.rs"]
#[allow(dead_code, reason = "each binary uses its own part of this")]
mod api;
#[path = "../feed/checker.rs"]
#[allow(dead_code, reason = "each binary uses its own part of this")]
mod checker;
#[path = "../feed/util.rs"]
#[allow(dead_code, reason = "each binary uses its own part of this")]
mod feed;
#[path = "../feed/readers.rs"]
#[allow(dead_code, reason = "each binary uses its own part of this")]
mod readers;
#[path = "../support/mod.rs"]
mod support;

mod commands;
mod crash;
mod erased;
mod http;
mod invalid;
mod owners;
mod parked;
mod pull;
mod push;
mod util;
