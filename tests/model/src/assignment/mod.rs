//! Who owns which partition: members, heartbeats, conditional writes with an epoch.
//!
//! Order does not rest on any of it (`protocol` lets every relay take whatever it likes). What is
//! asked here is whether two take at once where no clock stands still, and whether a partition can
//! stay without an owner.

mod action;
mod check;
mod finish;
mod plan;
mod state;
