//! Errors of appends and reads.

use std::fmt;
use std::sync::Arc;

use postrider_outbox::ids::RecordId;
use postrider_store::StoreError;
use postrider_store::codes::TOO_LARGE_CODES;
use postrider_store::insert::InsertRefusal;
use postrider_store::schema::SchemaError;
use serde::Serialize;

use crate::append::Expected;

/// Why nothing was appended; with [`AppendError::Unknown`] that is uncertain.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// The append is invalid.
    #[error("invalid append: {}", join(.0))]
    Invalid(Vec<Flaw>),
    /// The aggregate has another version than expected.
    #[error("version conflict: expected {expected}, but the aggregate is at version {actual}")]
    VersionConflict {
        /// The expected version.
        expected: Expected,
        /// The version of the aggregate; 0 where it does not exist.
        actual: i64,
    },
    /// The append had to be the aggregate's first one, and is not.
    #[error("the aggregate already exists, at version {actual}")]
    DuplicateAggregate {
        /// The version of the aggregate.
        actual: i64,
    },
    /// The stream has ended: nothing is appended to it.
    #[error("the stream has ended, at version {version}; it accepts no appends")]
    StreamEnded {
        /// The version of the aggregate.
        version: i64,
    },
    /// Another aggregate has used this request id (`events.request_id_unique = "global"`), or another
    /// kind of append to this one.
    #[error("aggregate {aggregate_id:?} has already used this request id")]
    DuplicateRequest {
        /// That aggregate.
        aggregate_id: String,
    },
    /// Too many appends are waiting; retry after a second.
    #[error("too many appends are waiting; retry later")]
    Overloaded,
    /// The store is closed: the process is ending.
    #[error("this process is shutting down and accepts no appends")]
    Closed,
    /// The collection of the aggregate cannot be used.
    #[error("cannot use the schema of the aggregate")]
    Schema(#[source] Arc<SchemaError>),
    /// MongoDB failed. Nothing was written.
    #[error("nothing was appended")]
    Unavailable(#[source] Arc<StoreError>),
    /// MongoDB did not confirm the append. A retry with the same request id returns its answer.
    #[error("unknown whether it was appended; retry with the same request id")]
    Unknown(#[source] Arc<StoreError>),
}

impl AppendError {
    /// The error of an append to an aggregate at another version.
    pub(super) fn conflict(expected: Expected, actual: i64) -> Self {
        if expected.is_none() {
            Self::DuplicateAggregate { actual }
        } else {
            Self::VersionConflict { expected, actual }
        }
    }

    /// The error of documents that MongoDB refused, for example by a validator.
    pub(super) fn refused(refusal: &InsertRefusal) -> Self {
        let flaw = Flaw::new("events", format!("MongoDB rejects them: {}", refusal.message));
        if TOO_LARGE_CODES.contains(&refusal.code) {
            return Self::Invalid(vec![flaw]);
        }
        let (action, code) = ("append events", refusal.code);
        Self::Unavailable(Arc::new(StoreError::Refused { action, code }))
    }
}

/// Why a unit of work wrote nothing; with [`AppendError::Unknown`] that is uncertain.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// The error of one of its appends, or of the whole unit.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// A record with this id or `dedupKey` exists already.
    #[error("a record with the id {0} or its dedupKey already exists")]
    DuplicateRecord(RecordId),
    /// A read or write of the work itself failed.
    #[error("a read or write of the work itself failed")]
    Own(#[from] mongodb::error::Error),
    /// The work ended the unit for a reason of its own.
    #[error("the work was abandoned")]
    Abandoned(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The unit begins again. The work must return this error; the caller never gets it.
    #[error("the unit of work restarts")]
    Interrupted,
}

impl UnitError {
    /// The error by which work ends its unit.
    pub fn abandon(reason: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Abandoned(reason.into())
    }
}

/// What is wrong with one field or parameter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = FieldError))]
pub struct Flaw {
    /// Its name or path, such as `events[0].name`; empty for the whole body.
    #[cfg_attr(feature = "json", schema(example = "events[0].name"))]
    pub field: String,
    /// What is wrong, and what would be right.
    #[cfg_attr(feature = "json", schema(example = "is missing"))]
    pub detail: String,
}

impl Flaw {
    /// A flaw of a field.
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.detail)
    }
}

pub(crate) fn join(flaws: &[Flaw]) -> String {
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Why events could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The range is invalid.
    #[error("{0}")]
    Range(Flaw),
    /// The stream has ended: its events are not read any more.
    #[error("the stream has ended, at version {version}; its events cannot be read")]
    Ended {
        /// The version of the aggregate, or that of the event that was reached.
        version: i64,
    },
    /// MongoDB failed.
    #[error("cannot read the events")]
    Store(#[from] StoreError),
}
