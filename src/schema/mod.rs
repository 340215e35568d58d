//! The outbox's collections, indexes and validator, and how they come to be.
//!
//! What should be there is said once: the collections' names in
//! [`names`](crate::outbox::collections::names), the indexes in [`index`], each beside the
//! query that it serves, and the shape of a record in [`validator`]. Three readers make use
//! of it: [`apply()`] creates what is missing, [`verify()`] tells what differs, and
//! [`script()`] prints the same as a mongosh script, for databases in which Postrider may
//! create nothing. The script's last print at the defaults is `schema/mongodb-setup.js`. Who
//! may do what with all of it stands in [`roles`]; [`access()`](access::access) asks whether a user may.
//!
//! ```text
//! found.rs   what is there            judge.rs   what that means beside what should be
//! apply.rs   create, adjust           verify.rs  one line per difference
//! ```
//!
//! Nothing is ever dropped or redefined: what stands in the way is an error that says so,
//! and a person's to remove. The one thing adjusted in place is how long delivered records
//! stay. A collection that exists keeps its validator, or the lack of one.

pub mod access;
pub mod apply;
pub mod error;
mod found;
pub mod index;
mod judge;
pub mod options;
pub mod roles;
pub mod script;
pub mod validator;
pub mod verify;

pub use apply::{Applied, apply};
pub use error::SchemaError;
pub use options::SchemaOptions;
pub use roles::roles_script;
pub use script::script;
pub use verify::{Difference, verify};
