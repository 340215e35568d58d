//! Appends and units of work.

mod command;
mod examples;
mod failover;
mod faults;
mod group;
mod reads;
mod tenants;
pub mod unit;
mod unit_faults;
mod unit_replays;
pub mod util;
mod versions;
mod wakes;
mod written;
