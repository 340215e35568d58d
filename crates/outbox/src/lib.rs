//! The outbox: one collection of records, and every operation on it.
//!
//! | module | what it does |
//! |---|---|
//! | [`fields`], [`collections`] | names of fields and collections |
//! | [`new_record`], [`enqueue`], [`probe`] | for producers: a record, its insertion in the caller's transaction, and whether that works |
//! | [`record`], [`content`], [`payload`], `extjson` | reads a record: what the relay needs, what the producer wrote |
//! | [`json_text`], [`number`], [`nesting`], [`json_view`] | JSON to BSON as written, and back |
//! | [`snapshot`], [`position`], `merge` | reads what is pending, as of one point in time |
//! | [`lease`] | leases records, by the server's clock |
//! | [`settle`], [`reason`] | writes outcomes: done, retry, dead, released |
//! | [`repair`] | corrects, promotes, and marks dead what cannot be leased |
//! | [`inspect`], [`stats`] | for operators: counts and figures |
//! | [`undecoded`], [`list`], [`brief`] | for operators too: any record as its bytes; pages of lists; long values cut |
//! | [`redrive`], [`prune`] | for operators: requeue, discard, remove old records |
//! | [`erase`] | empties the records of an erased event stream |
//!
//! Every write is one conditional update: it names the state that it expects. A writer that matched
//! nothing has lost the record to another instance.

pub mod brief;
pub mod collections;
pub mod config;
pub mod content;
pub mod enqueue;
pub mod erase;
mod extjson;
pub mod fields;
mod filter;
pub mod header;
pub mod ids;
pub mod inspect;
pub mod json_text;
pub mod json_view;
pub mod lease;
pub mod list;
mod merge;
pub mod nesting;
pub mod new_record;
pub mod number;
pub mod partition;
pub mod payload;
pub mod position;
pub mod probe;
pub mod prune;
pub mod reason;
pub mod record;
pub mod redrive;
pub mod repair;
pub mod schema;
pub mod scope;
pub mod settle;
pub mod snapshot;
pub mod stats;
pub mod undecoded;
pub mod wakeup;

pub use enqueue::Outbox;
pub use new_record::{EnqueueRefusal, NewRecord};
pub use probe::ProbeError;
