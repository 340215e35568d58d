//! The protocols that carry the promise, checked in every state that they can reach.
//!
//! `protocol` is the path of the records of one key through any number of crashes, pauses, lost
//! answers and failovers; `assignment` is which instance owns what. `takeover` is which leases are
//! taken over before they end, `names` is which process holds a name, and `poison` is how records
//! that crash the process are isolated. `feed` is how events get positions, and how a reader misses
//! none. `bridge` is how documents of another outbox are copied across failovers. `book`, `circuit`,
//! `placement` and `window` are small models of what `protocol` leaves out. `docs/proof-results.md` says what is modelled, what is left out and why that is sound, and what
//! each removed guard leads to.
//!
//! Models find errors of a protocol, not of its code: the same guards are taken out of the product
//! itself in `tests/ordering` and `tests/leases`.

#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod assignment;
mod book;
mod bridge;
mod circuit;
mod feed;
mod live;
mod names;
mod placement;
mod poison;
mod protocol;
mod table;
mod takeover;
mod walk;
mod window;
