//! Queries of events and snapshots with a real MongoDB: conditions, cursors, pages and plans.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod codes;
mod cursors;
mod dates;
mod evaluator;
mod operators;
mod pages;
mod plans;
mod projections;
mod random;
mod scans;
mod world;
