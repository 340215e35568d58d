//! Conditions, projections and orders of queries, as JSON from any client.

use bson::Document;
use postrider::events::Flaw;
use postrider::events::json::{BodyError, read_body};
use postrider::events::query::Condition;
use postrider::events::query::json::ConditionJson;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::{arbitrary, corpus};

/// The operators, and words that are none.
const OPERATORS: [&str; 47] = [
    "ALL",
    "AND",
    "OR",
    "NOR",
    "ID",
    "IDS",
    "AGGREGATE_ID",
    "AGGREGATE_IDS",
    "TENANT_ID",
    "OWNER_ID",
    "SPACE_ID",
    "DELETED",
    "EQ",
    "NE",
    "GT",
    "LT",
    "GTE",
    "LTE",
    "CONTAINS",
    "IN",
    "NOT_IN",
    "BETWEEN",
    "ALL_IN",
    "STARTS_WITH",
    "ENDS_WITH",
    "ELEM_MATCH",
    "NULL",
    "NOT_NULL",
    "TRUE",
    "FALSE",
    "EXISTS",
    "TODAY",
    "BEFORE_TODAY",
    "TOMORROW",
    "THIS_WEEK",
    "NEXT_WEEK",
    "LAST_WEEK",
    "THIS_MONTH",
    "LAST_MONTH",
    "RECENT_DAYS",
    "EARLIER_DAYS",
    "MATCH",
    "RAW",
    "eq",
    "LIKE",
    "",
    "$where",
];

const FIELDS: [&str; 8] = ["a", "state.x", "id", "_id", "$where", "a..b", "", "a.$b"];

/// Any JSON: extended JSON of every kind of BSON among it.
fn any_json() -> impl Strategy<Value = Value> + Clone {
    let value = arbitrary::value().prop_map(|value| value.into_relaxed_extjson());
    let text = prop_oneof![
        arbitrary::text(),
        "[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?(\\.[0-9]{0,10})?",
        "[+-][0-9:]{1,8}|UTC|Z|[A-Z][a-z]{2,6}/[A-Z][a-z]{3,8}",
        "[yuMdHhmsSX'./: -]{0,20}",
        r#"\{("[a$]{0,3}":[0-9{}]{0,3},?){0,2}\}"#,
    ];
    prop_oneof![3 => value, 2 => text.prop_map(Value::from), 1 => (-2_i64..90_000).prop_map(Value::from)]
        .boxed()
}

fn condition() -> impl Strategy<Value = Value> {
    let operator = prop_oneof![
        9 => proptest::sample::select(&OPERATORS[..]).prop_map(Value::from),
        1 => any_json(),
    ];
    let field = prop_oneof![
        8 => proptest::sample::select(&FIELDS[..]).prop_map(Value::from),
        1 => arbitrary::text().prop_map(Value::from),
        1 => any_json(),
    ];
    let names =
        proptest::sample::select(&["ignoreCase", "zoneId", "datePattern", "extended", "other"][..]);
    let option = prop_oneof![any::<bool>().prop_map(Value::from), any_json()];
    let options = proptest::collection::vec((names, option), 0..3).prop_map(|options| {
        Value::Object(options.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    });
    let members = (
        operator,
        proptest::option::weighted(0.8, field),
        proptest::option::weighted(0.7, any_json()),
        proptest::option::weighted(0.3, options),
    );
    let alone = members.prop_map(|(operator, field, value, options)| {
        let mut json = json!({ "operator": operator });
        for (name, member) in [("field", field), ("value", value), ("options", options)] {
            if let Some(member) = member {
                json[name] = member;
            }
        }
        json
    });
    alone.prop_recursive(5, 30, 4, |inner| {
        (inner.clone(), proptest::collection::vec(inner, 0..4)).prop_map(|(mut json, children)| {
            json["children"] = children.into();
            json
        })
    })
}

/// Reads a condition as the body of a call. One that is accepted is the same from its JSON; each flaw has
/// a text.
fn judge(text: &str) -> Result<(), TestCaseError> {
    let flaws = match read_body::<ConditionJson>(text, Document::new()) {
        Err(BodyError::Syntax(_)) => return Ok(()),
        Err(BodyError::Invalid(flaws)) => flaws,
        Ok(json) => match json.read("condition") {
            Err(flaws) => flaws,
            Ok(condition) => {
                let written = serde_json::to_string(&condition).unwrap();
                let again: Condition = serde_json::from_str(&written)
                    .map_err(|error| TestCaseError::fail(format!("{written}: {error}")))?;
                let written_again = serde_json::to_string(&again).unwrap();
                prop_assert_eq!(written, written_again);
                return Ok(());
            }
        },
    };
    prop_assert!(!flaws.is_empty());
    for Flaw { field, detail } in flaws {
        prop_assert!(!detail.is_empty() && detail.len() < 2_000, "{}: {}", field, detail);
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_condition_is_read_or_has_flaws(json in condition()) {
        judge(&json.to_string())?;
    }

    #[test]
    fn any_json_is_a_condition_or_has_flaws(json in any_json()) {
        judge(&json.to_string())?;
    }

    #[test]
    fn any_text_is_a_condition_or_has_flaws(text in arbitrary::text()) {
        judge(&text)?;
    }
}

#[test]
fn the_corpus_is_read() {
    for line in corpus::lines("conditions") {
        judge(&line).unwrap();
    }
}
