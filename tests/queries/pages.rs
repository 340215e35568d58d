//! Pages: which documents they have, and the number of all.

use bson::{Bson, doc};
use postrider::events::query::{
    Condition, Direction, Page, Paged, Query, QueryError, QueryService, SortKey, Target,
};
use serde_json::json;

use crate::support::outbox::{REPLACED, insert_broken};
use crate::world::{World, condition, field, ids, order, part, query, sorted};

const COUNT: i32 = 25;

/// Snapshots, every fifth of them deleted; `k` is one of three.
async fn world() -> World {
    let world = World::new().await;
    let documents = (0..COUNT).map(|id| doc! { "_id": id, "k": id % 3, "deleted": id % 5 == 0 });
    world.insert(Target::Snapshots, documents).await;
    world
}

async fn paged(queries: &QueryService, query: &Query, index: u64, size: u64) -> Paged {
    queries.page(Target::Snapshots, &order(), query, Page { index, size }).await.unwrap()
}

fn by_k(direction: Direction) -> Query {
    sorted(vec![SortKey { field: field("k"), direction }])
}

#[fixture::test]
async fn pages_divide_the_list_and_know_its_length() {
    let world = world().await;
    let queries = world.queries();
    for query in [
        query(Condition::All),
        by_k(Direction::Desc),
        query(condition(json!({ "operator": "DELETED", "value": "ALL" }))),
        query(condition(json!({ "operator": "GT", "field": "k", "value": 0 }))),
        query(condition(json!({ "operator": "EQ", "field": "k", "value": "none" }))),
    ] {
        let (all, _) = part(&queries, Target::Snapshots, &query, 1_000, None).await.unwrap();
        for size in [1, 7, 10, 100] {
            let mut divided = Vec::new();
            for index in 1..=all.len() as u64 / size + 2 {
                let paged = paged(&queries, &query, index, size).await;
                assert_eq!(paged.total, all.len() as u64, "page {index} of {size}");
                let rest = (all.len() as u64).saturating_sub((index - 1) * size).min(size);
                assert_eq!(paged.items.len() as u64, rest, "page {index} of {size}");
                divided.extend(paged.items);
            }
            assert_eq!(divided, all, "pages of {size}");
        }
        let count = queries.count(Target::Snapshots, &order(), &query).await.unwrap();
        assert_eq!(count, all.len() as u64);
    }
}

/// The id decides between equal ones, so that none is on two pages and none is missing.
#[fixture::test]
async fn equal_documents_are_in_the_order_of_their_ids() {
    let world = world().await;
    let queries = world.queries();
    for direction in [Direction::Asc, Direction::Desc] {
        let (first, second) = (
            paged(&queries, &by_k(direction), 1, 7).await,
            paged(&queries, &by_k(direction), 2, 7).await,
        );
        let both = [ids(&first.items), ids(&second.items)].concat();
        let mut meant: Vec<i32> = (0..COUNT).filter(|id| id % 5 != 0).collect();
        meant.sort_by_key(|id| (if direction == Direction::Asc { id % 3 } else { -(id % 3) }, *id));
        meant.truncate(14);
        assert_eq!(both, meant.into_iter().map(Bson::from).collect::<Vec<_>>());
    }
}

#[fixture::test]
async fn pages_behind_the_window_are_refused() {
    let world = world().await;
    let queries = world.queries();
    let refused = async |index, size| {
        let query = query(Condition::All);
        let paged = queries.page(Target::Snapshots, &order(), &query, Page { index, size }).await;
        match paged {
            Ok(_) => String::new(),
            Err(QueryError::Invalid(flaws)) => {
                flaws.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
            }
            Err(other) => panic!("{other}"),
        }
    };
    let window =
        "page.index: index × size must be at most 10000; use a list with cursors to read further";
    for (index, size, flaws) in [
        (1, 1, ""),
        (100, 100, ""),
        (10_000, 1, ""),
        (101, 100, window),
        (10_001, 1, window),
        (u64::MAX, 100, window),
        (0, 10, "page.index: must be 1 or above"),
        (1, 0, "page.size: must be from 1 to 100"),
        (1, 101, "page.size: must be from 1 to 100"),
        (0, 0, "page.index: must be 1 or above; page.size: must be from 1 to 100"),
    ] {
        assert_eq!(refused(index, size).await, flaws, "page {index} of {size}");
    }
}

#[fixture::test]
async fn lists_have_1_to_1000_documents() {
    let world = world().await;
    let queries = world.queries();
    for (limit, is_valid) in
        [(1, true), (1_000, true), (0, false), (1_001, false), (u32::MAX, false)]
    {
        let found = part(&queries, Target::Snapshots, &query(Condition::All), limit, None).await;
        match found {
            Ok((found, _)) => assert!(is_valid && found.len() <= limit as usize),
            Err(QueryError::Invalid(flaws)) => {
                assert!(!is_valid);
                assert_eq!(flaws[0].to_string(), "limit: must be from 1 to 1000");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

/// What is wrong with any part of a query is named together.
#[fixture::test]
async fn all_flaws_of_a_query_are_named_at_once() {
    use postrider::events::query::Projection;

    let world = world().await;
    let queries = world.queries();
    let names = |names: &[&str]| names.iter().map(|name| field(name)).collect::<Vec<_>>();
    let wrong = Query {
        projection: Projection::Include(names(&["a", "b", "a.x"])),
        sort: (0..101)
            .map(|number| SortKey {
                field: field(&format!("f{number}")),
                direction: Direction::Asc,
            })
            .collect(),
        ..query(Condition::And(vec![Condition::Or(Vec::new()), field("f").contains("\0")]))
    };
    let refused = part(&queries, Target::Snapshots, &wrong, 0, Some("?")).await.unwrap_err();
    let QueryError::Invalid(flaws) = refused else { panic!("{refused}") };
    assert_eq!(
        flaws.iter().map(|flaw| &*flaw.field).collect::<Vec<_>>(),
        [
            "condition.children[0].children",
            "condition.children[1].value",
            "projection",
            "sort",
            "limit",
            "after",
        ]
    );
}

/// A collection that does not exist has no documents.
#[fixture::test]
async fn unknown_aggregates_have_nothing() {
    let world = World::new().await;
    let queries = world.queries();
    for target in [Target::Events, Target::Snapshots] {
        let query = query(Condition::All);
        let (found, next) = part(&queries, target, &query, 10, None).await.unwrap();
        assert_eq!((found.len(), next), (0, None));
        let page = Page { index: 1, size: 10 };
        let paged = queries.page(target, &order(), &query, page).await.unwrap();
        assert_eq!((paged.items.len(), paged.total), (0, 0));
        assert_eq!(queries.count(target, &order(), &query).await.unwrap(), 0);
        assert_eq!(queries.single(target, &order(), &query).await.unwrap(), None);
    }
}

/// MongoDB stores bytes that are not text, and some drivers write them.
#[fixture::test]
async fn document_that_is_not_text_is_found_and_marked() {
    let world = World::new().await;
    for target in [Target::Events, Target::Snapshots] {
        for document in [
            doc! { "_id": "1", "deleted": false, "state": { "t": "a" } },
            doc! { "_id": "2", "deleted": false, "state": { "t": "MARK", "n": 7 } },
            doc! { "_id": "3", "deleted": false, "state": { "t": "b" } },
            doc! { "_id": "MARK", "deleted": false, "state": { "t": "c" } },
        ] {
            insert_broken(&world.collection(target), &document).await;
        }
        let queries = world.queries();
        let all = query(Condition::All);

        let page = queries.page(target, &order(), &all, Page { index: 1, size: 10 }).await.unwrap();
        let (listed, _) = part(&queries, target, &all, 10, None).await.unwrap();

        assert_eq!((page.total, &page.items), (4, &listed));
        let marked = doc! {
            "_id": "2", "deleted": false, "state": { "t": REPLACED, "n": 7 },
            "invalid": ["state.t: is not valid UTF-8"],
        };
        assert_eq!(listed[1], marked);
        assert_eq!(listed[2], doc! { "_id": "3", "deleted": false, "state": { "t": "b" } });
        assert_eq!(listed[3].get_str("_id").unwrap(), REPLACED);
        // In parts: the cursor behind the one without a valid id is that before it.
        let mut ids = Vec::new();
        let mut after = None;
        for _ in 0..3 {
            let (part, next) = part(&queries, target, &all, 2, after.as_deref()).await.unwrap();
            ids.extend(part.iter().map(|found| found.get_str("_id").unwrap().to_owned()));
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(ids, ["1", "2", "3", REPLACED]);
    }
}
