//! The documentation is true: its links lead somewhere, its configuration is accepted, its commands
//! exist, and its programs run as they stand there.
//!
//! A block of code that is run has a comment above it, which readers don't see:
//!
//! ```text
//! <!-- test: producer -->              a program that writes records: `producers.rs` (and by the names there)
//! <!-- test: consumer rabbitmq -->     one that takes messages: `consumers.rs`
//! <!-- test: in examples/x.rs -->      a part of that file, word for word: `excerpts.rs`
//! <!-- test: not configuration -->     TOML that is something else's: `configuration.rs`
//! ```
//!
//! A program has MongoDB's address, database and all, as `MONGODB_URI`. In place of each `"mongodb://…"`
//! that it writes out, and each `getDatabase("…")`, the test's own is put; nothing else is changed.

mod commands;
mod configuration;
mod consumers;
mod excerpts;
mod links;
mod producers;
mod profile;
mod program;
mod seq;

use crate::support::doc_page;

/// Fails with everything that was found, a line each: `docs/page.md:12: …`.
#[track_caller]
fn expect_none(problems: &[String]) {
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}
