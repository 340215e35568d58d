//! What operators and their tools ask a running process: `/livez`, `/readyz`, `/metrics`.

pub(crate) mod bind;
mod health;
mod server;
mod survey;

pub use bind::BindError;
pub use health::{Health, Part, Status};
pub use server::OpsServer;
pub use survey::survey;
