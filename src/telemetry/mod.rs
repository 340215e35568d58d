//! Logs and metrics: what an operator sees.

mod log;
pub mod metrics;

pub use log::{LONGEST_NAME, bounded, chain, check_level, init};
