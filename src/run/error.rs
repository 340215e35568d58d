//! Errors that end `postrider run`.

use crate::http::StartError;
use crate::ops::BindError;
use crate::partition::names::{NameError, Replaced};
use crate::relay::RelayError;
use crate::schema::SchemaError;
use crate::schema::access::Lacking;
use crate::store::StoreError;

/// Error that ended a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// MongoDB refuses this process permanently: credentials, privileges.
    #[error(
        "MongoDB rejects this instance; correct the credentials or privileges of mongo.uri \
         (`postrider check` reports which)"
    )]
    Refused(#[source] StoreError),
    /// The MongoDB user lacks privileges.
    #[error(
        "MongoDB rejects this instance; correct the credentials or privileges of mongo.uri: {lacking}; {}",
        lacking.remedy()
    )]
    Lacking {
        /// The missing privileges.
        lacking: Box<Lacking>,
    },
    /// The URI cannot be used.
    #[error("cannot use mongo.uri")]
    Mongo(#[source] StoreError),
    /// The HTTP API failed to start.
    #[error(transparent)]
    Api(#[from] StartError),
    /// Requests took longer than `relay.shutdown_timeout` at the shutdown.
    #[error(
        "closed {0} connections of the HTTP API, whose requests took longer than \
         relay.shutdown_timeout"
    )]
    Cut(usize),
    /// The schema conflicts with what Postrider requires.
    #[error("cannot use the schema of the outbox")]
    Schema(#[source] SchemaError),
    /// The deployment has no transactions, which the append path requires.
    #[error(
        "events.enabled = true: the event store requires transactions, but MongoDB is a \
         standalone server; make it a replica set of one member (mongod --replSet rs0, then \
         rs.initiate()), or set events.enabled = false"
    )]
    Standalone,
    /// The feed is not possible on a sharded cluster.
    #[error(
        "feed.enabled = true: MongoDB is a sharded cluster, which has no common order of \
         events; set feed.enabled = false, or use a replica set"
    )]
    ShardedFeed,
    /// A database of the append path belongs to another context.
    #[error("cannot use the databases of the event store")]
    Context(#[source] SchemaError),
    /// A sink could not be built.
    #[error("sinks.{name}: {detail}")]
    Sink {
        /// Its name.
        name: String,
        /// The error.
        detail: String,
    },
    /// The relay failed.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The instance could not take its name.
    #[error(transparent)]
    Name(NameError),
    /// Another instance has taken its name.
    #[error(transparent)]
    Replaced(Replaced),
    /// A part ended before the process.
    #[error("{0} ended unexpectedly")]
    Uninvited(&'static str),
}
