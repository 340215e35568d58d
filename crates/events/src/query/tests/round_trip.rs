//! Random conditions: their JSON says the same, and their filters have known operators only.

use bson::{Bson, Document};
use proptest::prelude::*;

use super::{TARGETS, arbitrary, check, filter_at, flaws, parse, valid};
use crate::query::{Condition, Test, raw};

/// The operators that stand where a field could, and those that test a field.
const COMBINE: [&str; 3] = ["$and", "$or", "$nor"];
const TEST: [&str; 13] = [
    "$eq",
    "$ne",
    "$gt",
    "$gte",
    "$lt",
    "$lte",
    "$in",
    "$nin",
    "$all",
    "$elemMatch",
    "$exists",
    "$regex",
    "$options",
];

/// Names what MongoDB would take for an operator, and the compiler does not write.
fn unknown_operator(filter: &Document) -> Option<String> {
    let within = |value: &Bson| match value {
        Bson::Document(inner) => unknown_operator(inner),
        other => Some(other.to_string()),
    };
    filter.iter().find_map(|(name, value)| match value {
        Bson::Array(all) if COMBINE.contains(&name.as_str()) => all.iter().find_map(within),
        Bson::Document(search) if name == "$text" => {
            (!search.keys().eq(["$search"])).then(|| search.to_string())
        }
        _ if name.starts_with('$') => Some(name.clone()),
        Bson::Document(tests) if tests.keys().next().is_some_and(|name| name.starts_with('$')) => {
            tests.iter().find_map(|(name, operand)| match name.as_str() {
                "$elemMatch" => within(operand),
                // MongoDB reads their items.
                "$in" | "$nin" | "$all" => operand.as_array()?.iter().find_map(|item| {
                    let first = item.as_document()?.keys().next()?;
                    first.starts_with('$').then(|| first.clone())
                }),
                name => (!TEST.contains(&name)).then(|| name.to_owned()),
            })
        }
        Bson::RegularExpression(_) => Some(name.clone()),
        _ => None,
    })
}

/// The condition with ALL in place of RAW, whose filters are judged by themselves.
fn without_raw(condition: &Condition, raw: &mut Vec<Document>) -> Condition {
    let mut all = |children: &[Condition]| {
        children.iter().map(|child| without_raw(child, raw)).collect::<Vec<_>>()
    };
    match condition {
        Condition::And(children) => Condition::And(all(children)),
        Condition::Or(children) => Condition::Or(all(children)),
        Condition::Nor(children) => Condition::Nor(all(children)),
        Condition::Field(field, Test::ElemMatch(child)) => {
            field.clone().elem_match(without_raw(child, raw))
        }
        Condition::Raw(filter) => {
            raw.push(filter.clone());
            Condition::All
        }
        other => other.clone(),
    }
}

/// Whether a document has no names but those of fields and of the operators that RAW may have.
fn is_allowed(value: &Bson) -> bool {
    match value {
        Bson::Document(document) => document.iter().all(|(name, value)| {
            (!name.starts_with('$') || raw::OPERATORS.contains(&name.as_str())) && is_allowed(value)
        }),
        Bson::Array(items) => items.iter().all(is_allowed),
        Bson::JavaScriptCode(_) | Bson::JavaScriptCodeWithScope(_) => false,
        _ => true,
    }
}

fn assert_known(condition: &Condition) -> Result<(), TestCaseError> {
    let mut raw = Vec::new();
    let other = without_raw(condition, &mut raw);
    for target in TARGETS {
        let filter = filter_at(&other, target, super::NOW);
        prop_assert_eq!(unknown_operator(&filter), None, "{}", filter);
    }
    for filter in raw {
        prop_assert!(is_allowed(&filter.clone().into()), "{}", filter);
    }
    Ok(())
}

/// Numbers by their value: JSON does not keep the kind of an integer.
fn by_value(value: Bson) -> Bson {
    match value {
        Bson::Int64(integer) => crate::integer::smallest(integer),
        Bson::Array(items) => Bson::Array(items.into_iter().map(by_value).collect()),
        Bson::Document(document) => Bson::Document(
            document.into_iter().map(|(name, value)| (name, by_value(value))).collect(),
        ),
        other => other,
    }
}

proptest! {
    #[test]
    fn json_that_is_a_condition_has_known_operators(json in arbitrary::condition_json()) {
        let text = json.to_string();
        let named = flaws(&text, true);
        for flaw in &named {
            prop_assert!(flaw.split(": ").nth(1).is_some_and(|detail| !detail.is_empty()), "{}", flaw);
        }
        if named.is_empty() {
            let condition = valid(&text);
            assert_known(&condition)?;
            let again = serde_json::to_string(&condition).unwrap();
            prop_assert_eq!(flaws(&again, true), Vec::<String>::new(), "{}", again);
        }
    }

    #[test]
    fn filter_has_known_operators(condition in arbitrary::condition(arbitrary::hostile_value())) {
        if check::flaws(&condition, "", true).is_empty() {
            assert_known(&condition)?;
        }
    }

    #[test]
    fn condition_is_the_same_from_its_json(condition in arbitrary::condition(arbitrary::value())) {
        let json = serde_json::to_string(&condition).unwrap();
        let read = parse(&json).and_then(|json| json.read(""));
        let read = read.map_err(|flaws| TestCaseError::fail(format!("{json}: {flaws:?}")))?;
        for target in TARGETS {
            let [before, after] = [&condition, &read]
                .map(|condition| by_value(filter_at(condition, target, super::NOW).into()));
            prop_assert_eq!(before, after, "{}", json);
        }
        prop_assert_eq!(serde_json::from_str::<Condition>(&json).unwrap(), read, "by serde alone");
    }
}
