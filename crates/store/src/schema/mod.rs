//! Compares expected with existing collections and indexes.
//!
//! ```text
//! index.rs   what an index is         layout.rs  what should be there
//! found.rs   what is there            judge.rs   how one index differs from what should be there
//! apply.rs   create, adjust           verify.rs  one line per difference
//! ```
//!
//! Nothing is dropped or redefined: a conflict is an error, and the operator's to resolve. Only the
//! retention of delivered records is adjusted in place. An existing collection keeps its validator,
//! or the lack of one.

pub mod apply;
pub mod error;
mod found;
pub mod index;
mod judge;
pub mod layout;
pub mod verify;

pub use apply::Applied;
pub use error::{Foreign, SchemaError};
pub use layout::Layout;
pub use verify::Difference;
