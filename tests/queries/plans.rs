//! Which queries read a whole collection, and what happens to them.

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use postrider::context::CollectionKind;
use postrider::events::query::{
    Condition, Direction, Page, Query, QueryError, QueryScope, QueryService, QuerySettings,
    ScanPolicy, SortKey, Target,
};
use serde_json::{Value, json};

use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::eventually;
use crate::world::{World, condition, context, field, order, part, query, sorted};

/// More than a scan may read.
const COUNT: i32 = 60;

fn settings(scans: ScanPolicy) -> QuerySettings {
    QuerySettings { max_scan: 50, scans, raw: true, ..QuerySettings::default() }
}

fn strict(world: &World) -> QueryService {
    world.queries_with(settings(ScanPolicy::Refuse))
}

async fn world() -> World {
    let world = World::new().await;
    let document = |id: i32| {
        doc! { "_id": format!("{id:03}"), "k": id, "t": format!("t{}", id % 10), "x": id % 2, "deleted": false }
    };
    for target in [Target::Events, Target::Snapshots] {
        world.insert(target, (0..COUNT).map(document)).await;
    }
    world
}

fn by(name: &str, direction: Direction) -> SortKey {
    SortKey { field: field(name), direction }
}

/// Whether a query is refused as a scan, whichever call it is of.
async fn is_scan(queries: &QueryService, target: Target, query: &Query) -> bool {
    let listed = part(queries, target, query, 10, None).await.map(drop);
    let paged = queries.page(target, &order(), query, Page { index: 1, size: 10 }).await.map(drop);
    let counted = queries.count(target, &order(), query).await.map(drop);
    let single = queries.single(target, &order(), query).await.map(drop);
    let is_refused = |result: &Result<(), QueryError>| match result {
        Ok(()) => false,
        Err(QueryError::Scan(scan)) => {
            let collection = match target {
                Target::Events => "order_event_stream",
                Target::Snapshots => "order_snapshot",
            };
            assert_eq!((&*scan.collection, scan.documents), (collection, COUNT as u64));
            true
        }
        Err(other) => panic!("{other:?}"),
    };
    let refused = is_refused(&listed);
    assert_eq!(is_refused(&paged), refused, "page of {query:?}");
    // They have no order, or none by the id.
    assert!(refused || !is_refused(&counted), "count of {query:?}");
    assert!(refused || !is_refused(&single), "single of {query:?}");
    refused
}

#[fixture::test]
async fn a_query_without_an_index_is_refused() {
    let world = world().await;
    world.create_index(Target::Events, doc! { "k": 1, "_id": 1 }).await;
    world.create_index(Target::Events, doc! { "t": 1 }).await;
    world.create_index(Target::Events, doc! { "x": "hashed" }).await;
    let of = |json: Value| query(condition(json));
    let eq = |name: &str| json!({ "operator": "EQ", "field": name, "value": 1 });
    let text =
        |operator: &str, text: &str| json!({ "operator": operator, "field": "t", "value": text });
    for (query, is_refused) in [
        (query(Condition::All), false),
        (of(json!({ "operator": "ID", "value": "003" })), false),
        (of(json!({ "operator": "IDS", "value": ["003", "x"] })), false),
        (of(eq("k")), false),
        (of(eq("x")), false),
        (of(eq("none")), true),
        (of(json!({ "operator": "AND", "children": [eq("none"), eq("k")] })), false),
        (of(json!({ "operator": "OR", "children": [eq("x"), eq("k")] })), false),
        (of(json!({ "operator": "OR", "children": [eq("none"), eq("k")] })), true),
        (of(json!({ "operator": "NOR", "children": [eq("none")] })), true),
        (of(json!({ "operator": "TODAY", "field": "k" })), false),
        (of(json!({ "operator": "TODAY", "field": "none" })), true),
        (of(text("STARTS_WITH", "t1")), false),
        // All keys of the index are read for these.
        (of(text("STARTS_WITH", "")), true),
        (of(text("CONTAINS", "1")), true),
        (of(text("ENDS_WITH", "1")), true),
        (
            Query {
                sort: vec![by("t", Direction::Desc)],
                is_total: false,
                ..of(text("CONTAINS", "1"))
            },
            true,
        ),
        (
            of(
                json!({ "operator": "STARTS_WITH", "field": "t", "value": "t1", "options": { "ignoreCase": true } }),
            ),
            true,
        ),
        (of(json!({ "operator": "RAW", "value": { "t": { "$type": "string" } } })), true),
        (sorted(vec![by("k", Direction::Desc), by("id", Direction::Desc)]), false),
        (sorted(vec![by("k", Direction::Asc)]), false),
        // Its index has no id, which ends the order.
        (sorted(vec![by("t", Direction::Asc)]), true),
        (Query { is_total: false, ..sorted(vec![by("t", Direction::Asc)]) }, false),
        (sorted(vec![by("none", Direction::Asc)]), true),
        (Query { sort: vec![by("none", Direction::Asc)], ..of(eq("k")) }, false),
        (Query { sort: vec![by("k", Direction::Asc)], ..of(eq("none")) }, true),
    ] {
        // A service each: a second one shows that nothing depends on what was asked before.
        for queries in [strict(&world), strict(&world)] {
            assert_eq!(is_scan(&queries, Target::Events, &query).await, is_refused, "{query:?}");
        }
    }
    let refused =
        part(&strict(&world), Target::Events, &of(eq("none")), 1, None).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "no index serves this query, which would read all of order_event_stream, about 60 \
         documents; add a condition on an indexed field, or create an index on the fields of the \
         condition and the sort"
    );
}

/// The indexes that Postrider creates serve what they are for, and hide no scan. All documents are of one
/// tenant, as in many systems.
#[fixture::test]
async fn own_indexes_serve_ids_tenants_and_owners_only() {
    let world = World::new().await;
    for (target, kind) in
        [(Target::Events, CollectionKind::Events), (Target::Snapshots, CollectionKind::Snapshots)]
    {
        world.context.ready(kind, "order").await.unwrap();
        let document = |id: i32| {
            doc! {
                "_id": format!("{id:03}"), "aggregateId": format!("{id:03}"), "requestId": "r", "version": 1,
                "tenantId": "t", "ownerId": "o", "state": { "x": id }, "createTime": id, "deleted": id % 30 == 0,
            }
        };
        world.insert(target, (0..COUNT).map(document)).await;
    }
    let of = |operator: &str, field: &str| {
        let value = if operator == "IN" { json!([1]) } else { json!(1) };
        let json = match operator {
            "TODAY" => json!({ "operator": operator, "field": field }),
            _ => json!({ "operator": operator, "field": field, "value": value }),
        };
        query(condition(json))
    };
    let by_id =
        |operator: &str, id: &str| query(condition(json!({ "operator": operator, "value": id })));
    let scope = QueryScope { tenant_id: Some("t".into()), ..QueryScope::default() };
    let scoped = |query: Query| Query { scope: scope.clone(), ..query };
    let total = query(Condition::All);
    for target in [Target::Events, Target::Snapshots] {
        for (query, is_refused) in [
            (total.clone(), false),
            (sorted(vec![by("_id", Direction::Desc)]), false),
            (by_id("AGGREGATE_ID", "003"), false),
            (by_id("TENANT_ID", "t"), false),
            (by_id("TENANT_ID", "none"), false),
            (by_id("OWNER_ID", "o"), false),
            (scoped(total.clone()), false),
            (scoped(of("EQ", "state.x")), false),
            (of("EQ", "state.x"), true),
            (of("IN", "state.x"), true),
            (of("NE", "state.x"), true),
            (of("TODAY", "createTime"), true),
            (by_id("SPACE_ID", "s"), true),
            (sorted(vec![by("state.x", Direction::Asc)]), true),
            (
                Query { sort: vec![by("state.x", Direction::Asc)], ..by_id("AGGREGATE_ID", "003") },
                false,
            ),
        ] {
            let found = is_scan(&strict(&world), target, &query).await;
            assert_eq!(found, is_refused, "{target:?}: {query:?}");
        }
    }
    let deleted = by_id("DELETED", "DELETED");
    assert!(!is_scan(&strict(&world), Target::Snapshots, &deleted).await);
    let all = by_id("DELETED", "ALL");
    assert!(!is_scan(&strict(&world), Target::Snapshots, &all).await);
}

/// What is known of a shape holds for its other values only as far as the plan does.
#[fixture::test]
async fn a_known_plan_does_not_hide_a_scan() {
    let world = world().await;
    world.create_index(Target::Events, doc! { "t": 1 }).await;
    let queries = strict(&world);
    let starts = |text: &str| query(field("t").starts_with(text));
    let types = |kind: &str| query(Condition::Raw(doc! { "t": { "$type": kind } }));
    for (query, is_refused) in [
        (starts("t1"), false),
        (starts("t2"), false),
        (starts(""), true),
        (starts("t|"), false),
        (starts("."), false),
        (query(Condition::Raw(doc! { "t": { "$regex": "^t1" } })), false),
        (query(Condition::Raw(doc! { "t": { "$regex": "^t1|x" } })), true),
        (types("int"), false),
        (types("string"), true),
        (query(field("t").eq("t1")), false),
        (query(field("t").eq(Bson::Null)), false),
        (query(field("t").ne("t1")), false),
        (query(field("t").is_in(["t1"])), false),
        (query(field("t").exists(false)), false),
    ] {
        assert_eq!(is_scan(&queries, Target::Events, &query).await, is_refused, "{query:?}");
    }
}

/// Of snapshots nearly all are not deleted: to test that costs little.
#[fixture::test]
async fn only_the_implied_test_for_deleted_ones_is_free() {
    let world = world().await;
    let of = |json: Value| query(condition(json));
    for (query, is_refused) in [
        (query(Condition::All), false),
        (of(json!({ "operator": "DELETED", "value": "ALL" })), false),
        (of(json!({ "operator": "EQ", "field": "x", "value": 1 })), true),
        // The few that are.
        (of(json!({ "operator": "DELETED", "value": "DELETED" })), true),
    ] {
        assert_eq!(
            is_scan(&strict(&world), Target::Snapshots, &query).await,
            is_refused,
            "{query:?}"
        );
    }
    world.create_index(Target::Snapshots, doc! { "deleted": 1, "_id": 1 }).await;
    let deleted = of(json!({ "operator": "DELETED", "value": "DELETED" }));
    assert!(!is_scan(&strict(&world), Target::Snapshots, &deleted).await);
}

#[fixture::test]
async fn small_collections_are_scanned() {
    let world = world().await;
    let unindexed = query(field("none").eq(1));
    for (max_scan, is_refused) in [(COUNT as u64 - 1, true), (COUNT as u64, false)] {
        let queries =
            world.queries_with(QuerySettings { max_scan, ..settings(ScanPolicy::Refuse) });
        assert_eq!(is_scan(&queries, Target::Events, &unindexed).await, is_refused);
    }
}

#[fixture::test]
async fn a_scan_is_answered_where_it_is_only_logged() {
    let world = world().await;
    let queries = world.queries_with(settings(ScanPolicy::Warn));
    let query = Query { sort: vec![by("none", Direction::Asc)], ..query(field("x").eq(1)) };

    let (found, next) = part(&queries, Target::Events, &query, 10, None).await.unwrap();

    assert_eq!((found.len(), next.is_some()), (10, true));
    assert_eq!(queries.count(Target::Events, &order(), &query).await.unwrap(), COUNT as u64 / 2);
}

/// The plan that scans is forgotten soon.
#[fixture::test]
async fn a_query_is_answered_soon_after_its_index_exists() {
    let world = world().await;
    let queries = strict(&world);
    let query = Query { sort: vec![by("t", Direction::Asc)], ..query(field("x").eq(1)) };
    assert!(is_scan(&queries, Target::Events, &query).await);

    world.create_index(Target::Events, doc! { "x": 1, "t": 1, "_id": 1 }).await;

    // Each shape is forgotten by itself: a count has no order.
    eventually("the scan of a list is forgotten", || async {
        part(&queries, Target::Events, &query, 10, None).await.is_ok()
    })
    .await;
    eventually("the scan of a count is forgotten", || async {
        queries.count(Target::Events, &order(), &query).await.is_ok()
    })
    .await;
}

/// Every part begins where the last one ended: no part reads the index from its beginning.
#[fixture::test]
async fn parts_behind_a_cursor_read_what_they_answer() {
    let world = World::new().await;
    let numbered = |id: i32| {
        let k = match id % 40 {
            0 => Bson::Null,
            1 => "text".into(),
            2 => true.into(),
            _ => Bson::from(id / 3),
        };
        doc! { "_id": format!("{id:04}"), "k": k, "s": { "k": id }, "deleted": id % 20 == 0 }
    };
    for target in [Target::Events, Target::Snapshots] {
        world.insert(target, (0..1_000).map(numbered)).await;
        for keys in
            [doc! { "k": 1, "_id": 1 }, doc! { "k": -1, "_id": 1 }, doc! { "s.k": 1, "_id": 1 }]
        {
            world.create_index(target, keys).await;
        }
    }
    let recorder = CommandRecorder::on(&world.outbox).await;
    let client = recorder.collections.client().clone();
    let queries = QueryService::new(context(&world.outbox, client), settings(ScanPolicy::Refuse));
    for target in [Target::Events, Target::Snapshots] {
        for sort in [
            vec![],
            vec![by("_id", Direction::Desc)],
            vec![by("k", Direction::Asc)],
            vec![by("k", Direction::Desc)],
            vec![by("s.k", Direction::Asc)],
        ] {
            let query = sorted(sort.clone());
            let before = recorder.commands("find").len();
            let (mut after, mut count) = (None, 0);
            loop {
                let (found, next) =
                    part(&queries, target, &query, 90, after.as_deref()).await.unwrap();
                count += found.len();
                after = next;
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(count, if target == Target::Events { 1_000 } else { 950 });
            let mut keys = 0;
            for found in recorder.commands("find").into_iter().skip(before) {
                keys += keys_read(&world, &found.sent).await;
            }
            // From its beginning each time it would be 6,000.
            assert!(keys < 1_500, "{sort:?} of {target:?}: {keys} keys for 1,000 documents");
        }
    }
}

/// How many keys of an index a find reads.
async fn keys_read(world: &World, find: &Document) -> i64 {
    let mut explained = Document::new();
    for (name, value) in find {
        if !name.starts_with('$')
            && !["lsid", "readConcern", "txnNumber", "maxTimeMS"].contains(&name.as_str())
        {
            explained.insert(name, value.clone());
        }
    }
    let explain = doc! { "explain": explained, "verbosity": "executionStats" };
    let database = world.outbox.admin.database();
    let stats = database.run_command(explain).await.unwrap();
    let stats = stats.get_document("executionStats").unwrap();
    stats["totalKeysExamined"]
        .as_i64()
        .or(stats["totalKeysExamined"].as_i32().map(i64::from))
        .unwrap()
}

/// Refused means that the server has nothing to do.
#[fixture::test]
async fn a_refused_query_is_not_executed() {
    let world = world().await;
    // The server writes down what it executes in this database.
    let database = world.outbox.admin.database();
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    let executed = async || {
        let profile = database.collection::<Document>("system.profile");
        let filter = doc! { "ns": { "$regex": "order_" }, "command.$db": { "$exists": true } };
        let found = profile.find(filter).await.unwrap();
        let found: Vec<Document> = found.try_collect().await.unwrap();
        let name = |document: &Document| {
            let command = document.get_document("command").unwrap();
            command.keys().next().unwrap().clone()
        };
        found.iter().map(name).collect::<Vec<String>>()
    };
    let queries = strict(&world);
    let invalid = query(Condition::And(Vec::new()));
    let page = Page { index: 1, size: 10 };
    part(&queries, Target::Events, &invalid, 1, None).await.unwrap_err();
    queries.page(Target::Events, &order(), &invalid, page).await.unwrap_err();
    queries.count(Target::Events, &order(), &invalid).await.unwrap_err();
    assert_eq!(executed().await, [""; 0]);

    let scan = query(field("none").eq(1));
    for _ in 0..3 {
        assert!(is_scan(&queries, Target::Events, &scan).await);
    }

    // What was dropped might be under way.
    let valid = query(Condition::All);
    part(&queries, Target::Events, &valid, 2, None).await.unwrap();
    let executed = executed().await;
    let number = |name: &str| executed.iter().filter(|executed| *executed == name).count();
    // Plans are remembered: of the order by id, of none, and of what is valid.
    assert_eq!((number("find"), number("aggregate")), (1, 0), "{executed:?}");
    assert!(number("explain") <= 3, "{executed:?}");
}
