//! Appends and their answers.

use std::fmt;

use bson::Document;
use serde::Serialize;
use tracing::{Span, debug_span};
use uuid::Uuid;

use crate::names::{AggregateId, AggregateKey, AggregateName};

/// One append: the events of one command in one aggregate.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    /// The kind of aggregate.
    pub name: AggregateName,
    /// The aggregate: also the key of its records.
    pub id: AggregateId,
    /// The id of the request. A repeated request gets the answer of the first.
    pub request_id: String,
    /// The id of the command.
    pub command_id: Option<String>,
    /// The version before this append.
    pub expected: Expected,
    /// The tenant, which is sent as a header of the messages.
    pub tenant_id: Option<String>,
    /// The owner.
    pub owner_id: Option<String>,
    /// What the application stores with the events, such as `upstream_id`.
    pub header: Document,
    /// `traceparent` and `tracestate`, for the messages.
    pub trace: Trace,
    /// At least one.
    pub events: Vec<NewEvent>,
}

/// The headers of a trace (W3C Trace Context), as received.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// `traceparent`.
    pub parent: Option<String>,
    /// `tracestate`.
    pub state: Option<String>,
}

/// One event of an append.
#[derive(Clone, Debug, PartialEq)]
pub struct NewEvent {
    /// The name, which is the type of the message, such as `OrderCreated`.
    pub name: String,
    /// The revision of the form of the body.
    pub revision: Option<String>,
    /// The type that a reader decodes the body to, such as the name of a class.
    pub body_type: Option<String>,
    /// The body, which is the payload of the message.
    pub body: Document,
}

/// The version that the aggregate must have before an append.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expected {
    /// Any version.
    #[default]
    Any,
    /// None: it is the aggregate's first append.
    None,
    /// The aggregate has at least one append.
    Exists,
    /// This version; 0 is the same as [`Expected::None`].
    Exact(i64),
}

/// An append that a majority has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "json", derive(utoipa::ToSchema), schema(as = AppendAnswer))]
#[serde(rename_all = "camelCase")]
pub struct Appended {
    /// The id of the event stream document.
    pub id: String,
    /// The id of the aggregate.
    pub aggregate_id: String,
    /// The version of the aggregate after the append.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub version: i64,
    /// The number of events.
    #[cfg_attr(feature = "json", schema(example = 1))]
    pub size: i64,
    /// The time by MongoDB's clock, in milliseconds since 1970.
    pub create_time: i64,
    /// The message ids of the events, in their order.
    pub records: Vec<Uuid>,
    /// Whether an earlier request with this id has appended it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[cfg_attr(feature = "json", schema(required = false))]
    pub replayed: bool,
}

impl Append {
    /// An append to this aggregate at any version, without optional fields.
    pub fn new(
        name: AggregateName,
        id: AggregateId,
        request_id: impl Into<String>,
        events: Vec<NewEvent>,
    ) -> Self {
        Self {
            name,
            id,
            request_id: request_id.into(),
            command_id: None,
            expected: Expected::Any,
            tenant_id: None,
            owner_id: None,
            header: Document::new(),
            trace: Trace::default(),
            events,
        }
    }

    /// The same append, if the aggregate has the expected version.
    pub fn expecting(self, expected: Expected) -> Self {
        Self { expected, ..self }
    }

    pub(crate) fn aggregate(&self) -> AggregateKey {
        (self.name.clone(), self.id.clone())
    }

    /// The span of this append in the log.
    pub(crate) fn span(&self) -> Span {
        debug_span!("append", stream = %self.name, aggregate = %self.id, request = self.request_id)
    }

    /// The same append for a tenant.
    pub fn tenant(self, tenant: impl Into<String>) -> Self {
        Self { tenant_id: Some(tenant.into()), ..self }
    }
}

impl NewEvent {
    /// An event without revision and body type.
    pub fn new(name: impl Into<String>, body: Document) -> Self {
        Self { name: name.into(), revision: None, body_type: None, body }
    }
}

impl Expected {
    /// Whether an aggregate at `version` (0: it does not exist) has the expected version.
    pub fn fits(self, version: i64) -> bool {
        match self {
            Self::Any => true,
            Self::None => version == 0,
            Self::Exists => version > 0,
            Self::Exact(expected) => version == expected,
        }
    }

    /// Whether the append must be the aggregate's first one.
    pub fn is_none(self) -> bool {
        matches!(self, Self::None | Self::Exact(0))
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any version"),
            Self::None | Self::Exact(0) => f.write_str("no aggregate"),
            Self::Exists => f.write_str("an aggregate that exists"),
            Self::Exact(version) => write!(f, "version {version}"),
        }
    }
}
