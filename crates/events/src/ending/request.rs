//! What an end or an erasure asks for.

use bson::doc;
use bson::raw::RawDocument;
use postrider_outbox::erase::PendingRecords;

use crate::append::{Append, Expected, NewEvent, Trace};
use crate::error::Flaw;
use crate::names::{AggregateId, AggregateName, check_id};
use crate::state::EndKind;

/// The event that ends a stream.
pub(crate) const STREAM_ENDED: &str = "postrider.StreamEnded";

/// The event that erases a stream.
pub(crate) const STREAM_ERASED: &str = "postrider.StreamErased";

/// The revision of both events: Wow's default.
const REVISION: &str = "0.0.1";

/// The class by which the Wow framework takes the aggregate for deleted.
const BODY_TYPE: &str = "me.ahoo.wow.api.event.DefaultAggregateDeleted";

/// The longest reason.
pub(crate) const MAX_REASON_CHARS: usize = 1_000;

/// The request to end a stream, or to erase it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamEnding {
    /// Identifies the request: a repeated one gets the answer of the first.
    pub request_id: String,
    /// Why: in the event, in its message and in the log. It must not have the content that is erased.
    pub reason: String,
    /// Who asks for it, if known.
    pub actor: Option<String>,
    /// `traceparent` and `tracestate`, for the message.
    pub trace: Trace,
}

impl StreamEnding {
    /// A request of no known actor.
    pub fn new(request_id: impl Into<String>, reason: impl Into<String>) -> Self {
        let (request_id, reason) = (request_id.into(), reason.into());
        Self { request_id, reason, actor: None, trace: Trace::default() }
    }

    /// The same request of this actor.
    pub fn by(self, actor: impl Into<String>) -> Self {
        Self { actor: Some(actor.into()), ..self }
    }

    /// The flaws of its values.
    pub fn flaws(&self) -> Vec<Flaw> {
        let mut flaws = Vec::new();
        let check_id = |text: &str| check_id(text).map_err(|rule| rule.to_string());
        for (field, checked) in [
            ("requestId", check_id(&self.request_id)),
            ("reason", check_reason(&self.reason)),
            ("actor", self.actor.as_deref().map_or(Ok(()), check_id)),
        ] {
            flaws.extend(checked.err().map(|detail| Flaw::new(field, detail)));
        }
        flaws
    }

    /// The append of the reserved event, behind a newest stream document.
    pub(super) fn into_append(
        self,
        name: AggregateName,
        id: AggregateId,
        kind: EndKind,
        newest: &RawDocument,
    ) -> Append {
        let mut body = doc! { "reason": self.reason };
        if let Some(actor) = self.actor {
            body.insert("actor", actor);
        }
        let event = match kind {
            EndKind::End => STREAM_ENDED,
            EndKind::Erase(pending) => {
                body.insert("discardPending", pending == PendingRecords::Discard);
                STREAM_ERASED
            }
        };
        let event = NewEvent {
            revision: Some(REVISION.to_owned()),
            body_type: Some(BODY_TYPE.to_owned()),
            ..NewEvent::new(event, body)
        };
        // (One of another type, or that is not text, is left out.)
        let text = |field| newest.get_str(field).ok().map(str::to_owned);
        Append {
            // The fields by which Wow's clients find and read a stream.
            command_id: Some(self.request_id.clone()),
            tenant_id: text("tenantId"),
            owner_id: text("ownerId"),
            expected: Expected::Exists,
            trace: self.trace,
            ..Append::new(name, id, self.request_id, vec![event])
        }
    }
}

/// Checks a reason.
pub(crate) fn check_reason(reason: &str) -> Result<(), String> {
    if (1..=MAX_REASON_CHARS).contains(&reason.chars().count()) {
        Ok(())
    } else {
        Err(format!("must have between 1 and {MAX_REASON_CHARS} characters"))
    }
}
