//! The Kafka sink on a real broker.

mod connection;
mod poison;
mod record;
mod refusals;
mod rights;
mod util;
mod words;
