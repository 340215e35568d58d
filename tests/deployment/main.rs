//! What an operator deploys: the Helm chart, the schema of the outbox as Postrider and mongosh
//! create it, and the documentation.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod documentation;
mod helm;
mod schema;
