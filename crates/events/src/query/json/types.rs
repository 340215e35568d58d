//! The members of the JSON form.

use serde::de::Deserializer;
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::json::{Json, checked, if_present};
use crate::query::field::FieldName;
use crate::query::sort::Direction;

/// The operator of a condition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "docs/queries.md describes each of them")]
pub enum Operator {
    #[default]
    All,
    And,
    Or,
    Nor,
    Id,
    Ids,
    AggregateId,
    AggregateIds,
    TenantId,
    OwnerId,
    SpaceId,
    Deleted,
    Eq,
    Ne,
    Gt,
    Lt,
    Gte,
    Lte,
    Contains,
    In,
    NotIn,
    Between,
    AllIn,
    StartsWith,
    EndsWith,
    ElemMatch,
    Null,
    NotNull,
    True,
    False,
    Exists,
    Today,
    BeforeToday,
    Tomorrow,
    ThisWeek,
    NextWeek,
    LastWeek,
    ThisMonth,
    LastMonth,
    RecentDays,
    EarlierDays,
    Match,
    Raw,
}

/// A condition: an operator with what it requires. Empty members can be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(no_recursion, as = Condition)]
pub struct ConditionJson {
    /// The field, with dots between the levels.
    #[serde(skip_serializing_if = "is_empty")]
    #[schema(example = "state.status")]
    pub field: Option<String>,
    /// The operator; ALL without it.
    #[serde(default)]
    pub operator: Option<Operator>,
    /// The value; the empty text without it, or the empty list.
    #[serde(default, deserialize_with = "if_present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Json, required = false)] // `null` is one of its values
    pub value: Option<Json>,
    /// The conditions that AND, OR, NOR and ELEM_MATCH combine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub children: Option<Vec<ConditionJson>>,
    /// Options of the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<ConditionOptions>,
    /// The operator of a newer protocol of Wow, which is refused.
    #[serde(default, skip_serializing)]
    #[schema(ignore)]
    pub op: Option<NewerMember>,
}

/// A member of the filters that Wow 8.11 and its newest clients have in place of conditions. It is a flaw that
/// says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NewerMember;

impl<'de> Deserialize<'de> for NewerMember {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let refused = "belongs to the filters of Wow 8.11; this server takes the `condition` of Wow 8.10, \
                       which has an `operator`";
        checked(from, |_: Json| Err(refused.to_owned()))
    }
}

/// The options of a condition.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConditionOptions {
    /// Whether CONTAINS, STARTS_WITH and ENDS_WITH ignore upper and lower case.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_case: Option<bool>,
    /// The time zone of periods; UTC without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "Europe/Berlin")]
    pub zone_id: Option<String>,
    /// The pattern of fields that hold times as text; without it they hold milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "yyyy-MM-dd HH:mm:ss")]
    pub date_pattern: Option<String>,
    /// Whether the value is extended JSON: dates, ids and decimal numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extended: Option<bool>,
}

/// The fields of the answers: those to include, or those to exclude.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Projection)]
pub struct ProjectionJson {
    /// These, and the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub include: Option<Vec<FieldName>>,
    /// All but these.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub exclude: Option<Vec<FieldName>>,
}

/// A field to sort by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = SortKey)]
pub struct SortJson {
    /// The field.
    #[schema(value_type = String, example = "state.total")]
    pub field: FieldName,
    /// Its direction; ASC without it.
    #[serde(default)]
    pub direction: Option<Direction>,
}

fn is_empty(text: &Option<String>) -> bool {
    text.as_ref().is_none_or(String::is_empty)
}

impl ConditionJson {
    pub(super) fn operator(&self) -> Operator {
        self.operator.unwrap_or_default()
    }

    pub(super) fn options(&self) -> ConditionOptions {
        self.options.clone().unwrap_or_default()
    }
}

impl<'de> Deserialize<'de> for FieldName {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let rule = |text: String| Self::new(text).map(Some).map_err(|error| error.to_string());
        Ok(checked(from, rule)?.unwrap_or_else(Self::placeholder))
    }
}

impl Serialize for FieldName {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(self.as_str())
    }
}
