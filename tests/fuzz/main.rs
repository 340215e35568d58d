//! Input that nobody meant, made at random: what reads it must not panic, and keeps its word.
//!
//! A target is a property over generated input. `PROPTEST_CASES` says how much of it (256 by
//! default); `make fuzz` goes on with fresh input for minutes. What a target has found is kept by
//! proptest in `tests/proptest-regressions/`, to be committed, and is tried first from then on;
//! `corpus/` holds nasty input picked by hand, all of which is tried every time.
//!
//! What only a module itself can see (a message as AMQP's or Kafka's) is judged the same way in
//! the tests beside it, under `src`: `make fuzz` runs those of every module that has a `proptest!`.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod arbitrary;
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
