//! map
pub mod collections;
pub mod content;
pub mod fields;
pub mod lease;
pub mod payload;
pub mod position;
pub mod reason;
pub mod record;
pub mod repair;
pub mod settle;
pub mod snapshot;
mod write;
