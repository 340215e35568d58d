//! Prepare keys.

mod answers;
mod cycle;
pub mod expiry;
mod moving;
mod names;
mod races;
mod using;
mod values;
