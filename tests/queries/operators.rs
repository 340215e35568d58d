//! What each operator finds, in documents that the stores have written.

use std::collections::BTreeSet;

use bson::{Bson, DateTime, Document, bson, doc};
use postrider::events::query::{Query, QueryError, Target};
use postrider::events::{Append, NewEvent};
use postrider::names::AggregateId;
use postrider::snapshot::Snapshot;
use serde_json::{Value, json};

use crate::world::{World, condition, found, ids, order, part, query};

fn id(text: &str) -> AggregateId {
    AggregateId::new(text).unwrap()
}

/// Today at 12:00 UTC, some days away.
fn noon(days: i64) -> i64 {
    let today = DateTime::now().timestamp_millis().div_euclid(86_400_000);
    (today + days) * 86_400_000 + 43_200_000
}

async fn save(world: &World, aggregate: &str, state: Document) {
    let snapshot = match aggregate {
        "deleted" => Snapshot { deleted: true, ..Snapshot::new(id(aggregate), 1, state) },
        "a" => Snapshot {
            tenant_id: Some("t".into()),
            owner_id: Some("o".into()),
            ..Snapshot::new(id(aggregate), 7, state)
        },
        _ => Snapshot::new(id(aggregate), 1, state),
    };
    world.snapshots().save(&order(), snapshot).await.unwrap();
}

/// Four snapshots, one of which is deleted.
async fn snapshots() -> World {
    let world = World::new().await;
    save(
        &world,
        "a",
        doc! {
            "status": "PAID", "total": 5, "note": "Urgent: a.b+c\n", "paid": true, "gone": Bson::Null,
            "tags": ["x", "y"], "at": noon(0), "items": [{ "sku": "p", "count": 2 }, { "sku": "q", "count": 1 }],
        },
    )
    .await;
    save(
        &world,
        "b",
        doc! {
            "status": "OPEN", "total": 7.5, "note": "axb", "paid": false, "tags": ["x"], "at": noon(1),
            "items": [{ "sku": "p", "count": 1 }, { "sku": "q", "count": 2 }],
        },
    )
    .await;
    save(&world, "c", doc! { "total": "5", "note": "URGENT", "tags": "x", "at": noon(-400) }).await;
    save(&world, "deleted", doc! { "status": "PAID", "total": 5 }).await;
    // A field of documents that Wow has written.
    let of_c = doc! { "$set": { "spaceId": "s" } };
    world.collection(Target::Snapshots).update_one(doc! { "_id": "c" }, of_c).await.unwrap();
    world.create_index(Target::Snapshots, doc! { "state.note": "text" }).await;
    world
}

fn cases() -> Vec<(Value, &'static [&'static str])> {
    let of = |operator: &str, field: &str, value: Value| json!({ "operator": operator, "field": format!("state.{field}"), "value": value });
    let alone = |operator: &str, field: &str| json!({ "operator": operator, "field": format!("state.{field}") });
    let id = |operator: &str, value: Value| json!({ "operator": operator, "value": value });
    let with = |operator: &str, children: Vec<Value>| json!({ "operator": operator, "children": children });
    let paid = || of("EQ", "status", json!("PAID"));
    let sku = || json!({ "operator": "EQ", "field": "sku", "value": "p" });
    let two = || json!({ "operator": "EQ", "field": "count", "value": 2 });
    let elem = |child: Value| json!({ "operator": "ELEM_MATCH", "field": "state.items", "children": [child] });
    vec![
        (id("ALL", json!("")), &["a", "b", "c"]),
        (with("AND", vec![paid(), of("GT", "total", json!(4))]), &["a"]),
        (with("OR", vec![paid(), of("EQ", "status", json!("OPEN"))]), &["a", "b"]),
        (with("NOR", vec![paid(), of("EQ", "total", json!("5"))]), &["b"]),
        (id("ID", json!("b")), &["b"]),
        (id("IDS", json!(["b", "c", "x"])), &["b", "c"]),
        (id("AGGREGATE_ID", json!("c")), &["c"]),
        (id("AGGREGATE_IDS", json!(["a", "deleted"])), &["a"]),
        (id("TENANT_ID", json!("t")), &["a"]),
        (id("OWNER_ID", json!("o")), &["a"]),
        (id("SPACE_ID", json!("s")), &["c"]),
        (id("DELETED", json!("ACTIVE")), &["a", "b", "c"]),
        (id("DELETED", json!(true)), &["deleted"]),
        (id("DELETED", json!("ALL")), &["a", "b", "c", "deleted"]),
        (with("AND", vec![id("DELETED", json!("ALL")), paid()]), &["a", "deleted"]),
        (with("OR", vec![id("DELETED", json!("DELETED")), paid()]), &["a"]),
        (paid(), &["a"]),
        (json!({ "operator": "EQ", "field": "aggregateId", "value": "b" }), &["b"]),
        (json!({ "operator": "EQ", "field": "version", "value": 7.0 }), &["a"]),
        (of("EQ", "tags", json!("x")), &["a", "b", "c"]),
        (of("EQ", "tags", json!(["x"])), &["b"]),
        (of("EQ", "gone", json!(null)), &["a", "b", "c"]),
        (of("NE", "status", json!("PAID")), &["b", "c"]),
        (of("GT", "total", json!(5)), &["b"]),
        (of("GTE", "total", json!(5)), &["a", "b"]),
        (of("LT", "total", json!(7.5)), &["a"]),
        (of("LTE", "total", json!("5")), &["c"]),
        (of("CONTAINS", "note", json!("a.b")), &["a"]),
        (of("CONTAINS", "note", json!("")), &["a", "b", "c"]),
        (of("STARTS_WITH", "note", json!("Urgent")), &["a"]),
        (
            json!({ "operator": "STARTS_WITH", "field": "state.note", "value": "urg",
                "options": { "ignoreCase": true } }),
            &["a", "c"],
        ),
        (of("ENDS_WITH", "note", json!("b")), &["b"]),
        // The end is behind the newline.
        (of("ENDS_WITH", "note", json!("c")), &[]),
        (of("ENDS_WITH", "note", json!("+c\n")), &["a"]),
        (of("IN", "status", json!(["PAID", "OPEN", 1])), &["a", "b"]),
        (of("IN", "status", json!([])), &[]),
        (of("IN", "status", json!([null])), &["c"]),
        (of("NOT_IN", "status", json!(["PAID"])), &["b", "c"]),
        (of("NOT_IN", "status", json!([])), &["a", "b", "c"]),
        (of("BETWEEN", "total", json!([5, 7])), &["a"]),
        (of("BETWEEN", "total", json!([7, 5])), &[]),
        (of("ALL_IN", "tags", json!(["y", "x"])), &["a"]),
        (of("ALL_IN", "tags", json!([])), &[]),
        (elem(with("AND", vec![sku(), two()])), &["a"]),
        (elem(sku()), &["a", "b"]),
        (elem(json!({})), &["a", "b"]),
        (alone("NULL", "gone"), &["a", "b", "c"]),
        (alone("NULL", "status"), &["c"]),
        (alone("NOT_NULL", "status"), &["a", "b"]),
        (alone("TRUE", "paid"), &["a"]),
        (alone("FALSE", "paid"), &["b"]),
        (alone("EXISTS", "gone"), &["a"]),
        (of("EXISTS", "gone", json!(false)), &["b", "c"]),
        (alone("TODAY", "at"), &["a"]),
        (alone("TOMORROW", "at"), &["b"]),
        (of("BEFORE_TODAY", "at", json!("12:00")), &["c"]),
        (of("BEFORE_TODAY", "at", json!("12:00:01")), &["a", "c"]),
        (of("RECENT_DAYS", "at", json!(1)), &["a"]),
        (of("RECENT_DAYS", "at", json!(500)), &["a", "c"]),
        (of("EARLIER_DAYS", "at", json!(1)), &["c"]),
        (json!({ "operator": "MATCH", "value": "urgent" }), &["a", "c"]),
        (json!({ "operator": "MATCH", "value": "" }), &[]),
        (json!({ "operator": "RAW", "value": { "state.tags": { "$size": 1 } } }), &["b"]),
        (json!({ "operator": "RAW", "value": "{\"version\": {\"$numberLong\": \"7\"}}" }), &["a"]),
        (json!({ "operator": "RAW", "value": { "deleted": true } }), &[]),
    ]
}

/// The other operators of periods: those of weeks and months. `dates` has their bounds.
const PERIODS: [&str; 5] = ["THIS_WEEK", "NEXT_WEEK", "LAST_WEEK", "THIS_MONTH", "LAST_MONTH"];

#[fixture::test]
async fn each_operator_finds_its_snapshots() {
    let world = snapshots().await;
    let queries = world.queries();
    let mut operators = BTreeSet::from(PERIODS.map(str::to_owned));
    let day = noon(0);
    for (json, expected) in cases() {
        operators.insert(json["operator"].as_str().unwrap().to_owned());
        let condition = condition(json.clone());

        let found = found(&queries, Target::Snapshots, &condition).await;

        if noon(0) != day {
            return; // A new day: what is expected was yesterday.
        }
        assert_eq!(found, expected.iter().map(|id| bson!(id)).collect::<Vec<_>>(), "{json}");
        let count = queries.count(Target::Snapshots, &order(), &query(condition)).await.unwrap();
        assert_eq!(count, expected.len() as u64, "{json}");
    }
    assert_eq!(operators.len(), 43, "{operators:?}");
}

/// Appends by the event store, one of two events.
async fn events() -> World {
    let world = World::new().await;
    let store = world.events();
    let event = |name: &str, body: Document| NewEvent::new(name, body);
    let append = |aggregate: &str, request: &str, events| {
        Append::new(order(), id(aggregate), request, events)
    };
    let placed = event("OrderPlaced", doc! { "total": 5, "note": "first order" });
    let paid = event("OrderPaid", doc! { "total": 7, "tags": ["x"] });
    let first = Append {
        tenant_id: Some("t".into()),
        owner_id: Some("o".into()),
        command_id: Some("c".into()),
        header: doc! { "user": "ada" },
        ..append("a", "1", vec![placed.clone(), paid.clone()])
    };
    store.append(first).await.unwrap();
    store.append(append("a", "2", vec![event("OrderPaid", doc! { "total": 5 })])).await.unwrap();
    store.append(append("b", "3", vec![placed])).await.unwrap();
    let of_b = doc! { "$set": { "spaceId": "s", "header.gone": null } };
    world.collection(Target::Events).update_one(doc! { "aggregateId": "b" }, of_b).await.unwrap();
    world.create_index(Target::Events, doc! { "body.body.note": "text" }).await;
    world
}

#[fixture::test]
async fn each_operator_finds_its_events() {
    let world = events().await;
    let queries = world.queries();
    let mut stored = Vec::new();
    for request in ["1", "2", "3"] {
        let filter = doc! { "requestId": request };
        let found = world.collection(Target::Events).find_one(filter).await.unwrap().unwrap();
        stored.push(found.get_str("_id").unwrap().to_owned());
    }
    let [first, _, third] = [0, 1, 2].map(|at: usize| stored[at].clone());
    let eq =
        |field: &str, value: Value| json!({ "operator": "EQ", "field": field, "value": value });
    let elem =
        |child: Value| json!({ "operator": "ELEM_MATCH", "field": "body", "children": [child] });
    let both = |children: Vec<Value>| json!({ "operator": "AND", "children": children });
    let placed = || eq("name", json!("OrderPlaced"));
    for (json, expected) in [
        (json!({}), &["1", "2", "3"][..]),
        (json!({ "operator": "ID", "value": first }), &["1"]),
        (json!({ "operator": "IDS", "value": [first, third] }), &["1", "3"]),
        (eq("id", json!(third)), &["3"]),
        (json!({ "operator": "AGGREGATE_ID", "value": "a" }), &["1", "2"]),
        (json!({ "operator": "AGGREGATE_IDS", "value": ["b"] }), &["3"]),
        (eq("aggregateId", json!("b")), &["3"]),
        (json!({ "operator": "TENANT_ID", "value": "t" }), &["1"]),
        (json!({ "operator": "OWNER_ID", "value": "o" }), &["1"]),
        (json!({ "operator": "SPACE_ID", "value": "s" }), &["3"]),
        (json!({ "operator": "DELETED", "value": "ACTIVE" }), &[]),
        (json!({ "operator": "DELETED", "value": "ALL" }), &["1", "2", "3"]),
        (both(vec![eq("aggregateId", json!("a")), eq("version", json!(2))]), &["2"]),
        (
            json!({ "operator": "OR", "children": [eq("version", json!(2)), eq("size", json!(2))] }),
            &["1", "2"],
        ),
        (json!({ "operator": "NOR", "children": [eq("body.name", json!("OrderPlaced"))] }), &["2"]),
        (eq("body.name", json!("OrderPaid")), &["1", "2"]),
        (eq("body.1.name", json!("OrderPaid")), &["1"]),
        (json!({ "operator": "NE", "field": "commandId", "value": "c" }), &["2", "3"]),
        (json!({ "operator": "GT", "field": "body.body.total", "value": 5 }), &["1"]),
        (json!({ "operator": "GTE", "field": "version", "value": 2 }), &["2"]),
        (json!({ "operator": "LT", "field": "version", "value": 2 }), &["1", "3"]),
        (json!({ "operator": "LTE", "field": "size", "value": 1 }), &["2", "3"]),
        (json!({ "operator": "CONTAINS", "field": "body.name", "value": "Pl" }), &["1", "3"]),
        (json!({ "operator": "STARTS_WITH", "field": "header.user", "value": "a" }), &["1"]),
        (json!({ "operator": "ENDS_WITH", "field": "body.name", "value": "Paid" }), &["1", "2"]),
        (json!({ "operator": "IN", "field": "requestId", "value": ["2", "3"] }), &["2", "3"]),
        (json!({ "operator": "NOT_IN", "field": "requestId", "value": ["2", "3"] }), &["1"]),
        (json!({ "operator": "BETWEEN", "field": "version", "value": [2, 9] }), &["2"]),
        (
            json!({ "operator": "ALL_IN", "field": "body.name", "value": ["OrderPaid", "OrderPlaced"] }),
            &["1"],
        ),
        (elem(both(vec![placed(), eq("body.total", json!(5))])), &["1", "3"]),
        (elem(both(vec![placed(), eq("body.total", json!(7))])), &[]),
        (json!({ "operator": "NULL", "field": "header.user" }), &["2", "3"]),
        (json!({ "operator": "NOT_NULL", "field": "header.user" }), &["1"]),
        (json!({ "operator": "EXISTS", "field": "header.gone" }), &["3"]),
        (json!({ "operator": "TRUE", "field": "size" }), &[]),
        (json!({ "operator": "FALSE", "field": "size" }), &[]),
        (json!({ "operator": "RECENT_DAYS", "field": "createTime", "value": 2 }), &["1", "2", "3"]),
        (json!({ "operator": "EARLIER_DAYS", "field": "createTime", "value": 2 }), &[]),
        (json!({ "operator": "MATCH", "value": "order" }), &["1", "3"]),
        (json!({ "operator": "RAW", "value": { "body": { "$size": 2 } } }), &["1"]),
    ] {
        let query = query(condition(json.clone()));

        let (found, _) = part(&queries, Target::Events, &query, 1_000, None).await.unwrap();

        let mut requests: Vec<&str> =
            found.iter().map(|found| found.get_str("requestId").unwrap()).collect();
        requests.sort_unstable();
        assert_eq!(requests, expected, "{json}");
    }
}

/// Also what a client writes to reach more than its scope.
#[fixture::test]
async fn a_scope_holds_whatever_the_condition_is() {
    use postrider::events::query::QueryScope;

    let world = snapshots().await;
    let queries = world.queries();
    for json in [
        json!({}),
        json!({ "operator": "DELETED", "value": "ALL" }),
        json!({ "operator": "TENANT_ID", "value": "other" }),
        json!({ "operator": "RAW", "value": { "$or": [{ "tenantId": "other" }, {}] } }),
        json!({ "operator": "OR", "children": [{}, { "operator": "EXISTS", "field": "_id" }] }),
        json!({ "operator": "NOR", "children": [{ "operator": "TENANT_ID", "value": "t" }] }),
    ] {
        for (scope, own) in [
            (QueryScope { tenant_id: Some("t".into()), ..QueryScope::default() }, "a"),
            (QueryScope { owner_id: Some("o".into()), ..QueryScope::default() }, "a"),
            (QueryScope { space_id: Some("s".into()), ..QueryScope::default() }, "c"),
            (
                QueryScope {
                    tenant_id: Some("t".into()),
                    space_id: Some("s".into()),
                    ..QueryScope::default()
                },
                "-",
            ),
        ] {
            let query = Query { scope, ..query(condition(json.clone())) };
            let (found, _) = part(&queries, Target::Snapshots, &query, 10, None).await.unwrap();
            assert!(ids(&found).iter().all(|id| id.as_str() == Some(own)), "{json}: {found:?}");
            let count = queries.count(Target::Snapshots, &order(), &query).await.unwrap();
            assert_eq!(count, found.len() as u64);
        }
    }
}

#[fixture::test]
async fn raw_is_refused_unless_it_is_allowed() {
    let world = snapshots().await;
    let queries = world.queries_with(postrider::events::query::QuerySettings::default());
    let raw = query(condition(json!({ "operator": "RAW", "value": {} })));

    let refused = queries.count(Target::Snapshots, &order(), &raw).await.unwrap_err();

    let QueryError::Invalid(flaws) = refused else { panic!("{refused}") };
    assert_eq!(
        flaws.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["condition.operator: RAW is disabled; set queries.raw = true to enable it"]
    );
}
