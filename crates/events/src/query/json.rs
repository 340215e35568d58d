//! The JSON form of conditions, projections and orders: that of the Wow framework.

use bson::{Bson, Document};
use jiff::civil::Time;
use serde::de::{Deserializer, Error as _};
use serde::ser::Serializer;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{self, below};
use super::condition::{Comparison, Condition, DeletionState, Test, TextTest};
use super::date::{DateForm, DatePattern, DateTest};
use super::field::FieldName;
use super::projection::Projection;
use super::sort::{Direction, Sort};
use super::zone::Zone;
use crate::Flaw;
use crate::error::join;
use crate::integer::integral;
use crate::json::{Form, Json, MAX_FLAWS, Request, as_written, checked, if_present, read};

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
    #[schema(required = false)]
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

/// A condition can be a whole body.
impl Request for ConditionJson {
    fn conflicts(&self) -> Vec<Flaw> {
        self.read("").err().unwrap_or_default()
    }
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
#[schema(as = Sort)]
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
    /// Reads the condition, and checks all but whether RAW is allowed. The flaws are named by their
    /// path, which begins with `path`.
    ///
    /// # Errors
    ///
    /// All flaws, or so many that no more are reported.
    pub fn read(&self, path: &str) -> Result<Condition, Vec<Flaw>> {
        let mut flaws = Vec::new();
        let condition = self.collect(path, &mut flaws);
        flaws.extend(check::flaws(&condition, path, true));
        if flaws.is_empty() { Ok(condition) } else { Err(flaws) }
    }

    fn collect(&self, path: &str, flaws: &mut Vec<Flaw>) -> Condition {
        let mut node = Node { json: self, path, flaws };
        node.refuse_unused();
        node.condition()
    }

    fn operator(&self) -> Operator {
        self.operator.unwrap_or_default()
    }

    fn options(&self) -> ConditionOptions {
        self.options.clone().unwrap_or_default()
    }
}

/// A condition that is being read.
struct Node<'n> {
    json: &'n ConditionJson,
    path: &'n str,
    flaws: &'n mut Vec<Flaw>,
}

impl Node<'_> {
    /// Adds a flaw, unless the member has one, or there are enough.
    fn flaw(&mut self, member: &str, detail: impl Into<String>) {
        let field = below(self.path, member);
        if self.flaws.len() <= MAX_FLAWS && self.flaws.last().is_none_or(|last| last.field != field)
        {
            self.flaws.push(Flaw::new(field, detail));
        }
    }

    fn condition(&mut self) -> Condition {
        match self.json.operator() {
            Operator::All => Condition::All,
            Operator::And => Condition::And(self.children()),
            Operator::Or => Condition::Or(self.children()),
            Operator::Nor => Condition::Nor(self.children()),
            Operator::Id => Condition::Id(self.text()),
            Operator::Ids => Condition::Ids(self.texts()),
            Operator::AggregateId => Condition::AggregateId(self.text()),
            Operator::AggregateIds => Condition::AggregateIds(self.texts()),
            Operator::TenantId => Condition::TenantId(self.text()),
            Operator::OwnerId => Condition::OwnerId(self.text()),
            Operator::SpaceId => Condition::SpaceId(self.text()),
            Operator::Deleted => Condition::Deleted(self.deletion()),
            Operator::Match => Condition::Match(self.text()),
            Operator::Raw => Condition::Raw(self.raw()),
            of_field => {
                let test = self.test(of_field);
                match FieldName::new(self.json.field.clone().unwrap_or_default()) {
                    Ok(field) => Condition::Field(field, test),
                    Err(error) => {
                        self.flaw("field", error.to_string());
                        Condition::All
                    }
                }
            }
        }
    }

    /// The test of an operator that tests a field.
    fn test(&mut self, operator: Operator) -> Test {
        let comparison = match operator {
            Operator::Eq => Some(Comparison::Eq),
            Operator::Ne => Some(Comparison::Ne),
            Operator::Gt => Some(Comparison::Gt),
            Operator::Lt => Some(Comparison::Lt),
            Operator::Gte => Some(Comparison::Gte),
            Operator::Lte => Some(Comparison::Lte),
            _ => None,
        };
        if let Some(comparison) = comparison {
            return Test::Compare(comparison, self.value().unwrap_or_else(empty));
        }
        let ignores_case = self.json.options().ignore_case.unwrap_or_default();
        match operator {
            Operator::Contains => Test::Text(TextTest::Contains, self.text(), ignores_case),
            Operator::StartsWith => Test::Text(TextTest::StartsWith, self.text(), ignores_case),
            Operator::EndsWith => Test::Text(TextTest::EndsWith, self.text(), ignores_case),
            Operator::In => Test::In(self.list()),
            Operator::NotIn => Test::NotIn(self.list()),
            Operator::AllIn => Test::AllIn(self.list()),
            Operator::Between => self.between(),
            Operator::ElemMatch => self.elem_match(),
            Operator::Null => Test::Null,
            Operator::NotNull => Test::NotNull,
            Operator::True => Test::True,
            Operator::False => Test::False,
            Operator::Exists => self.exists(),
            date => Test::Date(self.date(date), self.date_form()),
        }
    }

    fn children(&mut self) -> Vec<Condition> {
        let children = self.json.children.iter().flatten().enumerate();
        let children = children.map(|(at, child)| {
            child.collect(&below(self.path, &format!("children[{at}]")), self.flaws)
        });
        children.collect()
    }

    fn elem_match(&mut self) -> Test {
        let children = self.children();
        if children.len() != 1 {
            let detail = format!("has {} conditions; ELEM_MATCH takes one", children.len());
            self.flaw("children", detail);
        }
        Test::ElemMatch(Box::new(children.into_iter().next().unwrap_or_default()))
    }

    /// The value, from extended JSON if so desired.
    fn value(&mut self) -> Option<Bson> {
        let Json(value) = self.json.value.clone()?;
        if !self.json.options().extended.unwrap_or_default() {
            return Some(value);
        }
        let value = extended(value);
        Some(value.unwrap_or_else(|detail| {
            self.flaw("value", detail);
            Bson::Null
        }))
    }

    fn text(&mut self) -> String {
        match self.value() {
            None => String::new(),
            Some(Bson::String(text)) => text,
            Some(_) => {
                self.flaw("value", "must be a string");
                String::new()
            }
        }
    }

    fn list(&mut self) -> Vec<Bson> {
        match self.value() {
            None => Vec::new(),
            Some(Bson::Array(items)) => items,
            Some(_) => {
                self.flaw("value", "must be an array");
                Vec::new()
            }
        }
    }

    fn texts(&mut self) -> Vec<String> {
        let mut texts = Vec::new();
        for (at, item) in self.list().into_iter().enumerate() {
            match item {
                Bson::String(text) => texts.push(text),
                _ => self.flaw(&format!("value[{at}]"), "must be a string"),
            }
        }
        texts
    }

    fn between(&mut self) -> Test {
        match <[Bson; 2]>::try_from(self.list()) {
            Ok([first, last]) => Test::Between(first, last),
            Err(list) => {
                let detail =
                    format!("has {} values; BETWEEN takes the first and the last", list.len());
                self.flaw("value", detail);
                Test::Null
            }
        }
    }

    fn exists(&mut self) -> Test {
        match self.value() {
            None => Test::Exists(true),
            Some(Bson::Boolean(exists)) => Test::Exists(exists),
            Some(_) => {
                self.flaw("value", "must be true or false");
                Test::Exists(true)
            }
        }
    }

    fn deletion(&mut self) -> DeletionState {
        let value = self.value().unwrap_or_else(empty);
        let state = match &value {
            Bson::Boolean(true) => Some(DeletionState::Deleted),
            Bson::Boolean(false) => Some(DeletionState::Active),
            Bson::String(word) => match word.to_ascii_uppercase().as_str() {
                "ACTIVE" => Some(DeletionState::Active),
                "DELETED" => Some(DeletionState::Deleted),
                "ALL" => Some(DeletionState::All),
                _ => None,
            },
            _ => None,
        };
        state.unwrap_or_else(|| {
            self.flaw("value", "must be \"ACTIVE\", \"DELETED\", \"ALL\", true or false");
            DeletionState::All
        })
    }

    fn raw(&mut self) -> Document {
        let value = match self.json.value.clone() {
            Some(Json(Bson::String(text))) => serde_json::from_str(&text)
                .map(plain)
                .map_err(|error| format!("is not JSON: {error}")),
            Some(Json(value)) => Ok(value),
            None => Ok(Bson::Null),
        };
        match value.and_then(extended) {
            Ok(Bson::Document(filter)) => filter,
            Ok(_) => {
                self.flaw("value", "must be a filter of MongoDB: an object, or its text");
                Document::new()
            }
            Err(detail) => {
                self.flaw("value", detail);
                Document::new()
            }
        }
    }

    fn date(&mut self, operator: Operator) -> DateTest {
        match operator {
            Operator::Tomorrow => DateTest::Tomorrow,
            Operator::ThisWeek => DateTest::ThisWeek,
            Operator::NextWeek => DateTest::NextWeek,
            Operator::LastWeek => DateTest::LastWeek,
            Operator::ThisMonth => DateTest::ThisMonth,
            Operator::LastMonth => DateTest::LastMonth,
            Operator::BeforeToday => DateTest::BeforeToday(self.time_of_day()),
            Operator::RecentDays => DateTest::RecentDays(self.days()),
            Operator::EarlierDays => DateTest::EarlierDays(self.days()),
            _ => DateTest::Today,
        }
    }

    fn days(&mut self) -> u32 {
        let days =
            self.value().as_ref().and_then(integral).and_then(|days| u32::try_from(days).ok());
        days.unwrap_or_else(|| {
            self.flaw("value", "must be a number of days, today included: 1 or above");
            1
        })
    }

    fn time_of_day(&mut self) -> Time {
        let time = match self.value() {
            Some(Bson::String(text)) => parse_time(&text),
            Some(number) => integral(&number).and_then(time_of_seconds),
            None => None,
        };
        time.unwrap_or_else(|| {
            self.flaw(
                "value",
                "must be a time of the day: \"18:00\", \"18:00:30\", or its seconds",
            );
            Time::midnight()
        })
    }

    fn date_form(&mut self) -> DateForm {
        let options = self.json.options();
        let mut form = DateForm::default();
        match options.zone_id.map(Zone::new).transpose() {
            Ok(zone) => form.zone = zone.unwrap_or_default(),
            Err(error) => self.flaw("options.zoneId", error.to_string()),
        }
        match options.date_pattern.map(DatePattern::new).transpose() {
            Ok(pattern) => form.pattern = pattern,
            Err(error) => self.flaw("options.datePattern", error.to_string()),
        }
        form
    }

    /// Members that the operator does not read: a client that sets them means something else.
    fn refuse_unused(&mut self) {
        let ConditionJson { field, value, children, .. } = self.json;
        // An operator that is not known was replaced by ALL, and is a flaw already.
        let Some(uses) = self.json.operator.map_or(Some(Uses::NONE), Uses::of) else { return };
        let is_empty = |value: &Json| match &value.0 {
            Bson::String(text) => text.is_empty(),
            Bson::Array(items) => items.is_empty(),
            Bson::Null => true,
            _ => false,
        };
        for (member, is_set, is_used) in [
            ("field", field.as_ref().is_some_and(|field| !field.is_empty()), uses.field),
            ("value", value.as_ref().is_some_and(|value| !is_empty(value)), uses.value),
            (
                "children",
                children.as_ref().is_some_and(|children| !children.is_empty()),
                uses.children,
            ),
        ] {
            if is_set && !is_used {
                self.flaw(member, "means nothing with this operator");
            }
        }
    }
}

/// Which members an operator reads.
struct Uses {
    field: bool,
    value: bool,
    children: bool,
}

impl Uses {
    const NONE: Self = Self { field: false, value: false, children: false };

    /// The members of an operator; `None` where they do not matter.
    fn of(operator: Operator) -> Option<Self> {
        use Operator::{
            AggregateId, AggregateIds, All, And, Deleted, ElemMatch, False, Id, Ids, LastMonth,
            LastWeek, Match, NextWeek, Nor, NotNull, Null, Or, OwnerId, Raw, SpaceId, TenantId,
            ThisMonth, ThisWeek, Today, Tomorrow, True,
        };
        let (field, value, children) = match operator {
            All => return None,
            And | Or | Nor => (false, false, true),
            Id | Ids | AggregateId | AggregateIds | TenantId | OwnerId | SpaceId | Deleted
            | Raw => (false, true, false),
            // Wow's clients name a field, which a text index does not need.
            Match => (true, true, false),
            ElemMatch => (true, false, true),
            Null | NotNull | True | False | Today | Tomorrow | ThisWeek | NextWeek | LastWeek
            | ThisMonth | LastMonth => (true, false, false),
            _ => (true, true, false),
        };
        Some(Self { field, value, children })
    }
}

fn empty() -> Bson {
    Bson::String(String::new())
}

/// Reads `HH:mm`, `HH:mm:ss` or `HH:mm:ss.fraction`, as Java's `LocalTime.parse`.
fn parse_time(text: &str) -> Option<Time> {
    let has_form = text.bytes().enumerate().all(|(at, byte)| match at {
        2 | 5 => byte == b':',
        8 => byte == b'.',
        _ => byte.is_ascii_digit(),
    });
    let is_whole = matches!(text.len(), 5 | 8 | 10..=18);
    let time: Time = (has_form && is_whole).then(|| text.parse().ok())??;
    // Java has no leap second, which jiff reads as the one before.
    (text.get(6..8) != Some("60")).then_some(time)
}

fn time_of_seconds(seconds: i64) -> Option<Time> {
    let part = |unit: i64| i8::try_from(unit).ok();
    let (hours, minutes) = (seconds.div_euclid(3_600), seconds.rem_euclid(3_600) / 60);
    Time::new(part(hours)?, part(minutes)?, part(seconds.rem_euclid(60))?, 0).ok()
}

/// A value of plain JSON read as extended JSON.
fn extended(value: Bson) -> Result<Bson, String> {
    let json = value.into_relaxed_extjson();
    Bson::try_from(json).map_err(|error| format!("is not extended JSON: {error}"))
}

/// JSON as it is written: `{"$oid": …}` is an object.
pub(super) fn plain(json: serde_json::Value) -> Bson {
    match json {
        serde_json::Value::Object(members) => {
            Bson::Document(members.into_iter().map(|(name, value)| (name, plain(value))).collect())
        }
        serde_json::Value::Array(items) => Bson::Array(items.into_iter().map(plain).collect()),
        simple => Bson::try_from(simple).unwrap_or(Bson::Null),
    }
}

/// Whether JSON has all of a value.
fn is_plain(value: &Bson) -> bool {
    match value {
        Bson::Null | Bson::Boolean(_) | Bson::Int32(_) | Bson::Int64(_) | Bson::String(_) => true,
        Bson::Double(number) => number.is_finite(),
        Bson::Array(items) => items.iter().all(is_plain),
        Bson::Document(document) => document.values().all(is_plain),
        _ => false,
    }
}

/// A value as JSON, and whether that is extended JSON. (The relaxed form has no years above 9999.)
fn as_json(value: Bson) -> (Bson, bool) {
    if is_plain(&value) { (value, false) } else { (plain(value.into_canonical_extjson()), true) }
}

impl From<&Condition> for ConditionJson {
    fn from(condition: &Condition) -> Self {
        let with = |operator, value: Bson| Self::new(operator, value);
        let texts = |texts: &[String]| Bson::from(texts.to_vec());
        match condition {
            Condition::All => with(Operator::All, empty()),
            Condition::And(children) => Self::of_children(Operator::And, children),
            Condition::Or(children) => Self::of_children(Operator::Or, children),
            Condition::Nor(children) => Self::of_children(Operator::Nor, children),
            Condition::Id(id) => with(Operator::Id, id.into()),
            Condition::Ids(ids) => with(Operator::Ids, texts(ids)),
            Condition::AggregateId(id) => with(Operator::AggregateId, id.into()),
            Condition::AggregateIds(ids) => with(Operator::AggregateIds, texts(ids)),
            Condition::TenantId(id) => with(Operator::TenantId, id.into()),
            Condition::OwnerId(id) => with(Operator::OwnerId, id.into()),
            Condition::SpaceId(id) => with(Operator::SpaceId, id.into()),
            Condition::Deleted(state) => {
                let word = match state {
                    DeletionState::Active => "ACTIVE",
                    DeletionState::Deleted => "DELETED",
                    DeletionState::All => "ALL",
                };
                with(Operator::Deleted, word.into())
            }
            Condition::Match(text) => with(Operator::Match, text.into()),
            Condition::Raw(filter) => {
                let (value, _) = as_json(Bson::Document(filter.clone()));
                Self { value: Some(Json(value)), ..with(Operator::Raw, empty()) }
            }
            Condition::Field(field, test) => {
                Self { field: Some(field.as_str().to_owned()), ..Self::from(test) }
            }
        }
    }
}

impl From<&Test> for ConditionJson {
    fn from(test: &Test) -> Self {
        let list = |values: &[Bson]| Bson::Array(values.to_vec());
        match test {
            Test::Compare(comparison, value) => {
                let operator = match comparison {
                    Comparison::Eq => Operator::Eq,
                    Comparison::Ne => Operator::Ne,
                    Comparison::Gt => Operator::Gt,
                    Comparison::Lt => Operator::Lt,
                    Comparison::Gte => Operator::Gte,
                    Comparison::Lte => Operator::Lte,
                };
                Self::new(operator, value.clone())
            }
            Test::Between(first, last) => {
                Self::new(Operator::Between, list(&[first.clone(), last.clone()]))
            }
            Test::In(values) => Self::new(Operator::In, list(values)),
            Test::NotIn(values) => Self::new(Operator::NotIn, list(values)),
            Test::AllIn(values) => Self::new(Operator::AllIn, list(values)),
            Test::Text(test, text, ignores_case) => {
                let operator = match test {
                    TextTest::Contains => Operator::Contains,
                    TextTest::StartsWith => Operator::StartsWith,
                    TextTest::EndsWith => Operator::EndsWith,
                };
                let ignore_case = ignores_case.then_some(true);
                let options = ConditionOptions { ignore_case, ..ConditionOptions::default() };
                Self::new(operator, text.into()).with_options(options)
            }
            Test::ElemMatch(child) => {
                Self::of_children(Operator::ElemMatch, std::slice::from_ref(child))
            }
            Test::Null => Self::new(Operator::Null, empty()),
            Test::NotNull => Self::new(Operator::NotNull, empty()),
            Test::True => Self::new(Operator::True, empty()),
            Test::False => Self::new(Operator::False, empty()),
            Test::Exists(exists) => Self::new(Operator::Exists, (*exists).into()),
            Test::Date(test, form) => Self::of_date(*test, form),
        }
    }
}

impl ConditionJson {
    /// A condition with this value, which is left out if it is that of an absent one.
    fn new(operator: Operator, value: Bson) -> Self {
        use Operator::{AggregateIds, AllIn, Ids, In, NotIn};
        let takes_list = matches!(operator, Ids | AggregateIds | In | NotIn | AllIn);
        let is_empty = match &value {
            Bson::String(text) => text.is_empty(),
            Bson::Array(items) => takes_list && items.is_empty(),
            _ => false,
        };
        let (value, is_extended) = as_json(value);
        let extended = is_extended.then_some(true);
        let options = ConditionOptions { extended, ..ConditionOptions::default() };
        let value = (!is_empty).then_some(Json(value));
        Self { operator: Some(operator), value, ..Self::default() }.with_options(options)
    }

    fn of_children(operator: Operator, children: &[Condition]) -> Self {
        let children = children.iter().map(Self::from).collect();
        Self { children: Some(children), ..Self::new(operator, empty()) }
    }

    fn of_date(test: DateTest, form: &DateForm) -> Self {
        let (operator, value) = match test {
            DateTest::Today => (Operator::Today, empty()),
            DateTest::BeforeToday(time) => (Operator::BeforeToday, time.to_string().into()),
            DateTest::Tomorrow => (Operator::Tomorrow, empty()),
            DateTest::ThisWeek => (Operator::ThisWeek, empty()),
            DateTest::NextWeek => (Operator::NextWeek, empty()),
            DateTest::LastWeek => (Operator::LastWeek, empty()),
            DateTest::ThisMonth => (Operator::ThisMonth, empty()),
            DateTest::LastMonth => (Operator::LastMonth, empty()),
            DateTest::RecentDays(days) => (Operator::RecentDays, i64::from(days).into()),
            DateTest::EarlierDays(days) => (Operator::EarlierDays, i64::from(days).into()),
        };
        let zone_id = (form.zone != Zone::default()).then(|| form.zone.name().to_owned());
        let date_pattern = form.pattern.as_ref().map(|pattern| pattern.as_str().to_owned());
        let options = ConditionOptions { zone_id, date_pattern, ..ConditionOptions::default() };
        Self::new(operator, value).with_options(options)
    }

    fn with_options(self, options: ConditionOptions) -> Self {
        let options = (options != ConditionOptions::default()).then_some(options);
        Self { options: options.or(self.options), ..self }
    }
}

impl Serialize for Condition {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        ConditionJson::from(self).serialize(to)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let Bson::Document(members) = as_written(from)? else {
            return Err(D::Error::custom("a condition is an object"));
        };
        let json = read::<ConditionJson>(members, Form::Json, Vec::new());
        json.and_then(|json| json.read("condition")).map_err(|flaws| D::Error::custom(join(&flaws)))
    }
}

impl ProjectionJson {
    /// Reads the projection.
    ///
    /// # Errors
    ///
    /// A flaw if both lists have fields.
    pub fn read(self, path: &str) -> Result<Projection, Flaw> {
        match (self.include.unwrap_or_default(), self.exclude.unwrap_or_default()) {
            (include, exclude) if !include.is_empty() && !exclude.is_empty() => {
                Err(Flaw::new(path, "has include and exclude; keep one of the two"))
            }
            (include, exclude) if include.is_empty() && exclude.is_empty() => Ok(Projection::All),
            (include, exclude) if exclude.is_empty() => Ok(Projection::Include(include)),
            (_, exclude) => Ok(Projection::Exclude(exclude)),
        }
    }
}

impl From<SortJson> for Sort {
    fn from(SortJson { field, direction }: SortJson) -> Self {
        Self { field, direction: direction.unwrap_or(Direction::Asc) }
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
