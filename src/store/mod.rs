//! MongoDB: the connection, its errors, its clock, conditional writes.

pub mod clock;
pub mod connect;
pub mod error;
pub(crate) mod insert;
pub mod limits;
pub(crate) mod read;
pub mod trouble;
mod words;
pub(crate) mod write;

pub use clock::ServerClock;
pub(crate) use error::DUPLICATE_KEY;
pub use error::{Meaning, StoreError, within};
pub use trouble::Trouble;
pub use words::words;
