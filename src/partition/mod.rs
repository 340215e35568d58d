//! Who delivers what: keys hash to 256 partitions, each of which one instance owns.
//!
//! One instance owns all of them (or those of `partitions.static`) for now; what it owns reaches the relay
//! through a `watch` channel, behind which the assignment among several will come.

mod hash;
pub mod heartbeat;

pub use hash::{PARTITIONS, of_key};
