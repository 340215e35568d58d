//! Lists by cursors: all of the order, nothing twice, whatever kinds of values the order has.

use bson::oid::ObjectId;
use bson::spec::BinarySubtype;
use bson::{Binary, Bson, DateTime, Decimal128, Document, Regex, Timestamp, bson, doc};
use futures_util::TryStreamExt;
use postrider::events::query::{
    Condition, Direction, Page, Projection, Query, QueryError, QueryService, SortKey, Target,
};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::world::{World, condition, field, ids, order, part, query, sorted};

fn decimal(digits: &str) -> Bson {
    digits.parse::<Decimal128>().unwrap().into()
}

fn binary(subtype: BinarySubtype, bytes: Vec<u8>) -> Bson {
    Binary { subtype, bytes }.into()
}

/// A value of every kind that sorts; `None` is absent.
fn values() -> Vec<Option<Bson>> {
    let present = vec![
        Bson::MinKey,
        Bson::Null,
        f64::NAN.into(),
        decimal("NaN"),
        f64::NEG_INFINITY.into(),
        decimal("-Infinity"),
        i64::MIN.into(),
        (-1).into(),
        (-0.0).into(),
        0.into(),
        decimal("0E+3"),
        0.1.into(),
        decimal("0.1"),
        1.into(),
        1_i64.into(),
        1.0.into(),
        decimal("1"),
        9_007_199_254_740_992.0.into(),
        9_007_199_254_740_993_i64.into(),
        1e300.into(),
        f64::INFINITY.into(),
        "".into(),
        "A".into(),
        "a".into(),
        Bson::Symbol("a".into()),
        "a\0b".into(),
        "é".into(),
        bson!({}),
        bson!({ "$gt": 1 }),
        bson!({ "a": null }),
        bson!({ "a": f64::NAN }),
        bson!({ "a": { "b": [1] } }),
        bson!({ "b": 1, "a": 2 }),
        binary(BinarySubtype::Generic, vec![]),
        binary(BinarySubtype::Generic, vec![255]),
        binary(BinarySubtype::Uuid, vec![0; 16]),
        binary(BinarySubtype::UserDefined(128), vec![1; 16]),
        ObjectId::from_bytes([0; 12]).into(),
        ObjectId::from_bytes([255; 12]).into(),
        false.into(),
        true.into(),
        DateTime::from_millis(i64::MIN).into(),
        DateTime::from_millis(0).into(),
        DateTime::from_millis(i64::MAX).into(),
        Timestamp { time: 1, increment: 1 }.into(),
        Timestamp { time: u32::MAX, increment: 0 }.into(),
        Bson::MaxKey,
    ];
    let mut all: Vec<Option<Bson>> = present.into_iter().map(Some).collect();
    // Some of them twice or thrice.
    all.extend(all.clone().into_iter().step_by(3));
    all.extend([None, None, Some(Bson::Null), Some(f64::NAN.into()), Some("a".into())]);
    all
}

fn by(name: &str, direction: Direction) -> SortKey {
    SortKey { field: field(name), direction }
}

/// All ids by one sorted find.
async fn expected(world: &World, order: Document) -> Vec<Bson> {
    let found = world.collection(Target::Events).find(doc! {}).sort(order).await.unwrap();
    ids(&found.try_collect::<Vec<_>>().await.unwrap())
}

/// All ids, in parts of so many.
async fn walked(queries: &QueryService, query: &Query, limit: u32) -> Vec<Bson> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let (found, next) =
            part(queries, Target::Events, query, limit, after.as_deref()).await.unwrap();
        all.extend(ids(&found));
        let Some(next) = next else { return all };
        assert_eq!(found.len(), limit as usize, "only the last part is shorter");
        assert_ne!(Some(&next), after.as_ref());
        after = Some(next);
    }
}

/// Documents with these values in their fields, in no order.
async fn mixed(seed: u64) -> World {
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut first, mut second, mut third) = (values(), values(), values());
    first.shuffle(&mut rng);
    second.shuffle(&mut rng);
    third.shuffle(&mut rng);
    let documents = first.into_iter().zip(second).zip(third).enumerate();
    let mut documents: Vec<Document> = documents
        .map(|(number, ((k, m), within))| {
            // Also the ids are of several kinds.
            let id = match number % 4 {
                0 => format!("{number}").into(),
                1 => bson!({ "n": number as i32 }),
                2 => (number as f64 + 0.5).into(),
                _ => (number as i32).into(),
            };
            let mut document = doc! { "_id": id };
            for (name, value) in [("k", k), ("m", m)] {
                document.extend(value.map(|value| (name.to_owned(), value)));
            }
            match (within, number % 5) {
                // What has no fields has no `s.k`.
                (_, 0) => drop(document.insert("s", "text")),
                (within, _) => {
                    let within: Document =
                        within.map(|value| ("k".to_owned(), value)).into_iter().collect();
                    document.insert("s", within);
                }
            }
            document
        })
        .collect();
    documents.shuffle(&mut rng);
    let world = World::new().await;
    world.insert(Target::Events, documents).await;
    world
}

#[fixture::test(long)]
async fn every_walk_has_the_order_of_one_sorted_find() {
    use Direction::{Asc, Desc};

    let seed = rand::random();
    println!("seed {seed}");
    let world = mixed(seed).await;
    let queries = world.queries();
    let count = values().len() as u32;
    for (sort, order) in [
        (vec![], doc! { "_id": 1 }),
        (vec![by("id", Desc)], doc! { "_id": -1 }),
        (vec![by("k", Asc)], doc! { "k": 1, "_id": 1 }),
        (vec![by("k", Desc)], doc! { "k": -1, "_id": 1 }),
        (vec![by("k", Desc), by("_id", Desc)], doc! { "k": -1, "_id": -1 }),
        (vec![by("s.k", Asc)], doc! { "s.k": 1, "_id": 1 }),
        (vec![by("k", Asc), by("m", Asc)], doc! { "k": 1, "m": 1, "_id": 1 }),
        (vec![by("k", Asc), by("m", Desc)], doc! { "k": 1, "m": -1, "_id": 1 }),
        (vec![by("m", Desc), by("s.k", Asc)], doc! { "m": -1, "s.k": 1, "_id": 1 }),
        (vec![by("m", Desc), by("k", Desc)], doc! { "m": -1, "k": -1, "_id": 1 }),
        // The first place of a field counts.
        (vec![by("k", Desc), by("k", Asc)], doc! { "k": -1, "_id": 1 }),
    ] {
        let expected = expected(&world, order.clone()).await;
        assert_eq!(expected.len(), count as usize);
        let query = sorted(sort);
        let limits: Vec<u32> = match order.len() {
            0..=2 => (1..=count + 1).collect(),
            _ => vec![1, 2, 3, 5, 8, 13, count - 1, count],
        };
        for limit in limits {
            let walked = walked(&queries, &query, limit).await;
            assert_eq!(walked, expected, "seed {seed}: {order} by {limit}");
        }
    }
}

/// An index on the order does not change it: MongoDB then merges what it finds in several ranges.
#[fixture::test]
async fn walks_by_an_index_have_the_same_order() {
    use Direction::{Asc, Desc};

    let seed = rand::random();
    println!("seed {seed}");
    let world = mixed(seed).await;
    for keys in [
        doc! { "k": 1, "_id": 1 },
        doc! { "k": -1, "_id": 1 },
        doc! { "m": -1 },
        doc! { "s.k": 1, "k": -1, "_id": 1 },
        doc! { "k": 1, "m": 1, "_id": 1 },
    ] {
        world.create_index(Target::Events, keys).await;
    }
    let queries = world.queries();
    for (sort, order) in [
        (vec![by("k", Asc)], doc! { "k": 1, "_id": 1 }),
        (vec![by("k", Desc)], doc! { "k": -1, "_id": 1 }),
        (vec![by("m", Desc)], doc! { "m": -1, "_id": 1 }),
        (vec![by("s.k", Asc), by("k", Desc)], doc! { "s.k": 1, "k": -1, "_id": 1 }),
        (vec![by("k", Asc), by("m", Asc)], doc! { "k": 1, "m": 1, "_id": 1 }),
    ] {
        let expected = expected(&world, order.clone()).await;
        for limit in [1, 2, 7] {
            let walked = walked(&queries, &sorted(sort.clone()), limit).await;
            assert_eq!(walked, expected, "seed {seed}: {order} by {limit}");
        }
    }
}

/// When MongoDB merges, an absent field is less than null.
#[fixture::test]
async fn null_and_absent_have_the_same_place() {
    let world = World::new().await;
    let documents = (0..40).map(|id| {
        let mut document = doc! { "_id": format!("{id:02}"), "m": id / 4 };
        if id % 2 == 1 {
            document.insert("k", Bson::Null);
        }
        document
    });
    world.insert(Target::Events, documents).await;
    world.create_index(Target::Events, doc! { "k": 1, "m": 1, "_id": 1 }).await;
    let queries = world.queries();
    let query = sorted(vec![by("k", Direction::Asc), by("m", Direction::Asc)]);
    for limit in [1, 2, 3, 7] {
        let walked = walked(&queries, &query, limit).await;
        assert_eq!(walked, (0..40).map(|id| format!("{id:02}").into()).collect::<Vec<Bson>>());
    }
}

/// The condition holds in every part, and the fields of the order do not have to be in the answers.
#[fixture::test]
async fn walks_have_their_condition_and_their_fields() {
    let seed = rand::random();
    println!("seed {seed}");
    let world = mixed(seed).await;
    let queries = world.queries();
    let names = |names: &[&str]| names.iter().map(|name| field(name)).collect::<Vec<_>>();
    let condition = condition(json!({ "operator": "EXISTS", "field": "k" }));
    let filter = doc! { "k": { "$exists": true } };
    for (projection, plain) in [
        (Projection::All, doc! {}),
        (Projection::Include(names(&["m"])), doc! { "m": 1 }),
        (Projection::Include(names(&["s.k", "k"])), doc! { "s.k": 1, "k": 1 }),
        (Projection::Include(names(&["s.k.a"])), doc! { "s.k.a": 1 }),
        (Projection::Include(names(&["id"])), doc! { "_id": 1 }),
        (Projection::Exclude(names(&["k"])), doc! { "k": 0 }),
        (Projection::Exclude(names(&["s", "m"])), doc! { "s": 0, "m": 0 }),
        (Projection::Exclude(names(&["s.k.a", "id"])), doc! { "s.k.a": 0, "_id": 0 }),
    ] {
        let collection = world.collection(Target::Events);
        let sort = doc! { "s.k": -1, "k": 1, "_id": 1 };
        let found = collection.find(filter.clone()).sort(sort).projection(plain).await.unwrap();
        let expected: Vec<Document> = found.try_collect().await.unwrap();
        let query = Query {
            projection: projection.clone(),
            sort: vec![by("s.k", Direction::Desc), by("k", Direction::Asc)],
            ..query(condition.clone())
        };
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let part = part(&queries, Target::Events, &query, 7, after.as_deref()).await.unwrap();
            all.extend(part.0);
            after = part.1;
            if after.is_none() {
                break;
            }
        }
        // As bytes: NaN equals nothing, and the sequence of fields counts.
        let bytes = |all: &[Document]| -> Vec<Vec<u8>> {
            all.iter().map(|document| document.to_vec().unwrap()).collect()
        };
        assert_eq!(
            bytes(&all),
            bytes(&expected),
            "seed {seed}: {projection:?}\n{all:#?}\n{expected:#?}"
        );
    }
}

/// What is written between two parts is found where it belongs, or not at all.
#[fixture::test]
async fn a_walk_continues_where_it_was_despite_writes() {
    let world = World::new().await;
    let queries = world.queries();
    let numbered = |number: i32| doc! { "_id": number, "k": number };
    world.insert(Target::Events, (0..10).map(|number| numbered(10 * number))).await;
    let query = sorted(vec![by("k", Direction::Asc)]);
    let (first, next) = part(&queries, Target::Events, &query, 4, None).await.unwrap();
    assert_eq!(ids(&first), [0, 10, 20, 30].map(Bson::from));

    world.collection(Target::Events).delete_one(doc! { "_id": 30 }).await.unwrap();
    world.insert(Target::Events, [5, 30, 35].map(numbered)).await;

    let (rest, next) = part(&queries, Target::Events, &query, 9, next.as_deref()).await.unwrap();
    assert_eq!(ids(&rest), [35, 40, 50, 60, 70, 80, 90].map(Bson::from));
    assert_eq!(next, None);
}

/// Whatever is behind the last document of a part: it is refused, and not skipped.
#[fixture::test]
async fn what_has_no_order_is_refused_and_never_skipped() {
    let world = World::new().await;
    let queries = world.queries();
    let regex = Regex { pattern: "x".try_into().unwrap(), options: "".try_into().unwrap() };
    let pointer = json!({ "$ref": "a", "$id": { "$oid": "665f1c2b9d3e2a0001a1b2c3" } });
    let mut odd: Vec<(&str, Document)> = [
        bson!([]),
        bson!([1]),
        bson!(["x", 1]),
        bson!([Bson::MinKey]),
        bson!([Bson::MaxKey]),
        regex.into(),
        Bson::JavaScriptCode("x".into()),
        Bson::try_from(json!({ "$dbPointer": pointer })).unwrap(),
        Bson::Undefined,
    ]
    .into_iter()
    .map(|value| ("k", doc! { "_id": "odd", "k": value }))
    .collect();
    for parent in [bson!([{}]), bson!([{ "k": 1 }]), bson!([1, { "k": "x" }])] {
        odd.push(("s.k", doc! { "_id": "odd", "s": parent }));
    }
    for (name, odd) in odd {
        world.collection(Target::Events).drop().await.unwrap();
        let values = values().into_iter().enumerate();
        let mut documents: Vec<Document> = values
            .map(|(id, value)| {
                let within: Document =
                    value.map(|value| ("k".to_owned(), value)).into_iter().collect();
                let mut document = doc! { "_id": id as i32, "s": within.clone() };
                document.extend(within);
                document
            })
            .collect();
        documents.insert(20, odd.clone());
        world.insert(Target::Events, documents).await;
        for (direction, limit) in [1, 2, 5]
            .into_iter()
            .flat_map(|limit| [Direction::Asc, Direction::Desc].map(|direction| (direction, limit)))
        {
            let query = sorted(vec![by(name, direction)]);
            let mut after: Option<String> = None;
            let error = loop {
                match part(&queries, Target::Events, &query, limit, after.as_deref()).await {
                    Err(error) => break error,
                    Ok((_, next)) => after = next,
                }
                assert!(after.is_some(), "{odd} was skipped: {direction:?} by {limit}");
            };
            let QueryError::Unsortable(unsortable) = error else { panic!("{odd}: {error}") };
            assert!(
                unsortable.to_string().starts_with(&format!("{name} contains ")),
                "{unsortable}"
            );
        }
        // Pages have no cursors.
        let page = Page { index: 1, size: 100 };
        let query = sorted(vec![by(name, Direction::Asc)]);
        let paged = queries.page(Target::Events, &order(), &query, page).await.unwrap();
        assert_eq!(paged.total, paged.items.len() as u64);
    }
}

#[fixture::test]
async fn cursors_of_others_are_refused() {
    let world = World::new().await;
    let queries = world.queries();
    world.insert(Target::Events, (0..3).map(|id| doc! { "_id": id, "k": id })).await;
    let ascending = sorted(vec![by("k", Direction::Asc)]);
    let (_, next) = part(&queries, Target::Events, &ascending, 1, None).await.unwrap();
    let next = next.unwrap();
    let mut rng = rand::rng();
    let broken: String =
        next.chars().map(|letter| if rng.random_range(0..4) == 0 { 'A' } else { letter }).collect();
    for (query, after) in [
        (sorted(vec![by("k", Direction::Desc)]), &*next),
        (sorted(vec![]), &next),
        (sorted(vec![by("k", Direction::Asc), by("m", Direction::Asc)]), &next),
        (ascending.clone(), ""),
        (ascending.clone(), "x"),
        (ascending.clone(), &next[1..]),
    ] {
        let refused = part(&queries, Target::Events, &query, 1, Some(after)).await.unwrap_err();
        let QueryError::Invalid(flaws) = refused else { panic!("{refused}") };
        assert_eq!(flaws.len(), 1);
        assert_eq!(
            flaws[0].to_string(),
            "after: is not a cursor of this sort order; use the `next` of a response with the same sort"
        );
    }
    // One letter more or less is an answer or a flaw.
    match part(&queries, Target::Events, &ascending, 1, Some(&broken)).await {
        Ok(_) | Err(QueryError::Invalid(_)) => {}
        Err(other) => panic!("{broken}: {other}"),
    }
}

/// A cursor is written by its client: its values are values, whatever they look like.
#[fixture::test]
async fn a_forged_cursor_reaches_nothing_else() {
    use base64::Engine as _;
    use base64::prelude::BASE64_URL_SAFE_NO_PAD;
    use postrider::events::query::QueryScope;

    let world = World::new().await;
    let queries = world.queries();
    let documents =
        (0..4).map(|id| doc! { "_id": id, "k": id, "tenantId": if id < 2 { "t" } else { "u" } });
    world.insert(Target::Events, documents).await;
    let scope = QueryScope { tenant_id: Some("t".into()), ..QueryScope::default() };
    let query = Query { scope, ..sorted(vec![by("k", Direction::Asc)]) };
    for value in [
        bson!({ "$gt": -1 }),
        bson!({ "$where": "sleep(1000)" }),
        bson!({ "$exists": true }),
        bson!({ "$expr": 1 }),
        Bson::MinKey,
        Bson::Null,
        Bson::from(Regex { pattern: "".try_into().unwrap(), options: "".try_into().unwrap() }),
        Bson::Undefined,
        bson!([1]),
        Bson::JavaScriptCode("1".into()),
    ] {
        let forged = doc! { "o": { "k": 1, "_id": 1 }, "v": [value.clone(), -1] };
        let after = BASE64_URL_SAFE_NO_PAD.encode(forged.to_vec().unwrap());
        match part(&queries, Target::Events, &query, 10, Some(&after)).await {
            Ok((found, _)) => assert!(
                found.iter().all(|document| document["tenantId"] == Bson::from("t")),
                "{value}: {found:?}"
            ),
            Err(QueryError::Invalid(_)) => {}
            Err(other) => panic!("{value}: {other}"),
        }
    }
}

#[fixture::test]
async fn a_list_without_a_total_order_has_no_cursor() {
    let world = World::new().await;
    let queries = world.queries();
    world.insert(Target::Events, (0..5).map(|id| doc! { "_id": id, "k": [id] })).await;
    let query = Query { is_total: false, ..sorted(vec![by("k", Direction::Desc)]) };

    let (found, next) = part(&queries, Target::Events, &query, 3, None).await.unwrap();

    assert_eq!((ids(&found), next), ([4, 3, 2].map(Bson::from).to_vec(), None));
    let first = queries.single(Target::Events, &order(), &query).await.unwrap().unwrap();
    assert_eq!(first["_id"], Bson::from(4));
    let none = crate::world::query(Condition::Id("none".into()));
    assert_eq!(queries.single(Target::Events, &order(), &none).await.unwrap(), None);
}
