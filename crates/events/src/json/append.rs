//! An append, and its answer.

use std::borrow::Cow;

use bson::{Bson, Document};
use serde::de::Deserializer;
use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{AnyOfBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};
use uuid::Uuid;

use crate::json::reader::{Form, Request, checked, read};
use crate::json::tree::{integer, parse};
use crate::json::value::{IdText, Json, JsonObject, int64, of_type};
use crate::names::{AggregateId, AggregateName};
use crate::{Append, Appended, Expected, Flaw, NewEvent, Trace};

/// Events to append to an aggregate.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AppendRequest {
    /// Identifies the request: a repeated one gets the answer of the first.
    pub request_id: IdText,
    /// Identifies the command.
    pub command_id: Option<IdText>,
    /// The version before this append; any without it.
    pub expected_version: Option<ExpectedVersion>,
    /// The tenant: a header of the messages.
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
    /// The type of its message.
    pub name: EventName,
    /// The revision of its body's form.
    pub revision: Option<IdText>,
    /// What a reader makes of its body, such as the name of a class.
    pub body_type: Option<IdText>,
    /// The payload of its message.
    pub body: JsonObject,
}

/// The name of an event: 1 to 255 bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, ToSchema)]
#[schema(pattern = "^[\\s\\S]{1,255}$", example = "OrderPlaced")]
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

impl<'de> Deserialize<'de> for ExpectedVersion {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |Json(value)| {
            let expected = match &value {
                Bson::String(word) => match word.as_str() {
                    "any" => Some(Expected::Any),
                    "none" => Some(Expected::None),
                    "exists" => Some(Expected::Exists),
                    _ => None,
                },
                version => integer(version).filter(|version| *version >= 0).map(Expected::Exact),
            };
            let refused = "must be a version (0 or above), \"any\", \"none\" or \"exists\"";
            expected.map(Self).ok_or_else(|| refused.to_owned())
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

impl ToSchema for ExpectedVersion {
    fn name() -> Cow<'static, str> {
        "ExpectedVersion".into()
    }
}

fn at_least_one<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<EventRequest>, D::Error> {
    checked(from, |events: Vec<EventRequest>| match events.is_empty() {
        true => Err("is empty; append at least one event".to_owned()),
        false => Ok(events),
    })
}

impl Request for AppendRequest {}

impl AppendRequest {
    /// Reads a JSON text, in which these members replace those that it has.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it.
    pub fn parse(text: &str, members: Document) -> Result<Self, Vec<Flaw>> {
        let whole = |detail: String| vec![Flaw::new("the body", detail)];
        match parse(text) {
            Ok((Bson::Document(mut body), flaws)) => {
                body.extend(members);
                read(body, Form::Json, flaws, Self::conflicts)
            }
            Ok(_) => Err(whole("must be an object".to_owned())),
            Err(error) => Err(whole(format!("invalid JSON: {error}"))),
        }
    }

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

/// An append that a majority has.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppendAnswer {
    /// The id of the event stream document.
    pub id: String,
    /// The aggregate.
    pub aggregate_id: String,
    /// The aggregate's version now.
    #[schema(example = 1)]
    pub version: i64,
    /// The number of events.
    #[schema(example = 1)]
    pub size: i64,
    /// The time by MongoDB's clock, in milliseconds since 1970.
    pub create_time: i64,
    /// The message ids of the events, in their order.
    pub records: Vec<Uuid>,
    /// Whether an earlier request with this id has appended it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub replayed: bool,
}

impl From<Appended> for AppendAnswer {
    fn from(appended: Appended) -> Self {
        let Appended { id, aggregate_id, version, size, create_time, records, replayed } = appended;
        Self { id, aggregate_id, version, size, create_time, records, replayed }
    }
}
