//! Who delivers what: keys hash to 256 partitions, each of which one instance owns.
//!
//! | module | what it does |
//! |---|---|
//! | [`of_key`] | the hash |
//! | [`set`] | sets of partitions as text |
//! | [`heartbeat`] | this instance's document, and what its heartbeats tell |
//! | [`names`] | which instance holds a name: a restart in place |
//! | [`vigil`] | whether this process stood still |
//! | [`fleet`] | who lives and who owns what, as MongoDB has it; conditional writes |
//! | [`owner`] | who has a partition, and what that instance says of itself |
//! | [`plan`] | who is to own what: a pure function |
//! | [`coordinator`] | look → claim, ask, let go |
//! | [`share`] | what the relay may do by all that |
//! | [`fingerprint`] | configurations that must not mix |
//! | [`metrics`] | the figures |

pub mod config;
pub mod coordinator;
pub mod fields;
pub mod fingerprint;
pub mod fleet;
pub mod heartbeat;
pub mod metrics;
pub mod names;
pub mod owner;
pub mod plan;
pub mod set;
pub mod share;
pub mod vigil;

pub use postrider_outbox::partition::{PARTITIONS, of_key};
