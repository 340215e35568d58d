//! Configuration: where it comes from, what is wrong with it, how it is shown.

pub mod secret;
pub mod tree;
mod units;
