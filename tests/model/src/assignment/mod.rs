//! Which instance owns which partition: members, heartbeats, conditional writes with an epoch.
//!
//! The order does not depend on it (`protocol` lets every relay take any record). This checks
//! whether two instances take one partition at the same time where no clock stands still, and
//! whether a partition can stay without an owner.

mod action;
mod check;
mod finish;
mod plan;
mod state;
