//! The collections and indexes of the outbox and of each aggregate, and how they come to be.
//!
//! What should be there is said once: the outbox's in [`outbox`], with the shape of a record in
//! [`validator`]; those of events, snapshots and prepare keys in `aggregate`; each index beside
//! the query that it serves. Either makes a [`Layout`], of which three readers make use:
//! [`Layout::apply`] creates what is missing, [`Layout::verify`] tells what differs, and
//! [`script()`] and [`aggregate_script()`] print the same for mongosh, for databases in which Postrider may create nothing.
//! Its last prints at the defaults are `schema/mongodb-setup.js` and `schema/mongodb-aggregate.js`.
//! Who may do what with all of it stands in [`roles`]; [`access()`](access::access) asks whether a
//! user may.
//!
//! ```text
//! index.rs   what an index is         layout.rs  what should be there
//! found.rs   what is there            judge.rs   what that means beside what should be
//! apply.rs   create, adjust           verify.rs  one line per difference
//! ```
//!
//! Nothing is ever dropped or redefined: what stands in the way is an error that says so,
//! and a person's to remove. The one thing adjusted in place is how long delivered records
//! stay. A collection that exists keeps its validator, or the lack of one.

pub mod access;
pub mod aggregate_script;
mod literal;
pub mod roles;
pub mod script;

pub use aggregate_script::aggregate_script;
pub use postrider_outbox::schema as outbox;
pub use postrider_outbox::schema::{SchemaOptions, Validator, apply, options, validator, verify};
pub use postrider_store::schema::{Applied, Difference, Foreign, Layout, SchemaError, index};
pub use roles::roles_script;
pub use script::script;
