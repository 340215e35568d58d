//! Reads conditions, projections and orders, with all flaws.

use bson::{Bson, Document};
use jiff::civil::Time;
use postrider_outbox::nesting::is_within;

use super::types::{ConditionJson, Operator, ProjectionJson, SortJson};
use super::value::{empty, extended};
use crate::Flaw;
use crate::integer::integral;
use crate::json::{Json, MAX_FLAWS, Request, parse};
use crate::query::MAX_LEVELS;
use crate::query::check::{self, below};
use crate::query::condition::{Comparison, Condition, DeletionState, Test, TextTest};
use crate::query::date::{DateForm, DatePattern, DateTest};
use crate::query::field::FieldName;
use crate::query::projection::Projection;
use crate::query::sort::{Direction, SortKey};
use crate::query::zone::Zone;

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
}

/// A condition can be a whole body.
impl Request for ConditionJson {
    fn conflicts(&self) -> Vec<Flaw> {
        self.read("").err().unwrap_or_default()
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
            Some(Json(Bson::String(text))) => match parse(&text) {
                Ok((json, flaws)) => match flaws.into_iter().next() {
                    None if is_within(&json, MAX_RAW_LEVELS) => Ok(json),
                    None => Err(format!("is nested deeper than {MAX_RAW_LEVELS} levels")),
                    Some(flaw) => Err(flaw.to_string()),
                },
                Err(error) => Err(format!("is not JSON: {error}")),
            },
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
                self.flaw(member, "is not used by this operator; remove it");
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

/// The deepest nesting of the text of a RAW condition, with what extended JSON adds: it is decoded by recursion.
const MAX_RAW_LEVELS: usize = 4 * MAX_LEVELS;

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

impl ProjectionJson {
    /// Reads the projection.
    ///
    /// # Errors
    ///
    /// A flaw if both lists have fields.
    pub fn read(self, path: &str) -> Result<Projection, Flaw> {
        match (self.include.unwrap_or_default(), self.exclude.unwrap_or_default()) {
            (include, exclude) if !include.is_empty() && !exclude.is_empty() => {
                Err(Flaw::new(path, "has both include and exclude; remove one of the two"))
            }
            (include, exclude) if include.is_empty() && exclude.is_empty() => Ok(Projection::All),
            (include, exclude) if exclude.is_empty() => Ok(Projection::Include(include)),
            (_, exclude) => Ok(Projection::Exclude(exclude)),
        }
    }
}

impl From<SortJson> for SortKey {
    fn from(SortJson { field, direction }: SortJson) -> Self {
        Self { field, direction: direction.unwrap_or(Direction::Asc) }
    }
}
