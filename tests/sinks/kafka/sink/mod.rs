//! The Kafka sink on a real broker.

mod connection;
mod declare;
mod gathering;
mod login;
pub mod poison;
mod record;
mod refusals;
mod rights;
mod statistics;
mod tls;
mod util;
mod words;
