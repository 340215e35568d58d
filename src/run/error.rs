//! Why `postrider run` ended in failure.

use crate::http::StartError;
use crate::ops::BindError;
use crate::partition::names::{NameError, Replaced};
use crate::relay::RelayError;
use crate::schema::SchemaError;
use crate::schema::access::Lacking;
use crate::store::StoreError;

/// Why a run ended in failure.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// An address that can't be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// MongoDB refuses us, and will go on refusing: credentials, privileges.
    #[error(
        "MongoDB refuses this instance; mend the credentials or privileges of mongo.uri \
         (`postrider check` tells which)"
    )]
    Refused(#[source] StoreError),
    /// Its user may not do all that is to be done.
    #[error(
        "MongoDB refuses this instance; mend the credentials or privileges of mongo.uri: {lacking}; {}",
        lacking.remedy()
    )]
    Lacking {
        /// What it may not do.
        lacking: Box<Lacking>,
    },
    /// MongoDB can't be spoken to in the way that the URI wants.
    #[error("mongo.uri can't be used")]
    Mongo(#[source] StoreError),
    /// The HTTP API can't be served.
    #[error(transparent)]
    Api(#[from] StartError),
    /// Requests took longer than `relay.shutdown_timeout` at the stop.
    #[error("{0} connections of the HTTP API were cut: their requests took too long")]
    Cut(usize),
    /// The schema is in conflict with what Postrider needs.
    #[error("the outbox's schema can't be used")]
    Schema(#[source] SchemaError),
    /// The append path has no transactions there.
    #[error(
        "the append path needs transactions, and MongoDB is a standalone server: make it a replica set \
         of one member (mongod --replSet rs0, then rs.initiate()), or set events.enabled = false"
    )]
    Standalone,
    /// A database of the append path is another context's.
    #[error("the append path can't use its databases")]
    Context(#[source] SchemaError),
    /// A sink that can't be made.
    #[error("sinks.{name}: {detail}")]
    Sink {
        /// Its name.
        name: String,
        /// Why not.
        detail: String,
    },
    /// The relay ended in failure.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// It did not get its name.
    #[error(transparent)]
    Name(NameError),
    /// Another instance has taken its name.
    #[error(transparent)]
    Replaced(Replaced),
    /// A part that should run as long as the process ended.
    #[error("{0} ended by itself")]
    Uninvited(&'static str),
}
