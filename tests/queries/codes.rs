//! Errors of MongoDB: what a client wrote is its own mistake, all else is not.

use std::time::Duration;

use bson::{Bson, Document, bson, doc};
use postrider::context::{Context, ContextSettings};
use postrider::events::query::{
    Condition, Page, Query, QueryError, QueryService, QuerySettings, SortKey, Target,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use crate::support::command_recorder::CommandRecorder;
use crate::support::mongod::Mongod;
use crate::world::{World, condition, context, field, order, part, query, sorted};

fn raw(filter: Document) -> Query {
    query(Condition::Raw(filter))
}

async fn world() -> World {
    let world = World::new().await;
    let documents = (0..5).map(|id| doc! { "_id": id, "a": id, "t": "x", "l": [id, { "b": 1 }] });
    world.insert(Target::Events, documents).await;
    world
}

/// What a client can do about it is said, not what an operator could.
#[fixture::test]
async fn filters_that_mongodb_refuses_are_the_clients_mistake() {
    let world = world().await;
    let queries = world.queries();
    for filter in [
        doc! { "a": { "$in": 1 } },
        doc! { "a": { "$all": 1 } },
        doc! { "a": { "$all": [{ "$gt": 1 }] } },
        doc! { "a": { "$in": [{ "$gt": 1 }] } },
        doc! { "a": { "$size": "x" } },
        doc! { "a": { "$size": -1 } },
        doc! { "a": { "$mod": [1] } },
        doc! { "a": { "$mod": [0, 1] } },
        doc! { "a": { "$mod": "x" } },
        doc! { "a": { "$type": "unknown" } },
        doc! { "a": { "$type": [] } },
        doc! { "a": { "$type": 500 } },
        doc! { "a": { "$bitsAllSet": -1 } },
        doc! { "a": { "$bitsAllSet": "x" } },
        doc! { "a": { "$bitsAnyClear": [-5] } },
        doc! { "a": { "$not": 1 } },
        doc! { "a": { "$not": {} } },
        doc! { "a": { "$not": { "x": 1 } } },
        doc! { "a": { "$elemMatch": 1 } },
        doc! { "a": { "$options": "i" } },
        doc! { "t": { "$regex": "(" } },
        doc! { "t": { "$regex": "x", "$options": "q" } },
        doc! { "t": { "$regex": 1 } },
        doc! { "t": { "$regex": "(".repeat(2_000) } },
        doc! { "t": { "$regex": "x".repeat(40_000) } },
        doc! { "$and": [] },
        doc! { "$and": 1 },
        doc! { "$or": [1] },
        doc! { "$nor": [] },
        doc! { "$gt": 1 },
        doc! { "$not": { "a": 1 } },
        doc! { "a": { "$gt": 1, "x": 1 } },
        doc! { "a": Bson::Undefined },
        doc! { "a": { "$gt": Bson::Undefined } },
    ] {
        let query = raw(filter.clone());
        for refused in [
            part(&queries, Target::Events, &query, 10, None).await.map(drop),
            queries.count(Target::Events, &order(), &query).await.map(drop),
        ] {
            let Err(QueryError::Refused(detail)) = refused else { panic!("{filter}: {refused:?}") };
            assert!(!detail.contains("postrider check") && !detail.is_empty(), "{detail}");
        }
    }
}

/// Names that MongoDB takes for something else than a field, or cannot follow.
#[fixture::test]
async fn odd_names_of_fields_find_nothing_or_are_refused() {
    let world = world().await;
    let queries = world.queries();
    let deep = vec!["a"; 100].join(".");
    for name in ["0", "a.0", "-1", "_id", "_id.x", "ä", "a b", "'", "\"", "\\", "__proto__", &deep]
    {
        let name = field(name);
        for query in [
            query(name.clone().eq("none")),
            query(name.clone().contains("none")),
            sorted(vec![SortKey { field: name.clone(), direction: Default::default() }]),
            Query {
                projection: postrider::events::query::Projection::Include(vec![name.clone()]),
                ..query(Condition::All)
            },
            Query {
                projection: postrider::events::query::Projection::Exclude(vec![name.clone()]),
                ..query(Condition::All)
            },
        ] {
            match part(&queries, Target::Events, &query, 3, None).await {
                Ok(_) | Err(QueryError::Refused(_) | QueryError::Invalid(_)) => {}
                Err(QueryError::Unsortable(_)) if name.as_str() == "a.0" => {}
                Err(other) => panic!("{name}: {other:?}"),
            }
        }
    }
}

/// Any filter of allowed operators, with operands of any kind.
fn random_filter(rng: &mut StdRng, levels: u32) -> Document {
    let operand = |rng: &mut StdRng| -> Bson {
        match rng.random_range(0..8) {
            0 | 1 if levels > 0 => random_filter(rng, levels - 1).into(),
            2 | 3 if levels > 0 => {
                let items = rng.random_range(0..3);
                Bson::Array((0..items).map(|_| random_filter(rng, levels - 1).into()).collect())
            }
            4 => rng.random_range(-2..9).into(),
            5 => bson!([1, "x", Bson::Null]),
            6 => ["", "x", "(", "i", "string", "^a"].choose(rng).copied().unwrap().into(),
            _ => [Bson::Null, true.into(), 1.5.into(), f64::NAN.into(), Bson::MinKey, 1_i64.into()]
                .choose(rng)
                .unwrap()
                .clone(),
        }
    };
    let names = [
        "a",
        "l.b",
        "t",
        "$all",
        "$and",
        "$bitsAllClear",
        "$bitsAnySet",
        "$elemMatch",
        "$eq",
        "$exists",
        "$gt",
        "$gte",
        "$in",
        "$lt",
        "$lte",
        "$mod",
        "$ne",
        "$nin",
        "$nor",
        "$not",
        "$options",
        "$or",
        "$regex",
        "$size",
        "$type",
    ];
    let count = rng.random_range(0..3);
    (0..count).map(|_| ((*names.choose(rng).unwrap()).to_owned(), operand(rng))).collect()
}

#[fixture::test]
async fn accepted_raw_filters_have_an_answer_or_are_refused() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let world = world().await;
    let queries = world.queries();
    let (mut answers, mut refusals) = (0, 0);
    for _ in 0..600 {
        let filter = doc! { "a": random_filter(&mut rng, 3), "$nor": [random_filter(&mut rng, 2)] };
        match part(&queries, Target::Events, &raw(filter.clone()), 10, None).await {
            Ok(_) => answers += 1,
            Err(QueryError::Refused(_)) => refusals += 1,
            Err(other) => panic!("seed {seed}: {filter}: {other:?}"),
        }
    }
    assert!(answers > 20 && refusals > 20, "{answers} answers, {refusals} refusals");
}

#[fixture::test]
async fn full_text_search_needs_a_text_index() {
    let world = world().await;
    let queries = world.queries();
    let search = |value: Value| query(condition(value));
    let alone = search(json!({ "operator": "MATCH", "value": "x" }));
    let collection = "order_event_stream";
    for refused in [
        part(&queries, Target::Events, &alone, 10, None).await.map(drop),
        queries.count(Target::Events, &order(), &alone).await.map(drop),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(&error, QueryError::NoTextIndex { collection: of } if of == collection),
            "{error:?}"
        );
        assert_eq!(
            error.to_string(),
            "MATCH needs a text index, and order_event_stream has none; create one, for example \
             db.getCollection(\"order_event_stream\").createIndex({ \"state.name\": \"text\" })"
        );
    }

    world.create_index(Target::Events, doc! { "t": "text" }).await;

    for (json, count) in [
        (json!({ "operator": "MATCH", "value": "x" }), 5),
        (json!({ "operator": "MATCH", "value": "y" }), 0),
        (
            json!({ "operator": "AND", "children": [
                { "operator": "MATCH", "value": "x" }, { "operator": "GT", "field": "a", "value": 2 }
            ] }),
            2,
        ),
    ] {
        let query = search(json.clone());
        assert_eq!(queries.count(Target::Events, &order(), &query).await.unwrap(), count, "{json}");
        let (first, next) = part(&queries, Target::Events, &query, 1, None).await.unwrap();
        assert_eq!(first.len() as u64, count.min(1));
        let Some(next) = next else { continue };
        let (rest, _) = part(&queries, Target::Events, &query, 10, Some(&next)).await.unwrap();
        assert_eq!(rest.len() as u64, count - 1, "by a cursor");
    }
    // The other side of an OR has no index.
    let or = search(json!({ "operator": "OR", "children": [
        { "operator": "MATCH", "value": "x" }, { "operator": "GT", "field": "a", "value": 2 }
    ] }));
    let refused = part(&queries, Target::Events, &or, 10, None).await.unwrap_err();
    assert!(matches!(refused, QueryError::Refused(_)), "{refused:?}");
}

/// MongoDB knows the time limit, and stops.
#[fixture::test]
async fn every_command_has_the_time_limit() {
    let world = world().await;
    let recorder = CommandRecorder::on(&world.outbox).await;
    let context = context(&world.outbox, recorder.collections.client().clone());
    let settings = QuerySettings { timeout: Duration::from_secs(7), ..QuerySettings::default() };
    let queries = QueryService::new(context, settings);
    let (all, page) = (query(Condition::All), Page { index: 1, size: 10 });

    let (_, next) = part(&queries, Target::Events, &all, 2, None).await.unwrap();
    part(&queries, Target::Events, &all, 2, next.as_deref()).await.unwrap();
    queries.page(Target::Events, &order(), &all, page).await.unwrap();
    queries.count(Target::Events, &order(), &all).await.unwrap();
    queries.single(Target::Events, &order(), &all).await.unwrap();

    for (name, number) in [("find", 4), ("aggregate", 2)] {
        let commands = recorder.commands(name);
        assert_eq!(commands.len(), number, "{name}");
        for command in commands {
            assert_eq!(command.sent.get_i32("maxTimeMS").unwrap(), 7_000, "{}", command.sent);
        }
    }
}

/// The time limit of the server, whichever command it hits.
#[fixture::test]
async fn queries_that_take_too_long_are_timeouts() {
    let server = Mongod::with_fail_points().await;
    let client = postrider::store::connect::client(&server.uri("", "app")).await.unwrap();
    let collection = client.database("app").collection::<Document>("order_event_stream");
    collection.insert_many((0..600).map(|id| doc! { "_id": id })).await.unwrap();
    let context = Context::new(client, ContextSettings::new("app"));
    let settings = QuerySettings { timeout: Duration::from_secs(7), ..QuerySettings::default() };
    let fresh = || QueryService::new(context.clone(), settings.clone());
    let admin = server.client("").await;
    let fail = async |commands: &[&str], code: i32| {
        let data = doc! { "failCommands": commands, "errorCode": code };
        let mode = if commands.is_empty() { Bson::from("off") } else { bson!("alwaysOn") };
        let fail = doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data };
        admin.run_command(fail).await.unwrap();
    };
    let all = query(Condition::All);
    let page = Page { index: 1, size: 10 };
    for command in ["find", "getMore", "aggregate", "explain"] {
        fail(&[command], 50).await;
        // One that knows no plans.
        let listed = part(&fresh(), Target::Events, &all, 1_000, None).await;
        let counted = fresh().count(Target::Events, &order(), &all).await;
        let paged = fresh().page(Target::Events, &order(), &all, page).await;
        let (by_list, by_count, by_page) = match command {
            "find" => (true, false, true),
            "getMore" => (true, false, false),
            "aggregate" => (false, true, true),
            _ => (true, true, true),
        };
        let errors = [(listed.err(), by_list), (counted.err(), by_count), (paged.err(), by_page)];
        for (error, fails) in errors {
            assert_eq!(error.is_some(), fails, "{command}: {error:?}");
            let Some(error) = error else { continue };
            assert!(matches!(error, QueryError::Timeout { .. }), "{command}: {error:?}");
            assert_eq!(
                error.to_string(),
                "the query took longer than 7s (queries.timeout); a condition on an indexed field makes it faster"
            );
        }
    }
    // What is not the client's mistake is not called one.
    for code in [1, 13, 43, 146, 8_000] {
        fail(&["find"], code).await;
        let error = part(&fresh(), Target::Events, &all, 10, None).await.unwrap_err();
        assert!(matches!(error, QueryError::Store(_)), "{code}: {error:?}");
    }
    fail(&[], 0).await;
    part(&fresh(), Target::Events, &all, 10, None).await.unwrap();
}
