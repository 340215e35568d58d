//! What a client must not reach: each rule fails a test here if it is taken out.

use bson::{Bson, doc};
use serde_json::{Value, json};

use super::{TARGETS, check, filter_of, flaws};
use crate::Flaw;
use crate::json::Json;
use crate::query::json::{ConditionJson, Operator};
use crate::query::{Condition, FieldName, Target};

fn field() -> FieldName {
    FieldName::new("f").unwrap()
}

fn flaws_of(condition: &Condition) -> Vec<String> {
    check::flaws(condition, "condition", true).iter().map(ToString::to_string).collect()
}

/// Every special character of regular expressions is itself.
#[test]
fn text_is_escaped() {
    let special = r"\^$.|?*+()[]{}";
    for (operator, before, after) in
        [("CONTAINS", "", ""), ("STARTS_WITH", "^", ""), ("ENDS_WITH", "", "\\z")]
    {
        for character in special.chars() {
            let text =
                json!({ "operator": operator, "field": "f", "value": format!("a{character}") });
            let filter = filter_of(&text.to_string(), Target::Events);
            let expected = format!("{before}a\\{character}{after}");
            assert_eq!(filter, doc! { "f": { "$regex": expected } });
        }
    }
    let hostile = json!({ "operator": "CONTAINS", "field": "f", "value": "(?i)(a+)+$|.*\\Q" });
    assert_eq!(
        filter_of(&hostile.to_string(), Target::Events),
        doc! { "f": { "$regex": "\\(\\?i\\)\\(a\\+\\)\\+\\$\\|\\.\\*\\\\Q" } }
    );
}

#[test]
fn value_is_never_an_operator() {
    for operator in ["EQ", "NE", "GT", "LT", "GTE", "LTE"] {
        for value in [
            json!({ "$gt": 0 }),
            json!({ "$ne": null }),
            json!({ "$where": "1" }),
            json!({ "$regex": "." }),
            json!([{ "$exists": true }]),
        ] {
            let text = json!({ "operator": operator, "field": "f", "value": value }).to_string();
            let filter = filter_of(&text, Target::Events);
            let tests = filter.get_document("f").unwrap();
            let name = format!("${}", operator.to_lowercase());
            assert_eq!(tests.keys().collect::<Vec<_>>(), [&name], "{filter}");
            assert_eq!(
                Bson::try_from(value).unwrap().into_relaxed_extjson(),
                tests[&name].clone().into_relaxed_extjson()
            );
        }
    }
    // What tests the ids of documents takes text only.
    for operator in ["ID", "AGGREGATE_ID", "TENANT_ID", "OWNER_ID", "SPACE_ID"] {
        let text = json!({ "operator": operator, "value": { "$ne": "" } }).to_string();
        assert_eq!(flaws(&text, true), ["value: must be a string"]);
    }
    for operator in ["IDS", "AGGREGATE_IDS"] {
        let text = json!({ "operator": operator, "value": ["a", { "$ne": "" }] }).to_string();
        assert_eq!(flaws(&text, true), ["value[1]: must be a string"]);
    }
    let text =
        json!({ "operator": "BETWEEN", "field": "f", "value": [{ "$gt": 1 }, { "$lt": 2 }] });
    assert_eq!(
        filter_of(&text.to_string(), Target::Events),
        doc! { "f": { "$gte": { "$gt": 1 }, "$lte": { "$lt": 2 } } }
    );
}

/// MongoDB takes `{$in: [{$…}]}` and `{$all: [{$elemMatch: …}]}` for operators.
#[test]
fn documents_like_operators_in_lists_are_compared_one_by_one() {
    for (operator, each) in [("IN", "$or"), ("NOT_IN", "$nor"), ("ALL_IN", "$and")] {
        let value = json!([1, { "$elemMatch": {} }]);
        let text = json!({ "operator": operator, "field": "f", "value": value }).to_string();
        let filter = filter_of(&text, Target::Events);
        assert_eq!(
            filter,
            doc! { each: [{ "f": { "$eq": 1 } }, { "f": { "$eq": { "$elemMatch": {} } } }] }
        );
    }
}

#[test]
fn values_that_mongodb_searches_by_are_refused() {
    let regex = || {
        let regex = json!({ "$regularExpression": { "pattern": ".", "options": "" } });
        Bson::try_from(regex).unwrap()
    };
    let refused = "is a regular expression; use CONTAINS, STARTS_WITH or ENDS_WITH";
    for condition in [field().eq(regex()), field().ne(regex()), field().gt(regex())] {
        assert_eq!(flaws_of(&condition), [format!("condition.value: {refused}")]);
    }
    for condition in [
        field().is_in([Bson::Null, regex()]),
        field().not_in([Bson::Null, regex()]),
        field().all_in([Bson::Null, regex()]),
        field().between(1, regex()),
    ] {
        assert_eq!(flaws_of(&condition), [format!("condition.value[1]: {refused}")]);
    }
    let condition = Condition::Or(vec![field().between(regex(), 1)]);
    assert_eq!(flaws_of(&condition), [format!("condition.children[0].value[0]: {refused}")]);
    for condition in [field().eq(Bson::Undefined), field().lt(Bson::Undefined)] {
        let refused = "condition.value: is undefined; use NULL to find null or absent fields";
        assert_eq!(flaws_of(&condition), [refused]);
    }
    let text = json!({
        "operator": "EQ", "field": "f", "options": { "extended": true },
        "value": { "$regularExpression": { "pattern": ".", "options": "" } },
    });
    assert_eq!(flaws(&text.to_string(), true), [format!("value: {refused}")]);
    // As the element of an array it is compared only.
    assert_eq!(flaws_of(&field().eq(vec![regex()])), [""; 0]);
}

#[test]
fn nul_is_refused_where_bson_has_none() {
    let nul = "contains U+0000";
    assert_eq!(
        flaws_of(&field().contains("a\0")),
        ["condition.value: contains U+0000, which a text search cannot contain"]
    );
    let name = doc! { "a": [{ "b\0": 1 }] };
    for condition in [field().eq(name.clone()), Condition::Raw(name.clone())] {
        let found = flaws_of(&condition);
        assert!(found.len() == 1 && found[0].contains(nul), "{found:?}");
        assert!(found[0].starts_with("condition.value: "), "{found:?}");
    }
    let found = flaws_of(&field().is_in([Bson::Null, name.into()]));
    assert!(found.len() == 1 && found[0].starts_with("condition.value[1]: "), "{found:?}");
    let text = json!({ "operator": "RAW", "value": "{\"a\\u0000\": 1}" }).to_string();
    let found = flaws(&text, true);
    assert!(found.len() == 1 && found[0].contains(nul), "{found:?}");
    // A text has one.
    assert_eq!(flaws_of(&field().eq("a\0")), [""; 0]);
}

#[test]
fn raw_is_off_unless_allowed() {
    let raw = json!({ "operator": "RAW", "value": { "a": 1 } });
    let off = "RAW is disabled; set queries.raw = true to enable it";
    let within = [
        (raw.clone(), "operator"),
        (json!({ "operator": "NOR", "children": [{}, raw] }), "children[1].operator"),
        (
            json!({ "operator": "ELEM_MATCH", "field": "f", "children": [raw] }),
            "children[0].operator",
        ),
    ];
    for (condition, path) in within {
        assert_eq!(flaws(&condition.to_string(), false), [format!("{path}: {off}")]);
        assert_eq!(flaws(&condition.to_string(), true), [""; 0]);
    }
}

/// Only operators that test fields by constants: at every depth, in both forms.
#[test]
fn raw_has_no_other_operators() {
    for name in [
        "$where",
        "$function",
        "$accumulator",
        "$expr",
        "$text",
        "$near",
        "$nearSphere",
        "$geoWithin",
        "$jsonSchema",
        "$comment",
        "$rand",
        "$natural",
        "$sampleRate",
        "$meta",
        "$slice",
        "$query",
        "$hint",
        "$_internalExprEq",
        "$WHERE",
        "$",
    ] {
        let hostile = json!({ name: "sleep(1000)" });
        for filter in [
            hostile.clone(),
            json!({ "a": hostile }),
            json!({ "a": { "$eq": hostile } }),
            json!({ "$and": [{ "a": 1 }, { "$or": [hostile] }] }),
            json!({ "a": { "$elemMatch": { "$not": hostile } } }),
            json!({ "a": { "$in": [[hostile]] } }),
        ] {
            for value in [filter.clone(), Value::from(filter.to_string())] {
                let text = json!({ "operator": "RAW", "value": value }).to_string();
                let found = flaws(&text, true);
                assert_eq!(found.len(), 1, "{text}: {found:?}");
                let begin =
                    format!("value: contains {name:?}, which is not allowed; allowed are $all ");
                assert!(found[0].starts_with(&begin), "{text}: {found:?}");
            }
        }
    }
    for code in [json!({ "$code": "1" }), json!({ "$code": "1", "$scope": {} })] {
        let text = json!({ "operator": "RAW", "value": { "a": { "$in": [code] } } }).to_string();
        assert_eq!(flaws(&text, true), ["value: contains JavaScript, which is not allowed"]);
    }
}

/// Where MongoDB cannot run it, and one alone.
#[test]
fn match_stands_only_where_mongodb_runs_it() {
    let text = json!({ "operator": "MATCH", "value": "x" });
    let flaw =
        |path: &str| format!("{path}operator: MATCH is allowed once, at the root or in AND and OR");
    for (condition, expected) in [
        (text.clone(), vec![]),
        (json!({ "operator": "AND", "children": [text, {}] }), vec![]),
        (
            json!({ "operator": "OR", "children": [{}, { "operator": "AND", "children": [text] }] }),
            vec![],
        ),
        (json!({ "operator": "NOR", "children": [text] }), vec![flaw("children[0].")]),
        (
            json!({ "operator": "ELEM_MATCH", "field": "f", "children": [text] }),
            vec![flaw("children[0].")],
        ),
        (
            json!({ "operator": "NOR", "children": [{ "operator": "AND", "children": [text] }] }),
            vec![flaw("children[0].children[0].")],
        ),
        (json!({ "operator": "AND", "children": [text, {}, text] }), vec![flaw("children[2].")]),
        (
            json!({ "operator": "OR", "children": [{ "operator": "AND", "children": [text] }, text] }),
            vec![flaw("children[1].")],
        ),
    ] {
        assert_eq!(flaws(&condition.to_string(), true), expected, "{condition}");
    }
}

/// A body full of flaws takes no memory for each of them.
#[test]
fn number_of_flaws_is_bounded() {
    let leaf = |operator| ConditionJson { operator: Some(operator), ..ConditionJson::default() };
    let wide = |child| {
        let children = Some(vec![child; 10_000]);
        ConditionJson { children, ..leaf(Operator::Or) }
    };
    let value = Some(Json(Bson::Array(vec![Bson::Null; 100_000])));
    for json in [
        ConditionJson { value, ..leaf(Operator::Ids) },
        wide(leaf(Operator::Eq)),
        wide(ConditionJson { field: Some("$".into()), ..leaf(Operator::Between) }),
        wide(leaf(Operator::And)),
    ] {
        let found = json.read("condition").unwrap_err().len();
        assert!((100..1_000).contains(&found), "{found} flaws");
    }
}

/// The Rust form has the rules of the JSON form.
#[test]
fn conditions_made_in_rust_are_checked() {
    let deep = (0..40).fold(Condition::All, |child, _| Condition::And(vec![child]));
    assert_eq!(
        check::flaws(&deep, "condition", true),
        [Flaw::new("condition", "has 41 levels; at most 16 are allowed")]
    );
    let very_deep = (0..2_000).fold(Condition::All, |child, _| Condition::Or(vec![child]));
    assert_eq!(check::flaws(&very_deep, "condition", true).len(), 2);
    // Dropped piece by piece, as recursion may end the stack.
    let mut rest = very_deep;
    while let Condition::Or(mut children) = rest {
        rest = children.pop().unwrap();
    }
    let wide = Condition::And(vec![field().eq(1); 100_000]);
    assert_eq!(check::flaws(&wide, "condition", true).len(), 1);
    for target in TARGETS {
        let filter = super::filter_at(&Condition::All, target, super::NOW);
        assert_eq!(filter.len(), usize::from(target == Target::Snapshots));
    }
}
