//! The bodies of an end and of an erasure.

use postrider_outbox::erase::PendingRecords;
use serde::Deserialize;
use serde::de::Deserializer;
use utoipa::ToSchema;

use crate::Trace;
use crate::ending::{StreamEnding, check_reason};
use crate::json::reader::{Request, checked};
use crate::json::value::IdText;

/// The end of a stream.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndRequest {
    /// The id of the request. A repeated request gets the answer of the first. Required, unless the header
    /// Idempotency-Key has it.
    #[schema(required = false)]
    pub request_id: IdText,
    /// The reason, which is stored in the event and logged.
    pub reason: ReasonText,
}

/// The erasure of a stream.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EraseRequest {
    /// The id of the request. A repeated request gets the present state of the erasure. Required, unless
    /// the header Idempotency-Key has it.
    #[schema(required = false)]
    pub request_id: IdText,
    /// The reason, which is stored in the event and logged. It must not contain what is erased.
    pub reason: ReasonText,
    /// Whether records that are not delivered yet are removed, instead of delivered first. By default
    /// false.
    pub discard_pending: Option<bool>,
}

/// Why a stream ends: 1 to 1000 characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(pattern = "^[\\s\\S]{1,1000}$", example = "the customer has left")]
pub struct ReasonText(String);

impl<'de> Deserialize<'de> for ReasonText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |reason: String| check_reason(&reason).map(|()| Self(reason)))
    }
}

impl Request for EndRequest {}

impl Request for EraseRequest {}

impl EndRequest {
    /// The request of an actor, if known.
    pub fn into_ending(self, actor: Option<String>, trace: Trace) -> StreamEnding {
        StreamEnding { actor, trace, ..StreamEnding::new(self.request_id, self.reason.0) }
    }
}

impl EraseRequest {
    /// The request of an actor, if known, and what becomes of pending records.
    pub fn into_ending(
        self,
        actor: Option<String>,
        trace: Trace,
    ) -> (StreamEnding, PendingRecords) {
        let pending = match self.discard_pending {
            Some(true) => PendingRecords::Discard,
            _ => PendingRecords::Deliver,
        };
        let request =
            StreamEnding { actor, trace, ..StreamEnding::new(self.request_id, self.reason.0) };
        (request, pending)
    }
}
