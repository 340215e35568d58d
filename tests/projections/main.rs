//! Read models of a real feed and of a real queue, and what disturbs them.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod carts;
mod feed;
mod rebuild;
#[path = "../support/mod.rs"]
mod support;
mod world;
