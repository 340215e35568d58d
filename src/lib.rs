//! Postrider: a transactional outbox relay for MongoDB.

pub mod config;
pub mod failpoint;
pub mod ids;
pub mod outbox;
pub mod partition;
pub mod relay;
pub mod routing;
pub mod schema;
pub mod sink;
pub mod store;
pub mod telemetry;
