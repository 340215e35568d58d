//! Postrider: a transactional outbox relay for MongoDB, with an event store.
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
//! This crate is the daemon. Below it are the crates of the workspace, each of which knows only those
//! above it in this table. Cargo enforces that, and `tests/layers.rs` that there is no circle within one.
//!
//! | crate | what it holds |
//! |---|---|
//! | `postrider-settings` | kinds of values in the configuration: durations, sizes, secrets, globs |
//! | [`store`] | MongoDB: connection, errors, clock, conditional writes; collections and indexes as they should be |
//! | [`outbox`] | the records: enqueue, read, lease, settle, repair, inspect; the hash of keys |
//! | [`events`] | the event store: appends, [`snapshot`]s, [`prepare`] keys, in a [`context`] |
//! | [`adopt`] | the bridge from the outbox of another system |
//! | [`relay`] | acquire → publish → settle; the [`change_stream`], [`routing`], [`partition`]s, and what a sink must promise |
//! | [`sink`] | RabbitMQ, Kafka, stdout |
//!
//! The crate `postrider-projections` stands on [`events`], and the daemon does not use it: a user's process
//! keeps read models with it, from the feed or from a broker's messages.
//!
//! A Rust application that writes records depends on `postrider-outbox`, or on `postrider-events` for
//! units of work: neither brings a broker, HTTP or a command line.
//!
//! | module of the daemon | what it holds |
//! |---|---|
//! | [`config`] | settings: where they come from, what is wrong with them |
//! | [`descriptors`] | the limit of file descriptors: raised, calculated, divided |
//! | [`run`] | builds the parts, supervises them, ends them |
//! | [`check`] | what `run` needs, found or not, and what to do |
//! | [`ops`] | `/livez`, `/readyz`, `/metrics` |
//! | [`http`] | the API: calls, tokens, limits, TLS, OpenAPI |
//! | [`listener`] | the HTTP/1.1 listener of both ports: connections, their places, a graceful end |
//! | [`cli`] | one file per command |
//! | [`schema`] | scripts and roles for databases in which Postrider may create nothing |
//! | [`telemetry`] | logs and metrics |

// The floors below, lowest first: each is a crate under crates/ and knows only those above it in this list.
pub use postrider_store as store;
#[doc(no_inline)]
pub use postrider_store::{boot_instant, dates, failpoint};

pub use postrider_outbox as outbox;
#[doc(no_inline)]
pub use postrider_outbox::{ids, json_view, wakeup};

pub use postrider_events as events;
#[doc(no_inline)]
pub use postrider_events::{context, names, prepare, snapshot};

#[doc(no_inline)]
pub use postrider_adopt as adopt;

pub use postrider_relay as relay;
#[doc(no_inline)]
pub use postrider_relay::{change_stream, partition, routing};

// The daemon.
pub mod check;
pub mod cli;
pub mod config;
pub mod descriptors;
pub mod http;
pub mod listener;
pub mod ops;
pub mod run;
pub mod schema;
pub mod telemetry;

/// What a broker must promise, and the brokers that there are.
pub mod sink {
    pub use postrider_relay::sink::*;
    pub use postrider_sinks::*;
}

// Of the tests.
#[cfg(test)]
mod blessed;
