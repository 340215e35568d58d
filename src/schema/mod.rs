//! Prints the scripts that create the collections, indexes and roles.
//!
//! The outbox's collections are defined in [`outbox`], with the shape of a record in [`validator`];
//! those of events, snapshots and prepare keys in `aggregate`; each index next to the query that it
//! serves. Both build a [`Layout`]: [`Layout::apply`] creates what is missing, [`Layout::verify`]
//! reports differences, and [`script()`] and [`aggregate_script()`] print it for mongosh, for
//! databases in which Postrider cannot create anything. Their output at the defaults is
//! `schema/mongodb-setup.js` and `schema/mongodb-aggregate.js`.
//! Privileges are defined in [`roles`]; [`access()`](access::access) checks those of a user.
//!
//! ```text
//! index.rs   what an index is         layout.rs  what should be there
//! found.rs   what is there            judge.rs   how one index differs
//! apply.rs   create, adjust           verify.rs  one line per difference
//! ```
//!
//! [`hazards()`] names what others have added, such as an index that deletes what is not delivered.
//!
//! Nothing is dropped or redefined: a conflict is an error, and the operator's to resolve. Only the
//! retention of delivered records is adjusted in place. An existing collection keeps its validator,
//! or the lack of one.

pub mod access;
pub mod aggregate_script;
mod hazards;
mod literal;
pub mod roles;
pub mod script;

pub use aggregate_script::aggregate_script;
pub use hazards::hazards;
pub use postrider_outbox::schema as outbox;
pub use postrider_outbox::schema::{SchemaOptions, Validator, apply, options, validator, verify};
pub use postrider_store::schema::{
    Applied, Difference, ForeignContext, Hazard, Hazards, Layout, SchemaError, index,
};
pub use roles::roles_script;
pub use script::script;
