//! map
pub mod collections;
pub mod content;
pub mod fields;
pub mod payload;
pub mod record;
