//! Compares expected with existing collections and indexes.
//!
//! ```text
//! index.rs     an index                  layout.rs   the expected collections and indexes
//! existing.rs  what exists               compare.rs  how one index differs from the expected one
//! apply.rs     creates and adjusts       verify.rs   one line per difference
//! hazard.rs    what others have added, and by which documents are lost
//! ```
//!
//! Nothing is dropped or redefined: a conflict is an error, and the operator's to resolve. Only the
//! retention of delivered records is adjusted in place. An existing collection keeps its validator,
//! or the lack of one.

pub mod apply;
mod compare;
pub mod error;
mod existing;
pub mod hazard;
pub mod index;
pub mod layout;
pub mod verify;

pub use apply::Applied;
pub use error::{ForeignContext, SchemaError};
pub use existing::list_indexes;
pub use hazard::{Hazard, Hazards};
pub use layout::Layout;
pub use verify::Difference;
