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
//! | [`inspect`], [`stats`], [`explain`] | for people: lists, figures, why a record waits |
//! | [`undecoded`], [`list`] | for people too: any record as the bytes that it is; pages of lists |
//! | [`redrive`], [`prune`] | by people: requeue, discard, remove what is over |
//!
//! Every write is one conditional update: it names the state that it expects, and whoever
//! matched nothing learns that the record has passed to another.

pub mod collections;
pub mod content;
pub mod enqueue;
pub mod explain;
mod extjson;
pub mod fields;
pub mod inspect;
pub mod lease;
pub mod list;
mod merge;
pub mod payload;
pub mod position;
pub mod prune;
pub mod reason;
pub mod record;
pub mod redrive;
pub mod repair;
pub mod settle;
pub mod snapshot;
pub mod stats;
pub mod undecoded;

pub use enqueue::{NewRecord, Outbox};
