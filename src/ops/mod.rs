//! The pages for operators and their tools: `/livez`, `/readyz`, `/metrics`, `/blocked-keys`.

pub(crate) mod bind;
mod blocked;
pub mod client;
pub mod config;
mod health;
pub(crate) mod origin;
pub(crate) mod problem_code;
mod server;
mod survey;

pub use bind::BindError;
pub use blocked::BlockedKeys;
pub use health::{Health, HealthPart, HealthStatus};
pub use server::{MAX_CONNECTIONS, OpsServer};
pub use survey::survey;
