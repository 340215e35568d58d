//! Postrider: a transactional outbox relay for MongoDB.

pub mod ids;
pub mod outbox;
pub mod partition;
pub mod sink;
pub mod store;
