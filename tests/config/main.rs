//! The configuration: files, environment and options with their errors, and `postrider check` against
//! real servers.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod check;
mod configuration;
mod errors;
mod formats;
