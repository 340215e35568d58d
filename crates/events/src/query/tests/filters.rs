//! The exact filter of each operator.

use std::collections::BTreeSet;

use bson::{Document, doc};
use serde_json::Value;

use super::{filter_of, operators};
use crate::query::Target;

/// Of the Thursday of the fixtures, in UTC.
const TODAY: i64 = 1_717_632_000_000;
const DAY: i64 = 86_400_000;

fn days(first: i64, count: i64) -> Document {
    let from = TODAY + first * DAY;
    doc! { "f": { "$gte": from, "$lte": from + count * DAY - 1 } }
}

/// What tests a field or the whole document in the same way for both targets.
fn of_both() -> Vec<(&'static str, Document)> {
    vec![
        (
            r#"{"operator":"AND","children":[{"field":"f","operator":"EQ","value":1}]}"#,
            doc! { "$and": [{ "f": { "$eq": 1 } }] },
        ),
        (
            r#"{"operator":"OR","children":[{"field":"f","operator":"TRUE"},{"operator":"ALL"}]}"#,
            doc! { "$or": [{ "f": { "$eq": true } }, {}] },
        ),
        (r#"{"operator":"NOR","children":[{"operator":"ALL"}]}"#, doc! { "$nor": [{}] }),
        (r#"{"operator":"ID","value":"x"}"#, doc! { "_id": "x" }),
        (r#"{"operator":"IDS","value":["x","y"]}"#, doc! { "_id": { "$in": ["x", "y"] } }),
        (r#"{"operator":"TENANT_ID","value":"t"}"#, doc! { "tenantId": "t" }),
        (r#"{"operator":"OWNER_ID","value":"o"}"#, doc! { "ownerId": "o" }),
        (r#"{"operator":"SPACE_ID","value":"s"}"#, doc! { "spaceId": "s" }),
        (r#"{"field":"f","operator":"EQ","value":"x"}"#, doc! { "f": { "$eq": "x" } }),
        (r#"{"field":"f","operator":"EQ"}"#, doc! { "f": { "$eq": "" } }),
        (r#"{"field":"f","operator":"EQ","value":null}"#, doc! { "f": { "$eq": null } }),
        (r#"{"field":"f","operator":"EQ","value":[]}"#, doc! { "f": { "$eq": [] } }),
        (r#"{"field":"f","operator":"NE","value":{}}"#, doc! { "f": { "$ne": {} } }),
        (r#"{"field":"f","operator":"GT","value":1.5}"#, doc! { "f": { "$gt": 1.5 } }),
        (r#"{"field":"f","operator":"LT","value":true}"#, doc! { "f": { "$lt": true } }),
        (
            r#"{"field":"f","operator":"GTE","value":3000000000}"#,
            doc! { "f": { "$gte": 3_000_000_000_i64 } },
        ),
        (r#"{"field":"f","operator":"LTE","value":"z"}"#, doc! { "f": { "$lte": "z" } }),
        (
            r#"{"field":"f","operator":"CONTAINS","value":"a.b"}"#,
            doc! { "f": { "$regex": "a\\.b" } },
        ),
        (
            r#"{"field":"f","operator":"STARTS_WITH","value":"a","options":{"ignoreCase":true}}"#,
            doc! { "f": { "$regex": "^a", "$options": "i" } },
        ),
        (r#"{"field":"f","operator":"ENDS_WITH","value":"a"}"#, doc! { "f": { "$regex": "a\\z" } }),
        (
            r#"{"field":"f","operator":"IN","value":[1,"x",null]}"#,
            doc! { "f": { "$in": [1, "x", null] } },
        ),
        (r#"{"field":"f","operator":"IN"}"#, doc! { "f": { "$in": [] } }),
        (r#"{"field":"f","operator":"NOT_IN","value":[1]}"#, doc! { "f": { "$nin": [1] } }),
        (
            r#"{"field":"f","operator":"BETWEEN","value":[1,2]}"#,
            doc! { "f": { "$gte": 1, "$lte": 2 } },
        ),
        (
            r#"{"field":"f","operator":"ALL_IN","value":[1,[2]]}"#,
            doc! { "f": { "$all": [1, [2]] } },
        ),
        (
            r#"{"field":"f","operator":"ELEM_MATCH","children":[{"field":"id","operator":"EQ","value":1}]}"#,
            doc! { "f": { "$elemMatch": { "id": { "$eq": 1 } } } },
        ),
        (r#"{"field":"f","operator":"NULL"}"#, doc! { "f": { "$eq": null } }),
        (r#"{"field":"f","operator":"NOT_NULL"}"#, doc! { "f": { "$ne": null } }),
        (r#"{"field":"f","operator":"TRUE"}"#, doc! { "f": { "$eq": true } }),
        (r#"{"field":"f","operator":"FALSE"}"#, doc! { "f": { "$eq": false } }),
        (r#"{"field":"f","operator":"EXISTS"}"#, doc! { "f": { "$exists": true } }),
        (r#"{"field":"f","operator":"EXISTS","value":false}"#, doc! { "f": { "$exists": false } }),
        (r#"{"field":"f","operator":"TODAY"}"#, days(0, 1)),
        (
            r#"{"field":"f","operator":"BEFORE_TODAY","value":"18:00"}"#,
            doc! { "f": { "$lt": TODAY + 18 * 3_600_000 } },
        ),
        (r#"{"field":"f","operator":"TOMORROW"}"#, days(1, 1)),
        (r#"{"field":"f","operator":"THIS_WEEK"}"#, days(-3, 7)),
        (r#"{"field":"f","operator":"NEXT_WEEK"}"#, days(4, 7)),
        (r#"{"field":"f","operator":"LAST_WEEK"}"#, days(-10, 7)),
        (r#"{"field":"f","operator":"THIS_MONTH"}"#, days(-5, 30)),
        (r#"{"field":"f","operator":"LAST_MONTH"}"#, days(-36, 31)),
        (r#"{"field":"f","operator":"RECENT_DAYS","value":3}"#, days(-2, 3)),
        (
            r#"{"field":"f","operator":"EARLIER_DAYS","value":3}"#,
            doc! { "f": { "$lt": TODAY - 2 * DAY } },
        ),
        (r#"{"operator":"MATCH","value":"x y"}"#, doc! { "$text": { "$search": "x y" } }),
        (r#"{"operator":"RAW","value":{"f":{"$size":1}}}"#, doc! { "f": { "$size": 1 } }),
        (
            r#"{"operator":"RAW","value":"{\"f\":{\"$oid\":\"665f1c2b9d3e2a0001a1b2c3\"}}"}"#,
            doc! { "f": bson::oid::ObjectId::parse_str("665f1c2b9d3e2a0001a1b2c3").unwrap() },
        ),
    ]
}

/// What differs: the filters for events, and for snapshots without the implied one.
fn of_each() -> Vec<(&'static str, Document, Document)> {
    vec![
        (r#"{"operator":"ALL"}"#, doc! {}, doc! { "deleted": false }),
        (
            r#"{"operator":"AGGREGATE_ID","value":"a"}"#,
            doc! { "aggregateId": "a" },
            doc! { "$and": [{ "deleted": false }, { "_id": "a" }] },
        ),
        (
            r#"{"operator":"AGGREGATE_IDS","value":["a"]}"#,
            doc! { "aggregateId": { "$in": ["a"] } },
            doc! { "$and": [{ "deleted": false }, { "_id": { "$in": ["a"] } }] },
        ),
        (
            r#"{"operator":"DELETED","value":"deleted"}"#,
            doc! { "deleted": true },
            doc! { "deleted": true },
        ),
        (
            r#"{"operator":"DELETED","value":false}"#,
            doc! { "deleted": false },
            doc! { "deleted": false },
        ),
        (r#"{"operator":"DELETED","value":"ALL"}"#, doc! {}, doc! {}),
        (
            r#"{"operator":"OR","children":[{"field":"id","operator":"EQ","value":1},
                {"field":"aggregateId","operator":"NE","value":2},
                {"field":"id.x","operator":"NULL"}]}"#,
            doc! { "$or": [{ "_id": { "$eq": 1 } }, { "aggregateId": { "$ne": 2 } }, { "id.x": { "$eq": null } }] },
            doc! { "$and": [{ "deleted": false }, { "$or": [
                { "id": { "$eq": 1 } }, { "_id": { "$ne": 2 } }, { "id.x": { "$eq": null } }
            ] }] },
        ),
        // The names of elements are their own; ids are of the field `_id` there too, as in Wow.
        (
            r#"{"field":"id","operator":"ELEM_MATCH","children":[{"operator":"AND","children":[
                {"field":"id","operator":"EQ","value":1},{"field":"aggregateId","operator":"EQ","value":1},
                {"operator":"ID","value":"i"},{"operator":"AGGREGATE_ID","value":"a"}]}]}"#,
            doc! { "_id": { "$elemMatch": { "$and": [
                { "id": { "$eq": 1 } }, { "aggregateId": { "$eq": 1 } }, { "_id": "i" }, { "aggregateId": "a" }
            ] } } },
            doc! { "$and": [{ "deleted": false }, { "id": { "$elemMatch": { "$and": [
                { "id": { "$eq": 1 } }, { "aggregateId": { "$eq": 1 } }, { "_id": "i" }, { "_id": "a" }
            ] } } }] },
        ),
    ]
}

#[test]
fn each_operator_has_its_filter() {
    let mut found = BTreeSet::new();
    let mut note = |text: &str| {
        let json: Value = serde_json::from_str(text).unwrap();
        found.insert(json["operator"].as_str().unwrap().to_owned());
    };
    for (text, filter) in of_both() {
        note(text);
        assert_eq!(filter_of(text, Target::Events), filter, "{text}");
        let active = doc! { "$and": [{ "deleted": false }, filter] };
        assert_eq!(filter_of(text, Target::Snapshots), active, "{text}");
    }
    for (text, events, snapshots) in of_each() {
        note(text);
        assert_eq!(filter_of(text, Target::Events), events, "{text}");
        assert_eq!(filter_of(text, Target::Snapshots), snapshots, "{text}");
    }
    assert_eq!(found, operators().into_iter().collect());
}

/// Only at the root, and directly in an AND there, as in Wow.
#[test]
fn only_the_root_decides_whether_deleted_snapshots_are_meant() {
    let deleted = r#"{"operator":"DELETED","value":"DELETED"}"#;
    for (text, decides) in [
        (deleted.to_owned(), true),
        (format!(r#"{{"operator":"AND","children":[{{"operator":"ALL"}},{deleted}]}}"#), true),
        (format!(r#"{{"operator":"OR","children":[{deleted}]}}"#), false),
        (format!(r#"{{"operator":"NOR","children":[{deleted}]}}"#), false),
        (
            format!(
                r#"{{"operator":"AND","children":[{{"operator":"AND","children":[{deleted}]}}]}}"#
            ),
            false,
        ),
        (r#"{"operator":"RAW","value":{"deleted":true}}"#.to_owned(), false),
        (r#"{"field":"deleted","operator":"TRUE"}"#.to_owned(), false),
    ] {
        let events = filter_of(&text, Target::Events);
        let expected = if decides {
            events.clone()
        } else {
            doc! { "$and": [{ "deleted": false }, events.clone()] }
        };
        assert_eq!(filter_of(&text, Target::Snapshots), expected, "{text}");
    }
}
