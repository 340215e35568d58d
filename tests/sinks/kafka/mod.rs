//! Kafka: the sink, and how the broker and librdkafka behave, on which the sink relies.

mod clock;
mod dead_letter;
mod error_recorder;
mod leaderless;
mod missing;
mod node;
mod process;
mod producer;
mod proxied;
mod recreated;
mod refusals;
mod replicas;
mod secure;
mod sink;
mod topic;
