//! Logs and metrics.

pub mod config;
mod log;
pub mod metrics;

pub use log::{check_level, init, is_json};
pub use postrider_store::text::{MAX_NAME_CHARS, bounded, chain, printable, printable_json};
