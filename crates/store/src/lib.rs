//! MongoDB: the connection, its errors, its clock, conditional writes.

pub mod boot_instant;
pub mod clock;
pub mod cluster_time;
pub mod codes;
pub mod config;
pub mod connect;
pub mod dates;
mod driver_text;
pub mod error;
pub mod failpoint;
pub mod insert;
pub mod limits;
pub mod metric;
pub mod metrics;
pub mod outage_log;
pub mod page;
pub mod pools;
pub mod read;
pub mod schema;
pub mod text;
pub mod transaction;
pub mod uri;
pub mod write;

pub use clock::ServerClock;
pub use codes::DUPLICATE_KEY;
pub use driver_text::driver_text;
pub use error::{StoreError, within};
pub use outage_log::OutageLog;
