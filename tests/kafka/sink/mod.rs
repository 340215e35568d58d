//! The Kafka sink on a real broker.

mod connection;
mod declare;
pub mod poison;
mod record;
mod refusals;
mod rights;
mod statistics;
mod tls;
mod util;
mod words;
