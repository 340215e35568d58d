//! Leases: which instance may deliver a record, what each outcome writes, and the quarantine of poison
//! records.
//!
//! Each test was seen to fail with its guard taken out of `src`.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod ownership;
mod quarantine;
mod settling;
mod singled_out;
