//! Writes conditions.

use bson::Bson;

use super::types::{ConditionJson, ConditionOptions, Operator};
use super::value::{as_json, empty};
use crate::json::Json;
use crate::query::condition::{Comparison, Condition, DeletionState, Test, TextTest};
use crate::query::date::{DateForm, DateTest};
use crate::query::zone::Zone;

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
