//! The consumers of `examples/`, killed in the middle: each message has its effect once.

mod kafka;
pub mod programs;
mod rabbitmq;
mod versions;
