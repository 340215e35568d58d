//! Bad nights of the brokers (contract 4.4): the real process on real servers, judged from outside
//! by what MongoDB has, what the broker has, the metrics, `/readyz` and the log.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

mod charged;
mod closed;
mod down;
mod forbidden;
mod kafka;
mod lease;
mod lost;
mod majority;
mod night;
mod page;
mod poison;
mod secrets;
mod silent;
