//! MongoDB: the connection, its errors, its clock and the schema.

pub mod clock;
pub mod connect;
pub mod error;
pub mod limits;

pub use clock::ServerClock;
pub use error::{Meaning, StoreError, within};
