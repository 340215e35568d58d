//! Assigns partitions to instances: keys hash to 256 partitions, and one instance owns each.
//!
//! | module | what it does |
//! |---|---|
//! | [`of_key`] | the hash |
//! | [`set`] | sets of partitions as text |
//! | [`heartbeat`] | this instance's document and its heartbeats |
//! | [`names`] | which instance holds a name; a restart in place |
//! | [`suspension`] | detects that this process was suspended |
//! | [`fleet`] | live instances and assignments in MongoDB; conditional writes |
//! | [`owner`] | the owner of a partition, for operators |
//! | [`plan`] | the moves that balance the partitions: a pure function |
//! | [`coordinator`] | reads assignments; claims, requests and releases partitions |
//! | [`owned`] | the partitions in which the relay may publish and acquire |
//! | [`fingerprint`] | the settings in which all instances must agree |
//! | [`metrics`] | the metrics |

pub mod config;
pub mod coordinator;
pub mod fields;
pub mod fingerprint;
pub mod fleet;
pub mod heartbeat;
pub mod metrics;
pub mod names;
pub mod owned;
pub mod owner;
pub mod plan;
pub mod set;
pub mod suspension;

pub use postrider_outbox::partition::{PARTITIONS, of_key};
