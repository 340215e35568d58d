//! Random input: what reads it must not panic, and must keep its promise.
//!
//! A target is a property over generated input. `PROPTEST_CASES` sets its number (256 by default);
//! `make fuzz` continues with new input for minutes. proptest stores what a target has found in
//! `tests/proptest-regressions/`, to be committed, and tries it first from then on; `corpus/` holds
//! input that was chosen by hand, all of which is tried every time.
//!
//! What only a module itself can see (a message as AMQP's or Kafka's) is tested in the same way in
//! its unit tests: `make fuzz` runs those of every module that has a `proptest!`.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod arbitrary;
mod conditions;
mod configuration;
mod corpus;
mod globs;
mod ids;
mod lines;
mod partitions;
mod payloads;
mod records;
mod templates;
mod units;
