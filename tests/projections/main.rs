//! Read models of a real feed and of a real queue, and what disturbs them.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod carts;
mod chaos;
mod child;
mod feed;
mod guard;
mod rebuild;
mod shopping_cart;
#[path = "../support/mod.rs"]
mod support;
mod world;
