//! The append path: what is written, which append wins, what a fault leaves.

mod command;
mod examples;
mod failover;
mod faults;
mod group;
mod reads;
mod unit;
mod unit_faults;
mod unit_replays;
mod util;
mod versions;
mod wakes;
mod written;
