//! Logs and metrics: what an operator sees.

mod log;
pub mod metrics;

pub use log::{chain, check_level, init};
