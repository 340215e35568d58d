//! Conditions that Wow's serializer wrote, and the filters that Wow made of them.

use std::collections::BTreeSet;

use bson::{Bson, Document, bson, doc};
use serde_json::Value;

use super::{NOW, TARGETS, checked, filter_at, operators, parse};
use crate::Flaw;
use crate::json::{Form, parse as parse_json, read};
use crate::query::Target;
use crate::query::json::{ConditionJson, ProjectionJson, SortJson};
use crate::query::sort::{SortKey, order};

const FIXTURES: &str = include_str!("../fixtures/wow-operators.json");

/// The conditions that are no condition here, with the reason.
const REFUSED: [(&str, &str); 3] = [
    ("RECENT_DAYS_zero", "value: must be a number of days"),
    ("TODAY_zoneId_datePattern", "options.datePattern: contains \"XXX\""),
    // It has the form of a shell: ISODate(…).
    ("RAW_string_extended_json", "value: is not JSON"),
];

/// The filters that differ in their meaning, for events.
fn different(name: &str) -> Option<Document> {
    Some(match name {
        // Wow writes no empty lists, and then cannot read what it wrote.
        "IDS_empty" => doc! { "_id": { "$in": [] } },
        "AGGREGATE_IDS_empty" => doc! { "aggregateId": { "$in": [] } },
        "IN_empty" => doc! { "state.status": { "$in": [] } },
        "NOT_IN_empty" => doc! { "state.status": { "$nin": [] } },
        "ALL_IN_empty" => doc! { "state.items.productId": { "$all": [] } },
        // A value is never an operator.
        "EQ_map_with_dollar" => doc! { "state.totalAmount": { "$eq": { "$gt": 0 } } },
        _ => return None,
    })
}

struct Case {
    name: String,
    /// As it was written.
    text: String,
    json: Value,
    events: Value,
    snapshots: Value,
}

fn cases(kind: &str) -> Vec<Case> {
    let mut fixtures: Value = serde_json::from_str(FIXTURES).unwrap();
    assert_eq!(fixtures["now"], NOW);
    let cases = fixtures[kind].as_array_mut().unwrap();
    let cases = cases.iter_mut().map(|case| Case {
        name: case["name"].as_str().unwrap().to_owned(),
        text: case["json"].to_string(),
        json: case["json"].take(),
        events: case["events"].take(),
        snapshots: case["snapshots"].take(),
    });
    cases.collect()
}

#[test]
fn every_operator_was_written_by_wow() {
    fn collect(json: &Value, found: &mut BTreeSet<String>) {
        found.insert(json["operator"].as_str().unwrap().to_owned());
        json["children"].as_array().into_iter().flatten().for_each(|child| collect(child, found));
    }
    let mut found = BTreeSet::new();
    cases("cases").iter().for_each(|case| collect(&case.json, &mut found));

    assert_eq!(found, operators().into_iter().collect());
    assert_eq!(found.len(), 43);
}

#[test]
fn filters_mean_what_those_of_wow_mean() {
    let mut compared = 0;
    for Case { name, text, events, snapshots, .. } in cases("cases") {
        let read = checked(&text, true);
        if let Some((_, flaw)) = REFUSED.iter().find(|(refused, _)| *refused == name) {
            let flaws = read.unwrap_err();
            let [only] = &flaws[..] else { panic!("{name}: {flaws:?}") };
            assert!(only.to_string().starts_with(flaw), "{name}: {only}");
            continue;
        }
        let condition = read.unwrap_or_else(|flaws| panic!("{name}: {flaws:?}"));
        for (target, wow) in TARGETS.into_iter().zip([&events, &snapshots]) {
            let ours = filter_at(&condition, target, NOW);
            let wow = match different(&name) {
                Some(events) => expected(events, target),
                None => {
                    let Ok(Bson::Document(filter)) = Bson::try_from(wow.clone()) else {
                        panic!("{name}: {wow}")
                    };
                    filter
                }
            };
            let same = (normal(ours.clone()), normal(wow));
            assert_eq!(same.0, same.1, "{name} for {target:?}: {ours}");
            compared += 1;
        }
    }
    assert_eq!(compared, 2 * (110 - REFUSED.len()));
}

/// The filter for a target, from that for events.
fn expected(events: Document, target: Target) -> Document {
    if target == Target::Events {
        return events;
    }
    let names = events.into_iter().map(|(name, value)| {
        let name = if name == "aggregateId" { "_id".to_owned() } else { name };
        (name, value)
    });
    doc! { "$and": [{ "deleted": false }, names.collect::<Document>()] }
}

/// Rewrites a filter so that those that mean the same are equal.
fn normal(filter: Document) -> Document {
    let fields = filter.into_iter().map(|(name, value)| match (&*name, value) {
        ("$and" | "$or" | "$nor", Bson::Array(all)) => {
            let all = all.into_iter().map(|each| match each {
                Bson::Document(filter) => Bson::Document(normal(filter)),
                other => other,
            });
            (name, Bson::Array(all.collect()))
        }
        (_, tested) => {
            let tested = normal_test(tested);
            (name, tested)
        }
    });
    joined(fields.collect())
}

/// The test of a field.
fn normal_test(tested: Bson) -> Bson {
    match tested {
        // The same as a regular expression, whose end is the end of the text here.
        Bson::RegularExpression(regex) => {
            let pattern = regex.pattern.as_str();
            let pattern = match pattern.strip_suffix('$') {
                Some(rest) if !rest.ends_with('\\') => format!("{rest}\\z"),
                _ => pattern.to_owned(),
            };
            let mut tested = doc! { "$regex": pattern };
            if !regex.options.as_str().is_empty() {
                tested.insert("$options", regex.options.as_str());
            }
            tested.into()
        }
        Bson::Document(tests) if tests.keys().any(|name| name.starts_with('$')) => {
            let tests = tests.into_iter().map(|(name, operand)| match operand {
                Bson::Document(element) if name == "$elemMatch" => (name, normal(element).into()),
                operand => (name, by_value(operand)),
            });
            Bson::Document(tests.collect())
        }
        // `{field: value}` is `{field: {$eq: value}}`.
        value => bson!({ "$eq": by_value(value) }),
    }
}

/// Numbers by their value: decimals are doubles here, and all integers int64.
fn by_value(value: Bson) -> Bson {
    match value {
        Bson::Int32(integer) => i64::from(integer).into(),
        Bson::Decimal128(decimal) => decimal.to_string().parse::<f64>().unwrap().into(),
        Bson::Array(items) => Bson::Array(items.into_iter().map(by_value).collect()),
        Bson::Document(inner) => {
            Bson::Document(inner.into_iter().map(|(name, value)| (name, by_value(value))).collect())
        }
        other => other,
    }
}

/// A period: `{$and: [{field: {$gte: a}}, {field: {$lte: b}}]}` is `{field: {$gte: a, $lte: b}}`.
fn joined(filter: Document) -> Document {
    let Ok([Bson::Document(first), Bson::Document(last)]) =
        filter.get_array("$and").map(Vec::as_slice)
    else {
        return filter;
    };
    let bound = |of: &Document, operator: &str| {
        let (field, tested) = of.iter().next()?;
        let tested = tested.as_document()?;
        (of.len() == 1 && tested.len() == 1)
            .then(|| tested.get(operator).map(|bound| (field.clone(), bound.clone())))?
    };
    match (bound(first, "$gte"), bound(last, "$lte")) {
        (Some((field, from)), Some((same, to))) if field == same => {
            doc! { field: { "$gte": from, "$lte": to } }
        }
        _ => filter,
    }
}

/// What is written otherwise than by Wow, though it means the same.
fn rewritten(mut json: Value) -> Value {
    let operator = json["operator"].as_str().unwrap_or_default().to_owned();
    let members = json.as_object_mut().unwrap();
    if let Some(options) = members.get_mut("options").and_then(Value::as_object_mut) {
        // The default.
        options.retain(|_, option| *option != false);
    }
    members.retain(|_, member| member.as_object().is_none_or(|options| !options.is_empty()));
    match &*operator {
        // A text index needs no field.
        "MATCH" => drop(members.remove("field")),
        // The time of the day in full.
        "BEFORE_TODAY" => {
            let time = match &members["value"] {
                Value::String(time) if time.len() == 5 => format!("{time}:00"),
                Value::String(time) => time.clone(),
                seconds => format!("{}:00:00", seconds.as_i64().unwrap() / 3_600),
            };
            members.insert("value".to_owned(), time.into());
        }
        // An object.
        "RAW" => {
            if let Some(text) = members["value"].as_str() {
                let filter = serde_json::from_str(text).unwrap();
                members.insert("value".to_owned(), filter);
            }
        }
        _ => {}
    }
    if let Some(children) = members.get_mut("children").and_then(Value::as_array_mut) {
        children.iter_mut().for_each(|child| *child = rewritten(child.take()));
    }
    json
}

#[test]
fn json_of_wow_is_written_again_as_it_was() {
    for Case { name, text, json, .. } in cases("cases") {
        let Ok(condition) = checked(&text, true) else {
            assert!(REFUSED.iter().any(|(refused, _)| *refused == name), "{name}");
            continue;
        };
        let written = serde_json::to_value(&condition).unwrap();
        assert_eq!(written, rewritten(json), "{name}");
        assert_eq!(parse(&written.to_string()).unwrap().read(""), Ok(condition), "{name}");
    }
}

/// Projection and order; the rest of a query is not of this crate.
#[test]
fn projections_and_orders_are_those_of_wow() {
    for Case { name, json, events, snapshots, .. } in cases("queries") {
        let projection: ProjectionJson = member(&json["projection"]);
        let sort: Vec<SortJson> = match &json["sort"] {
            Value::Null => Vec::new(),
            list => list.as_array().unwrap().iter().map(member).collect(),
        };
        let sort: Vec<SortKey> = sort.into_iter().map(SortKey::from).collect();
        let projection = projection.read("projection");
        if name == "list_include_and_exclude" {
            let detail = "has both include and exclude; remove one of the two";
            assert_eq!(projection, Err(Flaw::new("projection", detail)));
            continue;
        }
        for (target, wow) in TARGETS.into_iter().zip([events, snapshots]) {
            let wow = |member: &str| match Bson::try_from(wow[member].clone()) {
                Ok(Bson::Document(document)) => document,
                _ => Document::new(),
            };
            let (ours, _) = projection.as_ref().unwrap().stored(target, &[]);
            assert_eq!(ours, wow("projection"), "{name} for {target:?}");
            assert_eq!(order(&sort, target, false), wow("sort"), "{name} for {target:?}");
        }
    }
}

/// Reads one part of a body.
fn member<T: serde::de::DeserializeOwned>(json: &Value) -> T {
    let (Bson::Document(members), _) = parse_json(&json.to_string()).unwrap() else {
        panic!("{json}")
    };
    read(members, Form::Json, Vec::new()).unwrap()
}

/// An absent member, one that is null, and an empty one are the same.
#[test]
fn empty_members_can_be_absent_null_or_empty() {
    let empty = |text: &str| parse(text).map(|json: ConditionJson| json.read("").unwrap());
    for (texts, target) in [
        (
            &[
                "{}",
                r#"{"operator":"ALL"}"#,
                r#"{"operator":"ALL","field":"","value":"","children":[],"options":{}}"#,
                r#"{"operator":null,"field":null,"children":null,"options":null,"value":null}"#,
            ][..],
            r#"{"operator":"ALL"}"#,
        ),
        (
            &[
                r#"{"operator":"IN","field":"a"}"#,
                r#"{"operator":"IN","field":"a","value":[],"children":[]}"#,
            ],
            r#"{"operator":"IN","field":"a","value":[]}"#,
        ),
        (&[r#"{"operator":"EQ","field":"a"}"#], r#"{"operator":"EQ","field":"a","value":""}"#),
        (
            &[r#"{"operator":"EXISTS","field":"a"}"#],
            r#"{"operator":"EXISTS","field":"a","value":true}"#,
        ),
    ] {
        for text in texts {
            assert_eq!(empty(text), empty(target), "{text}");
        }
    }
}
