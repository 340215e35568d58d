//! What operators and their tools ask a running process: `/livez`, `/readyz`, `/metrics`.

mod health;
mod server;
mod survey;

pub use health::{Health, Part, Status};
pub use server::{BindError, OpsServer};
pub use survey::survey;
