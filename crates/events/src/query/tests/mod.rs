//! Conditions from their JSON to their filter, against those of the Wow framework and by hand.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

mod arbitrary;
mod dates;
mod filters;
mod flaws;
mod round_trip;
mod safety;
mod wow;

use bson::Document;
use jiff::Timestamp;

use super::compile::{Target, filter};
use super::condition::Condition;
use super::json::ConditionJson;
use super::{check, json};
use crate::Flaw;
use crate::json::{BodyError, read_body};

/// The time of the fixtures.
const NOW: &str = "2024-06-06T10:15:30.123Z";

const TARGETS: [Target; 2] = [Target::Events, Target::Snapshots];

/// Reads a condition, as a body of its own.
fn parse(text: &str) -> Result<ConditionJson, Vec<Flaw>> {
    read_body(text, Document::new()).map_err(|error| match error {
        BodyError::Syntax(error) => panic!("{text}: {error}"),
        BodyError::Invalid(flaws) => flaws,
    })
}

/// Reads a condition and checks its size.
fn checked(text: &str, allows_raw: bool) -> Result<Condition, Vec<Flaw>> {
    let condition = parse(text)?.read("")?;
    let flaws = check::flaws(&condition, "", allows_raw);
    if flaws.is_empty() { Ok(condition) } else { Err(flaws) }
}

/// Reads a condition that is valid where RAW is allowed.
fn valid(text: &str) -> Condition {
    checked(text, true).unwrap_or_else(|flaws| panic!("{text}: {flaws:?}"))
}

/// The flaws of a condition, as text.
fn flaws(text: &str, allows_raw: bool) -> Vec<String> {
    let flaws = checked(text, allows_raw).err().unwrap_or_default();
    flaws.iter().map(ToString::to_string).collect()
}

fn filter_at(condition: &Condition, target: Target, now: &str) -> Document {
    filter(condition, target, now.parse::<Timestamp>().unwrap())
}

/// The filter at the time of the fixtures.
fn filter_of(text: &str, target: Target) -> Document {
    filter_at(&valid(text), target, NOW)
}

/// All operators, by their names.
fn operators() -> Vec<String> {
    use json::Operator as O;
    let all = [
        O::All,
        O::And,
        O::Or,
        O::Nor,
        O::Id,
        O::Ids,
        O::AggregateId,
        O::AggregateIds,
        O::TenantId,
        O::OwnerId,
        O::SpaceId,
        O::Deleted,
        O::Eq,
        O::Ne,
        O::Gt,
        O::Lt,
        O::Gte,
        O::Lte,
        O::Contains,
        O::In,
        O::NotIn,
        O::Between,
        O::AllIn,
        O::StartsWith,
        O::EndsWith,
        O::ElemMatch,
        O::Null,
        O::NotNull,
        O::True,
        O::False,
        O::Exists,
        O::Today,
        O::BeforeToday,
        O::Tomorrow,
        O::ThisWeek,
        O::NextWeek,
        O::LastWeek,
        O::ThisMonth,
        O::LastMonth,
        O::RecentDays,
        O::EarlierDays,
        O::Match,
        O::Raw,
    ];
    let name = |operator| serde_json::to_value(operator).unwrap().as_str().unwrap().to_owned();
    all.into_iter().map(name).collect()
}
