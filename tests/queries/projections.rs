//! Fields of the answers: those of a plain find, whatever the order needs in addition.

use bson::{Bson, Document, bson, doc};
use futures_util::TryStreamExt;
use postrider::events::query::{
    Condition, Direction, Page, Projection, Query, QueryError, SortKey, Target,
};

use crate::world::{World, field, order, part, query};

fn documents() -> Vec<Document> {
    let values = [
        bson!(1),
        Bson::Null,
        bson!({}),
        bson!({ "b": 1, "c": 2 }),
        bson!({ "b": { "c": 1, "d": 2 }, "c": [] }),
        bson!([]),
        bson!([1, { "b": 1, "c": 2 }, [{ "b": 3 }, 4], [], {}]),
        bson!({ "b": [1, { "c": 1, "d": 2 }, [{ "c": 3, "d": 4 }]] }),
        bson!({ "c": 1, "b": [[1]] }),
    ];
    let documents = values.into_iter().enumerate();
    let documents =
        documents.map(|(id, a)| doc! { "_id": id as i32, "a": a, "k": 1, "z": { "b": 1 } });
    documents.chain([doc! { "_id": 100, "k": 1 }]).collect()
}

/// `k` is in the order, so lists read it also where it is not in the answers; pages do not.
#[fixture::test]
async fn answers_have_the_fields_of_a_plain_find() {
    let world = World::new().await;
    world.insert(Target::Events, documents()).await;
    let queries = world.queries();
    let paths = [
        &["a"][..],
        &["a.b"],
        &["a.b.c"],
        &["a.b", "z.b"],
        &["a.c", "a.b.d"],
        &["z"],
        &["id"],
        &["_id", "a.b"],
        &["none"],
        &["a.b.c", "a.b.d"],
        &["k"],
        &["k", "a.b"],
    ];
    for names in paths {
        for is_included in [true, false] {
            let stored =
                |name: &&str| if *name == "id" { "_id".to_owned() } else { (*name).to_owned() };
            let plain: Document =
                names.iter().map(|name| (stored(name), Bson::Int32(is_included.into()))).collect();
            let fields = names.iter().map(|name| field(name)).collect();
            let projection =
                if is_included { Projection::Include(fields) } else { Projection::Exclude(fields) };
            let collection = world.collection(Target::Events);
            let found = collection.find(doc! {}).sort(doc! { "_id": 1 }).projection(plain);
            let expected: Vec<Document> = found.await.unwrap().try_collect().await.unwrap();
            let sort = SortKey { field: field("k"), direction: Direction::Asc };
            let query = Query { projection, sort: vec![sort], ..query(Condition::All) };

            let (listed, _) = part(&queries, Target::Events, &query, 100, None).await.unwrap();
            let page = Page { index: 1, size: 100 };
            let paged = queries.page(Target::Events, &order(), &query, page).await.unwrap();

            assert_eq!(listed, expected, "list, {:?}", query.projection);
            assert_eq!(paged.items, expected, "page, {:?}", query.projection);
        }
    }
}

/// Only a Rust program can make it.
#[fixture::test]
async fn no_field_included_is_the_id() {
    let world = World::new().await;
    world.insert(Target::Events, documents()).await;
    let queries = world.queries();
    let query = Query { projection: Projection::Include(Vec::new()), ..query(Condition::All) };

    let (found, _) = part(&queries, Target::Events, &query, 1, None).await.unwrap();

    assert_eq!(found, [doc! { "_id": 0 }]);
}

#[fixture::test]
async fn fields_that_contain_each_other_are_named() {
    let world = World::new().await;
    world.insert(Target::Snapshots, documents()).await;
    let queries = world.queries();
    for (names, target, flaw) in [
        (
            ["a", "a.b"],
            Target::Events,
            "projection: has a and a.b, one of which contains the other; remove one of the two",
        ),
        (
            ["a.b.c", "a.b"],
            Target::Events,
            "projection: has a.b.c and a.b, one of which contains the other; remove one of the two",
        ),
        // MongoDB would leave out the id.
        (["a", "_id.x"], Target::Snapshots, "projection: has _id.x, but an id has no fields"),
    ] {
        let fields: Vec<_> = names.iter().map(|name| field(name)).collect();
        for projection in [Projection::Include(fields.clone()), Projection::Exclude(fields)] {
            let query = Query { projection, ..query(Condition::All) };
            let refused = part(&queries, target, &query, 1, None).await.unwrap_err();
            let QueryError::Invalid(flaws) = refused else { panic!("{refused}") };
            assert_eq!(flaws.iter().map(ToString::to_string).collect::<Vec<_>>(), [flaw]);
        }
    }
}
