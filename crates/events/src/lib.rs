//! The append path: event streams and outbox records in one transaction.
//!
//! ```text
//!  append ── checked, encoded ──▶ lane of its aggregate ── group ──▶ one transaction ──▶ answers
//!            prepared             store, lane              decide    transaction
//!                                                          cache     stream, records
//! ```
//!
//! | module | what it does |
//! |---|---|
//! | [`append`], [`error`] | appends and their answers |
//! | [`store`] | accepts appends; refuses them when too many wait |
//! | `prepared` | checks and encodes an append |
//! | `lane` | group commit |
//! | `version_cache`, `decide` | the version of each append, and conflicts |
//! | `state` | whether a stream has ended |
//! | `lookup` | reads versions and requests from the event stream |
//! | `transaction` | writes streams and records, all or nothing |
//! | `unit_of_work`, `unit_run` | the user's own writes, appends and records in one transaction |
//! | [`stream`], `records` | the two kinds of documents |
//! | `decode` | reads of documents, whatever they contain |
//! | [`ending`] | ends and erases streams |
//! | [`load`], `aggregates` | reads of events; lists of aggregates |
//! | [`feed`] | one position for each event of the context, and reads in their order |
//! | [`subscriptions`] | named readers of the feed, whose position Postrider keeps |
//! | [`hazards`] | settings of others by which documents are lost |
//! | `commits` | reports of commits, to the feed in the same process |
//! | `json` | the JSON form, of HTTP and of `postrider append` |
//!
//! Two unique indexes guard an aggregate: of its versions, and of its requests. The version cache only
//! saves reads.

mod aggregates;
pub mod append;
mod commits;
pub mod config;
pub mod context;
mod decide;
mod decode;
mod document;
pub mod ending;
pub mod error;
pub mod feed;
pub mod hazards;
mod integer;
#[cfg(feature = "json")]
pub mod json;
mod lane;
pub mod load;
mod lookup;
pub mod metrics;
pub mod names;
mod open_erasures;
pub mod prepare;
mod prepared;
pub mod query;
mod records;
pub mod schema;
pub mod snapshot;
mod state;
pub mod store;
pub mod stream;
pub mod subscriptions;
mod tenancy;
mod transaction;
mod unit_of_work;
mod unit_run;
mod version_cache;

pub use aggregates::AggregateIds;
pub use append::{Append, Appended, Expected, NewEvent, Trace};
pub use ending::{EndError, Erasure, ErasureCounts, ErasureState, StreamEnding};
pub use error::{AppendError, Flaw, LoadError, UnitError};
pub use load::{Range, load_in_parts};
pub use postrider_outbox::erase::PendingRecords;
pub use store::EventStore;
pub use stream::{Event, EventStream};
pub use tenancy::Tenancy;
pub use unit_of_work::UnitOfWork;
pub use unit_run::UnitOutcome;
