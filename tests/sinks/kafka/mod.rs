//! The tests' own Kafka: that it does what the sink's tests rest on, and how it answers.

mod clock;
mod dead_letter;
mod ear;
mod leaderless;
mod missing;
mod node;
mod process;
mod producer;
mod refusals;
mod replicas;
mod secure;
mod sink;
mod topic;
mod wired;
