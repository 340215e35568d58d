//! Invalid conditions: each flaw by its path and text, and all of them at once.

use serde_json::{Value, json};

use super::flaws;
use crate::query::{MAX_LEVELS, MAX_NODES, MAX_TEXT_BYTES, MAX_VALUES};

/// Nested ANDs, so many levels in all.
fn nested(levels: usize) -> Value {
    let innermost = json!({ "operator": "ALL" });
    (1..levels).fold(innermost, |child, _| json!({ "operator": "AND", "children": [child] }))
}

/// An AND of so many others.
fn wide(children: usize) -> Value {
    json!({ "operator": "AND", "children": vec![json!({}); children] })
}

#[track_caller]
fn refused(condition: &Value, expected: &[&str]) {
    assert_eq!(flaws(&condition.to_string(), true), expected, "{condition}");
}

#[track_caller]
fn accepted(condition: &Value) {
    refused(condition, &[]);
}

#[test]
fn wrong_operands_are_named() {
    let string = "value: must be a string";
    let array = "value: must be an array";
    let time = "value: must be a time of the day: \"18:00\", \"18:00:30\", or its seconds";
    let days = "value: must be a number of days, today included: 1 or above";
    let deletion = "value: must be \"ACTIVE\", \"DELETED\", \"ALL\", true or false";
    let filter = "value: must be a filter of MongoDB: an object, or its text";
    let some = || [json!(1), json!(true), json!({}), json!(null), json!(1.5)];
    let mut cases: Vec<(&str, Vec<Value>, &str)> = Vec::new();
    for operator in [
        "ID",
        "AGGREGATE_ID",
        "TENANT_ID",
        "OWNER_ID",
        "SPACE_ID",
        "MATCH",
        "CONTAINS",
        "STARTS_WITH",
        "ENDS_WITH",
    ] {
        cases.push((operator, [&some()[..], &[json!([]), json!(["x"])]].concat(), string));
    }
    for operator in ["IDS", "AGGREGATE_IDS", "IN", "NOT_IN", "ALL_IN", "BETWEEN"] {
        cases.push((operator, [&some()[..], &[json!(""), json!("x")]].concat(), array));
    }
    cases.push((
        "DELETED",
        vec![json!(1), json!("true"), json!(""), json!([]), json!(null)],
        deletion,
    ));
    let exists = vec![json!(1), json!("true"), json!(""), json!(null)];
    cases.push(("EXISTS", exists, "value: must be true or false"));
    let times = [
        "",
        "8:00",
        "24:00",
        "18",
        "18:60",
        "18:00:60",
        "18:00:",
        "18:00:00.",
        "23:59:60",
        "18:00:00.1234567890",
        "1800",
        "-1:00",
        "18:00Z",
        "١٨:٠٠",
        "18.00",
    ];
    let mut of_time: Vec<Value> = times.into_iter().map(Value::from).collect();
    of_time.extend([json!(-1), json!(86_400), json!(1.5), json!(true), json!(null), json!([])]);
    cases.push(("BEFORE_TODAY", of_time, time));
    for operator in ["RECENT_DAYS", "EARLIER_DAYS"] {
        let none = [json!(-1), json!(1.5), json!("3"), json!(""), json!(null), json!(1e300)];
        cases.push((operator, none.to_vec(), days));
    }
    cases.push(("RAW", vec![json!(1), json!(null), json!([]), json!("[]"), json!("1")], filter));

    for (operator, values, flaw) in cases {
        let has_field = !matches!(
            operator,
            "ID" | "AGGREGATE_ID"
                | "TENANT_ID"
                | "OWNER_ID"
                | "SPACE_ID"
                | "IDS"
                | "AGGREGATE_IDS"
                | "DELETED"
                | "RAW"
        );
        for value in values {
            let mut condition = json!({ "operator": operator, "value": value });
            if has_field {
                condition["field"] = json!("f");
            }
            refused(&condition, &[flaw]);
        }
    }
    for operator in ["DELETED", "BEFORE_TODAY", "RECENT_DAYS", "EARLIER_DAYS", "RAW"] {
        let mut condition = json!({ "operator": operator, "field": "f" });
        if operator == "DELETED" || operator == "RAW" {
            condition["field"] = json!("");
        }
        let found = flaws(&condition.to_string(), true);
        assert!(matches!(&found[..], [flaw] if flaw.starts_with("value: must be ")), "{found:?}");
    }
}

#[test]
fn wrong_items_of_lists_are_named() {
    for operator in ["IDS", "AGGREGATE_IDS"] {
        refused(
            &json!({ "operator": operator, "value": ["a", 1, "b", null, ["c"]] }),
            &[
                "value[1]: must be a string",
                "value[3]: must be a string",
                "value[4]: must be a string",
            ],
        );
    }
    for count in [0, 1, 3] {
        let condition = json!({ "operator": "BETWEEN", "field": "f", "value": vec![1; count] });
        let flaw = format!("value: has {count} values; BETWEEN takes the first and the last");
        refused(&condition, &[&flaw]);
    }
    refused(
        &json!({ "operator": "BETWEEN", "field": "f" }),
        &["value: has 0 values; BETWEEN takes the first and the last"],
    );
    for (children, count) in [(json!([]), 0), (json!([{}, {}]), 2)] {
        let condition = json!({ "operator": "ELEM_MATCH", "field": "f", "children": children });
        let flaw = format!("children: has {count} conditions; ELEM_MATCH takes one");
        refused(&condition, &[&flaw]);
    }
    for operator in ["AND", "OR", "NOR"] {
        for condition in
            [json!({ "operator": operator }), json!({ "operator": operator, "children": [] })]
        {
            refused(&condition, &["children: is empty; at least one condition is required"]);
        }
    }
    refused(
        &json!({ "operator": "OR", "children": [{}, { "operator": "AND", "children": [] }] }),
        &["children[1].children: is empty; at least one condition is required"],
    );
}

#[test]
fn invalid_fields_zones_and_patterns_are_named() {
    for (field, flaw) in [
        ("", "must name a field"),
        ("a..b", "has an empty level; write one dot between two names"),
        (".a", "has an empty level; write one dot between two names"),
        ("a.", "has an empty level; write one dot between two names"),
        ("$where", "contains a $, which is not allowed in a field"),
        ("a.$[]", "contains a $, which is not allowed in a field"),
        ("a\0b", "contains U+0000"),
        (&*"x".repeat(1_025), "is too long; at most 1024 bytes are allowed"),
    ] {
        for operator in ["EQ", "NE", "NULL", "TRUE", "TODAY", "IN", "CONTAINS"] {
            let condition = json!({ "operator": operator, "field": field });
            refused(&condition, &[&format!("field: {flaw}")]);
        }
    }
    refused(&json!({ "operator": "EQ" }), &["field: must name a field"]);
    for zone in ["", "Mars/Base", "+19:00", "+25", "EUROPE", "Europe/Berlin ", "\0"] {
        refused(
            &json!({ "operator": "TODAY", "field": "f", "options": { "zoneId": zone } }),
            &[
                "options.zoneId: is not a time zone; use a name such as Europe/Berlin, or an offset such as +08:00",
            ],
        );
    }
    for (pattern, flaw) in [
        ("", "must be a pattern of 1 to 100 bytes, such as yyyy-MM-dd HH:mm:ss"),
        (
            "dd/MM/yyyy",
            "produces texts that do not sort by time; start with the year and continue with smaller \
             units without a gap, for example yyyy-MM-dd HH:mm:ss",
        ),
        (
            "yyyy-MM-ddXXX",
            "contains \"XXX\"; only yyyy, MM, dd, HH, mm, ss and S are pattern letters; write other letters in apostrophes",
        ),
        ("yyyy'T", "has an apostrophe that is not closed"),
    ] {
        refused(
            &json!({ "operator": "TODAY", "field": "f", "options": { "datePattern": pattern } }),
            &[&format!("options.datePattern: {flaw}")],
        );
    }
}

#[test]
fn unknown_operators_and_members_are_named() {
    let words = super::operators().join(", ");
    for operator in [json!("eq"), json!("Eq"), json!("LIKE"), json!(""), json!(12), json!([])] {
        refused(&json!({ "operator": operator }), &[&format!("operator: must be one of {words}")]);
    }
    refused(
        &json!({ "filter": {}, "options": { "ignorecase": true }, "field": 5, "children": {} }),
        &[
            "filter: unknown field",
            "options.ignorecase: unknown field",
            "field: must be a string",
            "children: must be an array",
        ],
    );
    refused(
        &json!({ "op": "EQ" }),
        &[
            "op: belongs to the filters of Wow 8.11; this server takes the `condition` of Wow 8.10, \
           which has an `operator`",
        ],
    );
    refused(
        &json!({ "operator": "AND", "children": [null, 5, []] }),
        &[
            "children[0]: must be an object",
            "children[1]: must be an object",
            "children[2]: must be an object",
        ],
    );
    for option in ["ignoreCase", "extended"] {
        let condition =
            json!({ "operator": "CONTAINS", "field": "f", "options": { option: "true" } });
        refused(&condition, &[&format!("options.{option}: must be true or false")]);
    }
}

/// A client that sets them means something else.
#[test]
fn members_without_a_meaning_are_named() {
    let meaningless = |member: &str| format!("{member}: is not used by this operator; remove it");
    for (operator, members) in [
        // Without an operator it is ALL: it may have been forgotten.
        ("", &["field", "value", "children"][..]),
        ("ID", &["field", "children"]),
        ("DELETED", &["field", "children"]),
        ("NULL", &["value", "children"]),
        ("TODAY", &["value", "children"]),
        ("EQ", &["children"]),
        ("EXISTS", &["children"]),
        ("MATCH", &["children"]),
    ] {
        let mut condition = json!({ "operator": operator });
        match operator {
            "" => condition = json!({}),
            "ID" | "MATCH" => condition["value"] = json!("x"),
            "DELETED" => condition["value"] = json!("ALL"),
            "NULL" | "TODAY" | "EQ" | "EXISTS" => condition["field"] = json!("f"),
            _ => {}
        }
        accepted(&condition);
        for member in members {
            condition[member] = match *member {
                "children" => json!([{}]),
                _ => json!("x"),
            };
        }
        let expected: Vec<String> = members.iter().map(|member| meaningless(member)).collect();
        refused(&condition, &expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
    refused(
        &json!({ "operator": "OR", "field": "f", "value": 0, "children": [{}] }),
        &[&meaningless("field"), &meaningless("value")],
    );
    refused(
        &json!({ "operator": "ELEM_MATCH", "field": "f", "value": false, "children": [{}] }),
        &[&meaningless("value")],
    );
}

#[test]
fn all_flaws_are_named_at_once() {
    let deep = json!({ "operator": "NOR", "children": [
        { "operator": "EQ", "field": "$x", "value": 1 },
        { "operator": "OR", "children": [
            { "operator": "TODAY", "field": "f", "options": { "zoneId": "X", "datePattern": "d" } },
            { "operator": "IN", "field": "a..b", "value": 7 },
        ] },
        { "operator": "EQ", "field": "f", "value": { "$date": "never" }, "options": { "extended": true } },
        { "operator": "AND" },
        { "operator": "CONTAINS", "field": "f", "value": "\0" },
        { "operator": "MATCH", "value": "x" },
        { "operator": "RAW", "value": { "$where": "1" } },
        { "operator": "RECENT_DAYS", "field": "f", "value": 400_000 },
    ] });
    let found = flaws(&deep.to_string(), true);
    let fields: Vec<&str> = found.iter().map(|flaw| flaw.split(": ").next().unwrap()).collect();
    assert_eq!(
        fields,
        [
            "children[0].field",
            "children[1].children[0].options.zoneId",
            "children[1].children[0].options.datePattern",
            "children[1].children[1].value",
            "children[1].children[1].field",
            "children[2].value",
            "children[3].children",
            "children[4].value",
            "children[5].operator",
            "children[6].value",
            "children[7].value",
        ]
    );
}

#[test]
fn extended_json_that_is_none_is_one_flaw() {
    for (operator, value) in [
        ("EQ", json!({ "$oid": "x" })),
        ("CONTAINS", json!({ "$oid": "x" })),
        ("IN", json!([{ "$date": true }])),
        ("BETWEEN", json!([1, { "$numberLong": "x" }])),
    ] {
        let condition = json!({
            "operator": operator, "field": "f", "value": value, "options": { "extended": true }
        });
        let found = flaws(&condition.to_string(), true);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("value: is not extended JSON: "), "{found:?}");
    }
    let not_json = flaws(r#"{"operator":"RAW","value":"{"}"#, true);
    assert_eq!(not_json, ["value: is not JSON: EOF while parsing an object at line 1 column 1"]);
}

#[test]
fn limits_are_named_with_their_number() {
    accepted(&nested(MAX_LEVELS));
    refused(
        &nested(MAX_LEVELS + 1),
        &[&format!("has {} levels; at most {MAX_LEVELS} are allowed", MAX_LEVELS + 1)],
    );
    accepted(&wide(MAX_NODES - 1));
    refused(
        &wide(MAX_NODES),
        &[&format!("has {} conditions; at most {MAX_NODES} are allowed", MAX_NODES + 1)],
    );
    // Of all lists together.
    let lists = |first: usize, second: usize| {
        json!({ "operator": "OR", "children": [
            { "operator": "IN", "field": "f", "value": vec![1; first] },
            { "operator": "IDS", "value": vec!["x"; second] },
        ] })
    };
    accepted(&lists(MAX_VALUES - 1, 1));
    refused(
        &lists(MAX_VALUES, 1),
        &[&format!("has {} values in lists; at most {MAX_VALUES} are allowed", MAX_VALUES + 1)],
    );
    for operator in ["IN", "NOT_IN", "ALL_IN"] {
        let condition =
            json!({ "operator": operator, "field": "f", "value": vec![1; MAX_VALUES + 1] });
        refused(
            &condition,
            &[&format!("has {} values in lists; at most {MAX_VALUES} are allowed", MAX_VALUES + 1)],
        );
    }
    for operator in ["CONTAINS", "STARTS_WITH", "ENDS_WITH", "MATCH"] {
        let text =
            |length| json!({ "operator": operator, "field": "f", "value": "x".repeat(length) });
        accepted(&text(MAX_TEXT_BYTES));
        let flaw = format!(
            "value: has {} bytes; at most {MAX_TEXT_BYTES} are allowed",
            MAX_TEXT_BYTES + 1
        );
        refused(&text(MAX_TEXT_BYTES + 1), &[&flaw]);
    }
    for operator in ["RECENT_DAYS", "EARLIER_DAYS"] {
        let days = |days: i64| json!({ "operator": operator, "field": "f", "value": days });
        accepted(&days(1));
        accepted(&days(366_000));
        for wrong in [0, 366_001, i64::from(u32::MAX)] {
            refused(&days(wrong), &["value: must be a number of days from 1 to 366000"]);
        }
    }
}

/// What RAW contains counts, too.
#[test]
fn raw_filters_have_the_same_limits() {
    let raw = |filter: Value| json!({ "operator": "RAW", "value": filter });
    let levels = |levels: usize| (1..levels).fold(json!({}), |inner, _| json!({ "a": inner }));
    accepted(&raw(levels(MAX_LEVELS)));
    refused(
        &raw(levels(MAX_LEVELS + 1)),
        &[&format!("has {} levels; at most {MAX_LEVELS} are allowed", MAX_LEVELS + 1)],
    );
    refused(
        &json!({ "operator": "AND", "children": [raw(levels(MAX_LEVELS))] }),
        &[&format!("has {} levels; at most {MAX_LEVELS} are allowed", MAX_LEVELS + 1)],
    );
    refused(
        &raw(json!({ "a": { "$in": vec![1; MAX_VALUES + 1] } })),
        &[&format!("has {} values in lists; at most {MAX_VALUES} are allowed", MAX_VALUES + 1)],
    );
    refused(
        &raw(json!({ "$or": vec![json!({ "a": 1 }); MAX_NODES] })),
        &[&format!("has {} conditions; at most {MAX_NODES} are allowed", MAX_NODES + 1)],
    );
}
