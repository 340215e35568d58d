//! The body of an append.

use bson::{Bson, Document};
use serde::Deserialize;
use serde::de::Deserializer;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AnyOfBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::integer::integral;
use crate::json::reader::{Request, checked};
use crate::json::value::{IdText, Json, JsonObject, int64, of_type};
use crate::names::{AggregateId, AggregateName};
use crate::{Append, Expected, NewEvent, Trace};

/// Events to append to an aggregate.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppendRequest {
    /// The id of the request. A repeated request gets the answer of the first. Required, unless the header
    /// Idempotency-Key has it.
    #[schema(required = false)]
    pub request_id: IdText,
    /// The id of the command.
    pub command_id: Option<IdText>,
    /// The version that the aggregate must have before this append. By default any.
    pub expected_version: Option<ExpectedVersion>,
    /// The tenant, which is sent as a header of the messages.
    pub tenant_id: Option<IdText>,
    /// The owner.
    pub owner_id: Option<IdText>,
    /// What the application stores with the events.
    pub header: Option<JsonObject>,
    /// The events, in their order.
    #[serde(deserialize_with = "at_least_one")]
    #[schema(min_items = 1)]
    pub events: Vec<EventRequest>,
}

/// One event of an append.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EventRequest {
    /// The name, which is the type of the message.
    pub name: EventName,
    /// The revision of the form of the body.
    pub revision: Option<IdText>,
    /// The type that a reader decodes the body to, such as the name of a class.
    pub body_type: Option<IdText>,
    /// The body, which is the payload of the message.
    pub body: JsonObject,
}

/// The name of an event: 1 to 255 bytes, without the reserved beginning `postrider.`.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(pattern = "^(?!postrider\\.)[\\s\\S]{1,255}$", example = "OrderPlaced")]
pub struct EventName(String);

impl<'de> Deserialize<'de> for EventName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |name: String| {
            let flaw = NewEvent::new(name.as_str(), Document::new()).flaws().pop();
            flaw.map_or(Ok(Self(name)), |flaw| Err(flaw.detail))
        })
    }
}

/// The version that an aggregate must have: 0 or above, `any`, `none` or `exists`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpectedVersion(Expected);

impl ExpectedVersion {
    /// Parses a value of a body; `None` if it is invalid.
    pub fn parse(value: &Bson) -> Option<Self> {
        let expected = match value {
            Bson::String(word) => match word.as_str() {
                "any" => Expected::Any,
                "none" => Expected::None,
                "exists" => Expected::Exists,
                _ => return None,
            },
            version => Expected::Exact(integral(version).filter(|version| *version >= 0)?),
        };
        Some(Self(expected))
    }

    /// The expected version.
    pub fn expected(self) -> Expected {
        self.0
    }
}

impl From<Expected> for ExpectedVersion {
    fn from(expected: Expected) -> Self {
        Self(expected)
    }
}

impl From<ExpectedVersion> for Bson {
    /// The value of a body.
    fn from(version: ExpectedVersion) -> Self {
        match version.0 {
            Expected::Any => "any".into(),
            Expected::None => "none".into(),
            Expected::Exists => "exists".into(),
            Expected::Exact(version) => version.into(),
        }
    }
}

impl<'de> Deserialize<'de> for ExpectedVersion {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |Json(value)| {
            let refused = "must be a version (0 or above), \"any\", \"none\" or \"exists\"";
            Self::parse(&value).ok_or_else(|| refused.to_owned())
        })
    }
}

impl PartialSchema for ExpectedVersion {
    fn schema() -> RefOr<Schema> {
        AnyOfBuilder::new()
            .description(Some("The version before the append; 0 and none: it does not exist."))
            .item(int64().minimum(Some(0_isize)))
            .item(of_type(Type::String).enum_values(Some(["any", "none", "exists"])))
            .into()
    }
}

impl ToSchema for ExpectedVersion {}

fn at_least_one<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<EventRequest>, D::Error> {
    checked(from, |events: Vec<EventRequest>| {
        if events.is_empty() {
            Err("must contain at least one event".to_owned())
        } else {
            Ok(events)
        }
    })
}

impl Request for AppendRequest {}

impl AppendRequest {
    /// The append to this aggregate.
    pub fn into_append(self, name: AggregateName, id: AggregateId, trace: Trace) -> Append {
        let events = self.events.into_iter().map(|event| NewEvent {
            name: event.name.0,
            revision: event.revision.map(String::from),
            body_type: event.body_type.map(String::from),
            body: event.body.0,
        });
        Append {
            command_id: self.command_id.map(String::from),
            expected: self.expected_version.unwrap_or_default().0,
            tenant_id: self.tenant_id.map(String::from),
            owner_id: self.owner_id.map(String::from),
            header: self.header.unwrap_or_default().0,
            trace,
            ..Append::new(name, id, self.request_id, events.collect())
        }
    }
}
