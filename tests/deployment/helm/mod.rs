//! The Helm chart: what it renders, what it refuses, and that its configuration is valid for
//! Postrider.

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
