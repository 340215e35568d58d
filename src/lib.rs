//! Postrider: a transactional outbox relay for MongoDB.

pub mod ids;
pub mod sink;
