//! The append path: event streams and outbox records in one transaction.
//!
//! ```text
//!  append ── looked at, encoded ──▶ lane of its aggregate ── group ──▶ one transaction ──▶ answers
//!            prepared               store, lane               decide    transaction
//!                                                             heads     stream, rows
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`append`], [`error`] | what is asked and answered |
//! | [`store`] | the way in; bounded, so that a flood is turned away |
//! | `prepared` | whatever can be wrong with an append by itself |
//! | `lane` | group commit |
//! | `heads`, `decide` | which version each gets; who is in conflict |
//! | `lookup` | versions and requests, asked of the event stream |
//! | `transaction` | writes streams and records, all or nothing; which guard has refused |
//! | `unit_of_work`, `unit_run` | the user's own writes, appends and records in one transaction |
//! | [`stream`], `rows` | the two kinds of documents |
//! | [`load`] | reads |
//! | `json` | the JSON form, of HTTP and of `postrider append` |
//!
//! What guards an aggregate are two unique indexes: of its versions, and of its requests. What is
//! known here of versions only spares questions.

pub mod append;
pub mod context;
mod decide;
pub mod error;
mod heads;
#[cfg(feature = "json")]
pub mod json;
mod lane;
pub mod load;
mod lookup;
pub mod metrics;
pub mod names;
pub mod prepare;
mod prepared;
mod rows;
pub mod schema;
pub mod snapshot;
pub mod store;
pub mod stream;
mod transaction;
mod unit_of_work;
mod unit_run;

pub use append::{Append, Appended, Expected, NewEvent, Trace};
pub use error::{AppendError, Flaw, LoadError, UnitError};
pub use load::Range;
pub use store::EventStore;
pub use stream::{Event, EventStream};
pub use unit_of_work::UnitOfWork;
pub use unit_run::Outcome;
