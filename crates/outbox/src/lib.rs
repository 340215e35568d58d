//! The outbox at rest: one collection of records, and everything that speaks to it.
//!
//! | module | what it does |
//! |---|---|
//! | [`fields`], [`collections`] | the names of the contract |
//! | [`enqueue`] | inserts a record in the caller's transaction |
//! | [`record`], [`content`], [`payload`], `extjson` | reads a record: what the relay needs, what the producer wrote |
//! | [`snapshot`], [`position`], `merge` | reads what is pending, as of one point in time |
//! | [`lease`] | takes records, by the server's clock |
//! | [`settle`], [`reason`] | gives them back: done, retry, dead, released |
//! | [`repair`] | corrects, promotes, and buries what can't be leased |
//! | [`inspect`], [`stats`] | for operators: counts and figures |
//! | [`undecoded`], [`list`] | for people too: any record as the bytes that it is; pages of lists |
//! | [`redrive`], [`prune`] | by people: requeue, discard, remove what is over |
//!
//! Every write is one conditional update: it names the state that it expects, and whoever
//! matched nothing learns that the record has passed to another.

pub mod collections;
pub mod config;
pub mod content;
pub mod enqueue;
mod extjson;
pub mod fields;
mod filter;
pub mod header;
pub mod ids;
pub mod inspect;
pub mod lease;
pub mod list;
mod merge;
pub mod partition;
pub mod payload;
pub mod position;
pub mod prune;
pub mod reason;
pub mod record;
pub mod redrive;
pub mod repair;
pub mod schema;
pub mod settle;
pub mod shown;
pub mod snapshot;
pub mod stats;
pub mod undecoded;
pub mod wakeup;

pub use enqueue::{NewRecord, Outbox};
