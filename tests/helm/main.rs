//! The Helm chart: what it renders, what it refuses, and that Postrider takes the configuration.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod chart;
mod configuration;
mod container;
mod drift;
mod pods;
mod refused;
mod schema_job;
mod shares;
mod stop;
mod valid;
mod watching;
