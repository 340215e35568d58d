//! Parameters of paths and queries that several calls share.

use std::time::Duration;

use bson::DateTime;
use postrider_settings::units::HumanDuration;
use serde::Deserialize;
use serde::de::Deserializer;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AnyOfBuilder, KnownFormat, ObjectBuilder, Schema, SchemaFormat, Type,
};
use utoipa::{IntoParams, PartialSchema, ToSchema};

use crate::events::json::{checked, int64};
use crate::names::{AggregateId, AggregateName};
use crate::outbox::undecoded::RawId;

/// No parameters.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct NoParameters {}

/// A kind of aggregate, in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct KindPath {
    /// The kind of aggregate.
    #[param(inline)]
    pub name: AggregateName,
}

/// An aggregate, in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct AggregatePath {
    /// The kind of aggregate.
    #[param(inline)]
    pub name: AggregateName,
    /// The id of the aggregate.
    #[param(inline)]
    pub id: AggregateId,
}

/// An aggregate and its version, in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct VersionPath {
    /// The kind of aggregate.
    #[param(inline)]
    pub name: AggregateName,
    /// The id of the aggregate.
    #[param(inline)]
    pub id: AggregateId,
    /// The version of the aggregate after the append.
    #[param(value_type = i64, minimum = 0)]
    pub version: Bounded<0, { i64::MAX }>,
}

/// A record, in a path.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Path)]
pub struct RecordPath {
    /// The id: a UUID, ObjectId, integer or string. The prefixes `uuid:`, `oid:`, `int:`, `str:` and `raw:` select the kind.
    #[param(
        value_type = String,
        pattern = "^(uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$|oid:[0-9a-f]{24}$|int:-?[0-9]{1,18}$|(?!uuid:|oid:|int:|\\.{1,2}$)[^\\u0000]+$)"
    )]
    pub id: RecordIdText,
}

/// A tenant, in a query.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct TenantQuery {
    /// Only this tenant.
    pub tenant_id: Option<String>,
}

/// An integer from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Bounded<const MIN: i64, const MAX: i64>(pub i64);

impl<'de, const MIN: i64, const MAX: i64> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |number: i64| {
            if (MIN..=MAX).contains(&number) {
                Ok(Self(number))
            } else {
                Err(format!("must be an integer from {MIN} to {MAX}"))
            }
        })
    }
}

/// The most items of one answer.
pub type Limit<const MAX: i64> = Bounded<1, MAX>;

impl<const MAX: i64> From<Limit<MAX>> for u32 {
    fn from(limit: Limit<MAX>) -> Self {
        // MAX is far below.
        Self::try_from(limit.0).unwrap_or(Self::MAX)
    }
}

/// A time in a query: milliseconds since 1970, or RFC 3339.
#[derive(Clone, Copy, Debug, Default)]
pub struct TimeText(pub i64);

impl<'de> Deserialize<'de> for TimeText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| {
            let date = || DateTime::parse_rfc3339_str(&text).ok().map(DateTime::timestamp_millis);
            let refused = "must be RFC 3339, or milliseconds since 1970";
            text.parse().ok().or_else(date).map(Self).ok_or_else(|| refused.to_owned())
        })
    }
}

impl PartialSchema for TimeText {
    fn schema() -> RefOr<Schema> {
        let date = SchemaFormat::KnownFormat(KnownFormat::DateTime);
        let text = ObjectBuilder::new().schema_type(Type::String).format(Some(date));
        let millis = int64().minimum(Some(0_isize));
        AnyOfBuilder::new().item(text).item(millis).into()
    }
}

/// A duration with units, such as `1h30m`.
#[derive(Clone, Copy, Debug, Default, ToSchema)]
#[schema(value_type = String, pattern = "^([0-9]{1,4}(ms|s|m|h|d)){1,3}$", example = "1h30m")]
pub struct DurationText(pub Duration);

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| match HumanDuration::parse(&text) {
            Ok(duration) => Ok(Self(duration)),
            Err(reason) => Err(format!("must be a duration with units, such as 30s: {reason}")),
        })
    }
}

/// How long a page may wait: a duration of at most 60 s.
#[derive(Clone, Copy, Debug, Default, ToSchema)]
#[schema(value_type = String, pattern = "^([0-9]{1,4}(ms|s|m)){1,3}$", example = "30s")]
pub struct Wait(pub Duration);

impl Wait {
    const MAX: Duration = Duration::from_secs(60);
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| match HumanDuration::parse(&text) {
            Ok(duration) if duration <= Self::MAX => Ok(Self(duration)),
            _ => Err("must be a duration of at most 60s, such as 30s".to_owned()),
        })
    }
}

/// The id of a record as text: a UUID, ObjectId, integer or string. The prefixes `uuid:`, `oid:`, `int:` and
/// `str:` select the kind.
#[derive(Clone, Debug, Default, ToSchema)]
#[schema(
    pattern = "^(uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$|oid:[0-9a-f]{24}$|int:-?[0-9]{1,18}$|(?!uuid:|oid:|int:)[\\s\\S])"
)]
pub struct RecordIdText(pub String);

impl RecordIdText {
    /// The ids that the text can mean: at least one.
    pub fn ids(&self) -> Vec<RawId> {
        RawId::parse_candidates(&self.0)
    }
}

impl<'de> Deserialize<'de> for RecordIdText {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        checked(from, |text: String| {
            if RawId::parse_candidates(&text).is_empty() || text.is_empty() {
                Err(INVALID_ID.to_owned())
            } else {
                Ok(Self(text))
            }
        })
    }
}

/// The flaw of an invalid id.
pub const INVALID_ID: &str = "must be a UUID, ObjectId, integer or string; uuid:, oid:, int:, str:, raw: force one; raw: names no \
     array, regular expression, undefined, code, nor a document with a name that begins with $";
