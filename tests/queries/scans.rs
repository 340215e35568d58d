//! How many documents MongoDB reads for a query, whatever its condition says.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use postrider::context::CollectionKind;
use postrider::events::query::{
    Condition, Direction, Page, Query, QueryError, QueryScope, QueryService, QuerySettings,
    ScanPolicy, SortKey, Target,
};
use serde_json::{Value, json};

use crate::world::{World, condition, field, ids, order, part, query};

const MAX_SCAN: i64 = 50;

/// More than ten times as many.
const COUNT: i32 = 1_200;

/// The documents of tenant u; all others are of tenant t.
const OF_U: i32 = 400;

fn queries(world: &World) -> QueryService {
    let max_scan = MAX_SCAN.unsigned_abs();
    world.queries_with(QuerySettings { max_scan, raw: true, ..QuerySettings::default() })
}

/// Events with the indexes of Postrider and some of an operator. One in the middle has a needle.
async fn world() -> World {
    let world = World::new().await;
    world.context.ready(CollectionKind::Events, "order").await.unwrap();
    for keys in [doc! { "position": 1, "createTime": 1 }, doc! { "t": 1 }, doc! { "tags": 1 }] {
        world.create_index(Target::Events, keys).await;
    }
    let partial = doc! { "createIndexes": "order_event_stream", "indexes": [
        { "key": { "p": 1 }, "name": "p", "partialFilterExpression": { "t": { "$gt": "t5" } } }
    ] };
    world.outbox.admin.database().run_command(partial).await.unwrap();
    let document = |id: i32| {
        doc! {
            "_id": format!("a{id:04}"), "aggregateId": format!("a{id:04}"), "requestId": "r", "version": 1,
            "tenantId": if id < OF_U { "u" } else { "t" }, "ownerId": "o", "position": id, "createTime": id,
            "t": format!("t{}", id % 10), "tags": ["all", format!("x{id}")], "p": id,
            "note": if id == 250 { "a needle" } else { "hay" },
        }
    };
    world.insert(Target::Events, (0..COUNT).map(document)).await;
    world
}

/// The server writes down what it executes from here on.
async fn profile(world: &World) {
    let database = world.outbox.admin.database();
    database.run_command(doc! { "profile": 0 }).await.unwrap();
    database.collection::<Document>("system.profile").drop().await.unwrap();
    database.run_command(doc! { "profile": 2 }).await.unwrap();
}

/// The most documents that one command has examined, and the number of all.
async fn examined(world: &World) -> (i64, i64) {
    let database = world.outbox.admin.database();
    let profile = database.collection::<Document>("system.profile");
    let found = profile.find(doc! { "ns": { "$regex": "order_event_stream$" } }).await.unwrap();
    let found: Vec<Document> = found.try_collect().await.unwrap();
    let examined = |operation: &Document| match operation.get("docsExamined") {
        Some(number) => number.as_i64().or(number.as_i32().map(i64::from)).unwrap(),
        None => 0,
    };
    let all: Vec<i64> = found.iter().map(examined).collect();
    (all.iter().copied().max().unwrap_or(0), all.iter().sum())
}

fn needle() -> Value {
    json!({ "operator": "CONTAINS", "field": "note", "value": "needle" })
}

fn of(operator: &str, field: &str, value: Value) -> Value {
    json!({ "operator": operator, "field": field, "value": value })
}

fn and(children: Vec<Value>) -> Query {
    query(condition(json!({ "operator": "AND", "children": children })))
}

/// The conditions that are always true, or nearly, of an indexed field: none of them hides a scan.
fn always_true() -> Vec<Value> {
    let many: Vec<Value> = (0..50).map(|n| of("CONTAINS", "t", json!(format!("y{n}")))).collect();
    vec![
        of("GTE", "aggregateId", json!(" ")),
        of("GTE", "id", json!(" ")),
        of("GTE", "position", json!(-1)),
        of("BETWEEN", "id", json!(["!", "~"])),
        of("LTE", "aggregateId", json!("~")),
        of("NE", "t", json!("none")),
        of("STARTS_WITH", "id", json!("a")),
        json!({ "operator": "OR", "children": [
            of("LT", "id", json!("a0600")), of("GTE", "id", json!("a0600"))
        ] }),
        json!({ "operator": "OR", "children": [
            of("LT", "id", json!("a0600")), of("GTE", "position", json!(600))
        ] }),
        json!({ "operator": "AND", "children": [
            of("GTE", "id", json!(" ")), { "operator": "NOR", "children": many }
        ] }),
        of("EQ", "tenantId", json!("t")),
        of("EQ", "tags", json!("all")),
        json!({ "operator": "AND", "children": [
            of("GTE", "tags", json!("all")), of("LT", "tags", json!("all"))
        ] }),
        json!({ "operator": "RAW", "value": { "position": { "$type": "double" } } }),
        json!({ "operator": "AND", "children": [
            of("EQ", "tenantId", json!("t")), of("EQ", "tenantId", json!("none"))
        ] }),
    ]
}

#[fixture::test]
async fn no_condition_that_is_always_true_hides_a_scan() {
    let world = world().await;
    for always in always_true() {
        let all = and(vec![always.clone(), needle()]);
        // As Wow's clients ask, and with an order of their own.
        let natural = Query { is_total: false, ..all.clone() };
        let position = SortKey { field: field("position"), direction: Direction::Desc };
        let sorted = Query { sort: vec![position], is_total: false, ..all.clone() };
        for query in [all, natural, sorted] {
            let queries = queries(&world);
            profile(&world).await;
            let listed = part(&queries, Target::Events, &query, 1_000, None).await.map(drop);
            let page = Page { index: 1, size: 100 };
            let paged = queries.page(Target::Events, &order(), &query, page).await.map(drop);
            let counted = queries.count(Target::Events, &order(), &query).await.map(drop);
            for refused in [listed, paged, counted] {
                let refused = refused.unwrap_err();
                let is_refused =
                    matches!(refused, QueryError::Broad { .. } | QueryError::Scan { .. });
                assert!(is_refused, "{always}: {refused:?}");
            }
            let (most, _) = examined(&world).await;
            let is_point = ["EQ", "AND"].contains(&always["operator"].as_str().unwrap());
            let limit = if is_point { 10 * MAX_SCAN } else { MAX_SCAN };
            assert!(most <= limit, "{most} documents for {always}");
        }
    }
}

/// What begins behind a cursor is measured from there on.
#[fixture::test]
async fn a_cursor_hides_no_scan() {
    let world = world().await;
    let queries = queries(&world);
    let early = json!({ "operator": "OR", "children": [of("LT", "version", json!(2)), needle()] });
    let dense = and(vec![of("GTE", "id", json!(" ")), early]);
    let (_, next) = part(&queries, Target::Events, &dense, 10, None).await.unwrap();
    let rare = and(vec![of("GTE", "id", json!(" ")), needle()]);
    profile(&world).await;

    let refused = part(&queries, Target::Events, &rare, 10, next.as_deref()).await.unwrap_err();

    assert!(matches!(refused, QueryError::Broad { limit: 50, .. }), "{refused:?}");
    assert_eq!(
        refused.to_string(),
        "this query would read more than 50 documents of order_event_stream (queries.max_scan); add a condition on an \
         indexed field that finds fewer, or create an index on the fields of the condition and the sort"
    );
    assert!(examined(&world).await.0 <= MAX_SCAN);
}

/// A list that finds enough soon is read from the index of its order, to its end.
#[fixture::test]
async fn what_is_found_soon_is_read_without_a_limit() {
    let world = world().await;
    let queries = queries(&world);
    let nearly_all = and(vec![of("NE", "t", json!("none")), of("NE", "note", json!("a needle"))]);
    profile(&world).await;
    let (mut all, mut after) = (Vec::new(), None);

    loop {
        let listed = part(&queries, Target::Events, &nearly_all, 40, after.as_deref());
        let (found, next) = listed.await.unwrap();
        all.extend(ids(&found));
        after = next;
        if after.is_none() {
            break;
        }
    }

    let expected = (0..COUNT).filter(|id| *id != 250).map(|id| format!("a{id:04}").into());
    assert_eq!(all, expected.collect::<Vec<bson::Bson>>());
    assert!(examined(&world).await.0 <= MAX_SCAN);
}

/// Answers are the same, whichever way they are read.
#[fixture::test]
async fn queries_that_an_index_bounds_are_answered() {
    let world = world().await;
    let found_by = async |queries: &QueryService, query: &Query, limit: u32| {
        let (found, _) = part(queries, Target::Events, query, limit, None).await.unwrap();
        let page = Page { index: 1, size: 100 };
        let paged = queries.page(Target::Events, &order(), query, page).await.unwrap();
        (ids(&found), paged.total, queries.count(Target::Events, &order(), query).await.unwrap())
    };
    let position = SortKey { field: field("position"), direction: Direction::Desc };
    let u = QueryScope { tenant_id: Some("u".into()), ..QueryScope::default() };
    let range =
        |field: &str| vec![of("GTE", field, json!(230)), of("LT", field, json!(270)), needle()];
    let near = |from: &str, to: &str| of("BETWEEN", "id", json!([from, to]));
    let two = json!({ "operator": "OR", "children": [
        near("a0240", "a0255"), of("EQ", "aggregateId", json!("a0777"))
    ] });
    let raw = |filter: Value| json!({ "operator": "RAW", "value": filter });
    for (query, count) in [
        (and(range("position")), 1),
        (Query { sort: vec![position.clone()], ..and(range("position")) }, 1),
        (Query { is_total: false, ..and(range("position")) }, 1),
        (and(vec![near("a0240", "a0255"), needle()]), 1),
        (and(vec![of("STARTS_WITH", "id", json!("a02")), near("a0249", "a0251"), needle()]), 1),
        (and(vec![two.clone(), of("NE", "t", json!("none"))]), 17),
        (and(vec![two, needle()]), 1),
        (Query { scope: u.clone(), ..query(condition(needle())) }, 1),
        (Query { scope: u, sort: vec![position], ..query(Condition::All) }, 400),
        (and(vec![of("EQ", "tags", json!("x250")), needle()]), 1),
        (and(vec![of("ALL_IN", "tags", json!(["x250", "all"])), needle()]), 1),
        (
            and(vec![raw(json!({ "p": 255, "t": { "$gt": "t5" } })), of("NE", "note", json!("x"))]),
            0,
        ),
        (
            and(vec![raw(json!({ "p": 257, "t": { "$gt": "t5" } })), of("NE", "note", json!("x"))]),
            1,
        ),
        (and(vec![raw(json!({ "position": { "$type": "bool" } })), needle()]), 0),
        (and(vec![of("EQ", "t", json!(null)), needle()]), 0),
        (and(vec![of("EXISTS", "t", json!(false)), needle()]), 0),
        (and(vec![of("IN", "id", json!(["a0250", "a0251", "none"])), needle()]), 1),
    ] {
        let free = QuerySettings { scans: ScanPolicy::Warn, raw: true, ..QuerySettings::default() };
        for limit in [60, 1_000] {
            profile(&world).await;
            let bounded = found_by(&queries(&world), &query, limit).await;
            let (most, _) = examined(&world).await;

            let free = found_by(&world.queries_with(free.clone()), &query, limit).await;
            assert_eq!(bounded, free, "{query:?}");
            assert_eq!((bounded.1, bounded.2), (count, count), "{query:?}");
            assert!(most <= 10 * MAX_SCAN, "{most} documents for {query:?}");
        }
    }
}

/// A batch is small until the size of the documents is known; a list ends with a cursor behind a MiB.
#[fixture::test]
async fn batches_follow_the_size_of_documents() {
    let world = World::new().await;
    let text = "x".repeat(100 << 10);
    let document = |id: i32| doc! { "_id": format!("{id:03}"), "text": &text };
    world.insert(Target::Events, (0..100).map(document)).await;
    let recorder = crate::support::command_recorder::CommandRecorder::on(&world.outbox).await;
    let client = recorder.collections.client().clone();
    let context = crate::world::context(&world.outbox, client);
    let queries = QueryService::new(context, QuerySettings::default());

    let (all, mut found, mut after) = (query(Condition::All), Vec::new(), None::<String>);
    loop {
        let next = part(&queries, Target::Events, &all, 100, after.as_deref()).await.unwrap();
        let bytes = next.0.len() * text.len();
        assert!(bytes < (1 << 20) + 2 * text.len(), "{bytes} bytes");
        found.extend(next.0);
        after = next.1;
        if after.is_none() {
            break;
        }
    }
    let ids = found.iter().map(|document| document.get_str("_id").unwrap().to_owned());
    assert_eq!(ids.collect::<Vec<_>>(), (0..100).map(|id| format!("{id:03}")).collect::<Vec<_>>());

    let sizes: Vec<i32> = recorder
        .commands("find")
        .iter()
        .map(|find| find.sent.get_i32("batchSize").unwrap())
        .collect();
    assert_eq!(sizes[0], 20);
    assert!(sizes.len() > 2 && sizes[1..].iter().all(|size| *size == 10), "{sizes:?}");
}
