//! Partitions: the fixed 256 shares into which all keys are hashed.

mod hash;

pub use hash::{PARTITIONS, of_key};
