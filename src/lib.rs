//! Postrider: a transactional outbox relay for MongoDB, and an event store beside it.
//!
//! An application writes its change and an outbox record in one transaction. Postrider takes the
//! record, publishes it, and marks it done: at least once, and in the order of its key.
//!
//! ```text
//!  producer's transaction               POST /v1/aggregates/…/events            http
//!        │ insert                               │ append, several in one transaction
//!        │ outbox::enqueue,                     │                               events
//!        │ or any driver in any language        ├──▶ {aggregate}_event_stream
//!        ▼                                      │    schema, context: collections, indexes
//!   outbox_records ◀────────────────────────────┘
//!        │  the change stream carries what becomes pending                 change_stream, relay::live_mode
//!        │  (at the beginning, and without one: snapshot reads in the      relay::scanner, plan
//!        │  order of lane_idx (partition, key, seq))                       outbox::snapshot
//!   take: a lease (one conditional update)                                 relay::acquirer
//!        │                                                                 outbox::lease
//!   publish, a lane per key, one unconfirmed message each                  relay::lane_worker
//!        │                               routing, sink
//!   settle, filtered by lease id: done | retry at | dead | released        relay::settlement_writer
//!                                        outbox::settle
//! ```
//!
//! **The rule that carries the order:** publish a record only when you know that every earlier
//! record of its key is done, dead by skip, or confirmed to you. See [`relay`].
//!
//! | | module | what it holds |
//! |---|---|---|
//! | given | [`config`] | settings: where they come from, what is wrong with them |
//! | | [`ids`], `dates`, [`moment`] | identities that must not be mixed up; dates as text; this host's time |
//! | | [`names`] | what collections are called after, by users |
//! | | `shown` | what is stored, as JSON |
//! | | [`telemetry`] | logs and metrics |
//! | | [`failpoint`] | places where tests make the process die |
//! | at rest | [`store`] | MongoDB: connection, errors, its clock |
//! | | [`schema`] | what must be there, created and verified |
//! | | [`context`] | where events, snapshots and prepare keys live |
//! | | [`outbox`] | the records: enqueue, read, lease, settle, repair, inspect |
//! | writing | [`events`] | the append path: event streams and records in one transaction; units of work |
//! | | [`snapshot`] | the state of an aggregate as of a version |
//! | | [`prepare`] | values reserved under a key, for ever or for a time |
//! | moving | [`relay`] | take → publish → settle |
//! | | [`change_stream`] | what becomes pending, as it commits |
//! | | [`routing`] | which sink, and where within it |
//! | | [`sink`] | what a broker must promise; RabbitMQ, Kafka, stdout |
//! | | [`partition`] | the hash of keys; who lives, and who owns what |
//! | in and out | [`run`] | builds the parts, supervises them, ends them |
//! | | [`check`] | what `run` needs, found or not, and what to mend |
//! | | [`ops`] | `/livez`, `/readyz`, `/metrics` |
//! | | [`http`] | the API: calls, tokens, limits, TLS, OpenAPI |
//! | | [`cli`] | one file per command |

// Given.
pub mod config;
mod dates;
pub mod failpoint;
pub mod ids;
pub mod moment;
pub mod names;
mod shown;
pub mod telemetry;

// At rest: these, those that write, `check` and `partition` are all that speak to MongoDB.
pub mod context;
pub mod outbox;
pub mod schema;
pub mod store;

// Writing: what applications append and keep.
pub mod events;
pub mod prepare;
pub mod snapshot;

// Moving.
pub mod change_stream;
pub mod partition;
pub mod relay;
pub mod routing;
pub mod sink;

// In and out.
pub mod check;
pub mod cli;
pub mod http;
pub mod ops;
pub mod run;

// Of the tests.
#[cfg(test)]
mod blessed;
