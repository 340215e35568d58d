//! Why an append, or a read, did not succeed.

use std::fmt;
use std::sync::Arc;

use crate::events::append::Expected;
use crate::schema::SchemaError;
use crate::store::StoreError;

/// An append that wrote nothing; but for [`AppendError::Unknown`], where that is not sure.
#[derive(Clone, Debug, thiserror::Error)]
pub enum AppendError {
    /// It can't be appended as it is.
    #[error("the append is not valid: {}", listed(.0))]
    Invalid(Vec<Flaw>),
    /// The aggregate is not at the version that was expected.
    #[error("expected {expected}, but the aggregate is at version {actual}")]
    VersionConflict {
        /// What was expected.
        expected: Expected,
        /// The version at which the aggregate is; 0 where there is none.
        actual: i64,
    },
    /// It was to be the aggregate's first append, and is not.
    #[error("the aggregate exists already, at version {actual}")]
    DuplicateAggregate {
        /// The version at which it is.
        actual: i64,
    },
    /// Another aggregate has used this request id (`events.request_id_unique = "global"`).
    #[error("aggregate {aggregate_id:?} has used this request id already")]
    DuplicateRequest {
        /// Which one.
        aggregate_id: String,
    },
    /// Too many appends wait already: try again in a second.
    #[error("too many appends are waiting")]
    Overloaded,
    /// The store is closed: this process is ending.
    #[error("no more appends are taken: this process is ending")]
    Closed,
    /// The aggregate's collection can't be used.
    #[error("the schema of the aggregate can't be used")]
    Schema(#[source] Arc<SchemaError>),
    /// MongoDB did not do it. Nothing was written.
    #[error("nothing was appended")]
    Unavailable(#[source] Arc<StoreError>),
    /// MongoDB did not say whether it did it. Asking again with the same request id tells.
    #[error("whether it was appended is not known; ask again with the same request id")]
    Unknown(#[source] Arc<StoreError>),
}

/// One thing that is wrong with what was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flaw {
    /// The field, such as `events[0].name`.
    pub field: String,
    /// What is wrong, and what would be right.
    pub detail: String,
}

impl Flaw {
    /// A flaw of this field.
    pub fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.detail)
    }
}

fn listed(flaws: &[Flaw]) -> String {
    flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A read that did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The range can't be.
    #[error("{0}")]
    Range(Flaw),
    /// MongoDB did not answer.
    #[error("the events could not be read")]
    Store(#[from] StoreError),
    /// What is stored is no event stream.
    #[error("a document of the event stream can't be read")]
    Decode(#[source] bson::error::Error),
}
