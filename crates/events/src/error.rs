//! Why an append, or a read, did not succeed.

use std::fmt;
use std::sync::Arc;

use postrider_outbox::ids::RecordId;
use postrider_store::StoreError;
use postrider_store::codes::TOO_LARGE;
use postrider_store::insert::Refusal;
use postrider_store::schema::SchemaError;
use serde::Serialize;

use crate::append::Expected;

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

impl AppendError {
    /// An aggregate that is at `actual` where something else was expected.
    pub(super) fn conflict(expected: Expected, actual: i64) -> Self {
        match expected.is_none() {
            true => Self::DuplicateAggregate { actual },
            false => Self::VersionConflict { expected, actual },
        }
    }

    /// Documents that MongoDB would not have, for no reason of ours.
    pub(super) fn refused(refusal: &Refusal) -> Self {
        let flaw = Flaw::new("events", format!("MongoDB refuses them: {}", refusal.message));
        match TOO_LARGE.contains(&refusal.code) {
            true => Self::Invalid(vec![flaw]),
            false => Self::Unavailable(Arc::new(StoreError::Refused {
                action: "append events",
                code: refusal.code,
            })),
        }
    }
}

/// Why a unit of work wrote nothing; but for [`AppendError::Unknown`], where that is not sure.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// One of its appends, or all of it: what an [`AppendError`] tells of an append goes for the
    /// unit.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// This record is there already, or another one with its `dedupKey`.
    #[error("record {0} is there already, or another one with its dedupKey")]
    DuplicateRecord(RecordId),
    /// What the work itself asked of MongoDB.
    #[error("a read or write of the work's own has failed")]
    Own(#[from] mongodb::error::Error),
    /// The work would not go on, for a reason of its own.
    #[error("the work was abandoned")]
    Abandoned(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The unit begins again: to be handed on. Nobody but the work sees it.
    #[error("the unit of work begins again")]
    Interrupted,
}

impl UnitError {
    /// For work that would not go on.
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
    /// A flaw of this field.
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
