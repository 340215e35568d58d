//! Prepare keys.

mod answers;
mod cycle;
pub mod expiry;
mod move_key;
mod names;
mod races;
mod scoped;
mod values;
