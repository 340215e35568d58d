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
    /// Identifies the request: a repeated one gets the answer of the first.
    pub request_id: IdText,
    /// Why: in the event and in the log.
    pub reason: ReasonText,
}

/// The erasure of a stream.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EraseRequest {
    /// Identifies the request: a repeated one gets the present state of the first.
    pub request_id: IdText,
    /// Why: in the event and in the log. It must not have the content that is erased.
    pub reason: ReasonText,
    /// Remove the records that were not delivered yet, instead of delivering them first; false by
    /// default.
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
