//! MongoDB: the connection, its errors, its clock, conditional writes.

pub mod clock;
pub mod codes;
pub mod config;
pub mod connect;
pub mod dates;
pub mod error;
pub mod failpoint;
pub mod insert;
pub mod limits;
pub mod metric;
pub mod moment;
pub mod read;
pub mod schema;
pub mod text;
pub mod trouble;
mod words;
pub mod write;

pub use clock::ServerClock;
pub use codes::DUPLICATE_KEY;
pub use error::{Meaning, StoreError, within};
pub use trouble::Trouble;
pub use words::words;
