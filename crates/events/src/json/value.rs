//! Types of values in bodies.

use bson::{Bson, DateTime, Document};
use postrider_outbox::json_view;
use serde::de::{DeserializeSeed, Deserializer};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AnyOfBuilder, Array, KnownFormat, ObjectBuilder, Ref, Schema, SchemaFormat, Type,
};
use utoipa::{PartialSchema, ToSchema};

use crate::document::as_json;
use crate::integer::integral;
use crate::json::reader::checked;
use crate::json::tree::AsWritten;
use crate::names::{AggregateId, AggregateName, PrepareName, SubscriptionName, check_id};

/// An id: 1 to 255 characters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
#[schema(pattern = "^[\\s\\S]{1,255}$", example = "a-1")]
pub struct IdText(String);

impl IdText {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<IdText> for String {
    fn from(id: IdText) -> Self {
        id.0
    }
}

impl<'de> Deserialize<'de> for IdText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| match check_id(&text) {
            Ok(()) => Ok(Self(text)),
            Err(rule) => Err(rule.to_string()),
        })
    }
}

/// Reads names and ids, with their rules as flaws.
macro_rules! deserialize_checked {
    ($($name:ident)*) => {$(
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let rule = |text: String| $name::new(&text).map(Some).map_err(|e| e.to_string());
                Ok(checked(from, rule)?.unwrap_or_else($name::placeholder))
            }
        }
    )*};
}

deserialize_checked! { AggregateName PrepareName SubscriptionName AggregateId }

/// A time: RFC 3339, or milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time(DateTime);

impl Time {
    /// The time as MongoDB stores it.
    pub fn date(self) -> DateTime {
        self.0
    }

    /// Milliseconds since 1970.
    pub fn millis(self) -> i64 {
        self.0.timestamp_millis()
    }
}

impl Default for Time {
    fn default() -> Self {
        Self(DateTime::from_millis(0))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |Json(value)| {
            let date = match &value {
                Bson::String(text) => DateTime::parse_rfc3339_str(text).ok(),
                number => integral(number).map(DateTime::from_millis),
            };
            let refused = "must be RFC 3339, or milliseconds since 1970 as an integer";
            date.map(Self).ok_or_else(|| refused.to_owned())
        })
    }
}

/// Any JSON, as BSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Json(pub Bson);

impl Default for Json {
    fn default() -> Self {
        Self(Bson::Null)
    }
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |Parsed(value)| Ok(Self(value)))
    }
}

impl Serialize for Json {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        json_view::serialize(&self.0, to)
    }
}

/// A value of the reader, unchanged.
struct Parsed(Bson);

impl<'de> Deserialize<'de> for Parsed {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        as_written(from).map(Self)
    }
}

/// Reads JSON from any deserializer, as it is written.
pub(crate) fn as_written<'de, D: Deserializer<'de>>(from: D) -> Result<Bson, D::Error> {
    AsWritten.deserialize(from)
}

/// A JSON object, kept as written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JsonObject(pub Document);

impl<'de> Deserialize<'de> for JsonObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |Parsed(value)| match value {
            Bson::Document(document) => Ok(Self(document)),
            _ => Err("must be an object".to_owned()),
        })
    }
}

impl Serialize for JsonObject {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        as_json(&self.0, to)
    }
}

/// The schema of an integer of 64 bits.
pub fn int64() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::Int64)))
        .minimum(Some(isize::MIN))
        .maximum(Some(isize::MAX))
}

/// The schema of a simple type.
pub(super) fn of_type(kind: Type) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(kind)
}

impl PartialSchema for Json {
    fn schema() -> RefOr<Schema> {
        AnyOfBuilder::new()
            .description(Some("Any JSON within the limits of docs/http.md: at most 100 levels, numbers of at most 34 digits, names without NUL."))
            .item(of_type(Type::Null))
            .item(of_type(Type::Boolean))
            .item(of_type(Type::String))
            .item(int64())
            .item(of_type(Type::Number))
            .item(Array::new(Ref::from_schema_name("Json")))
            .item(Ref::from_schema_name("JsonObject"))
            .into()
    }
}

impl PartialSchema for JsonObject {
    fn schema() -> RefOr<Schema> {
        let name: Schema = of_type(Type::String).pattern(Some("^[^\\u0000]*$")).into();
        of_type(Type::Object)
            .description(Some("A JSON object, kept as written: it never becomes extended JSON."))
            .property_names(Some(name))
            .additional_properties(Some(Ref::from_schema_name("Json")))
            .into()
    }
}

impl PartialSchema for Time {
    fn schema() -> RefOr<Schema> {
        let date = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        AnyOfBuilder::new()
            .description(Some("RFC 3339, or milliseconds since 1970."))
            .item(of_type(Type::String).format(Some(date)))
            .item(int64())
            .into()
    }
}

impl ToSchema for Json {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("JsonObject".to_owned(), JsonObject::schema()));
    }
}

impl ToSchema for JsonObject {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        schemas.push(("Json".to_owned(), Json::schema()));
    }
}

impl ToSchema for Time {}
