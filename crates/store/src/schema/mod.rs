//! Collections and indexes as they should be, compared with what is there.
//!
//! ```text
//! index.rs   what an index is         layout.rs  what should be there
//! found.rs   what is there            judge.rs   how one index differs from what should be there
//! apply.rs   create, adjust           verify.rs  one line per difference
//! ```
//!
//! Nothing is ever dropped or redefined: what prevents a creation is an error that says so, and the
//! operator's to remove. The one thing that is adjusted in place is how long delivered records stay.
//! A collection that exists keeps its validator, or the lack of one.

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
