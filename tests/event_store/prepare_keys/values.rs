//! Equality of values, and values that look like expressions.

use bson::{Bson, DateTime, Decimal128, Document, bson, doc};
use mongodb::Client;
use postrider::prepare::{PrepareKey, Ttl};

use crate::home::Home;
use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::TestOutbox;

#[fixture::test]
async fn values_are_compared_without_the_order_of_fields() {
    let home = Home::new().await;
    let keys = home.keys();
    let stored = bson!({ "a": [{ "x": 1, "y": { "p": null, "q": [1, 2] } }], "b": 2 });
    let known = bson!({ "b": 2.0, "a": [{ "y": { "q": [1_i64, 2], "p": null }, "x": 1 }] });
    let swapped = bson!({ "a": [{ "x": 1, "y": { "p": null, "q": [2, 1] } }], "b": 2 });
    keys.prepare("ada", &stored, Ttl::Forever).await.unwrap();

    assert!(!keys.reprepare("ada", Some(&swapped), &bson!(1), Ttl::Forever).await.unwrap());
    assert!(!keys.rollback_value("ada", &swapped).await.unwrap());
    assert!(keys.reprepare("ada", Some(&known), &stored, Ttl::Forever).await.unwrap());
    assert!(keys.rollback_value("ada", &known).await.unwrap());
}

#[fixture::test]
async fn array_differs_from_its_item() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!([1, [2]]), Ttl::Forever).await.unwrap();

    for item in [bson!(1), bson!([2]), bson!([1])] {
        assert!(!keys.rollback_value("ada", &item).await.unwrap(), "{item}");
    }
    assert!(keys.rollback_value("ada", &bson!([1, [2]])).await.unwrap());
}

#[fixture::test]
async fn scalars_are_equal_as_in_mongodb() {
    let decimal = |text: &str| Bson::Decimal128(text.parse::<Decimal128>().unwrap());
    let scalars = [
        bson!(1),
        bson!(1_i64),
        bson!(1.0),
        decimal("1.00"),
        bson!(0.1),
        decimal("0.1"),
        decimal("0.1000000000000000055511151231257827"),
        bson!(9_007_199_254_740_993_i64),
        bson!(9_007_199_254_740_992.0),
        bson!(i64::MAX),
        decimal("9.223372036854775807E+18"),
        bson!(9_223_372_036_854_775_808.0),
        bson!(0),
        bson!(-0.0),
        decimal("-0E+5"),
        bson!(f64::NAN),
        decimal("NaN"),
        bson!(f64::INFINITY),
        decimal("Infinity"),
        bson!("1"),
        bson!(true),
        bson!(null),
        bson!(""),
    ];
    let home = Home::new().await;
    let keys = home.keys();
    let probe = |a: &Bson, b: &Bson| doc! { "$eq": [{ "$literal": a }, { "$literal": b }] };
    let pairs = scalars.iter().map(|a| {
        let row = scalars.iter().map(|b| probe(a, b));
        Bson::from(row.collect::<Vec<_>>())
    });
    let project = doc! { "$project": { "equal": pairs.collect::<Vec<_>>() } };
    let database = home.context.client().database("admin");
    let mut answer = database.aggregate([doc! { "$documents": [{}] }, project]).await.unwrap();
    assert!(answer.advance().await.unwrap());
    let answer = answer.deserialize_current().unwrap();
    let equal = answer.get_array("equal").unwrap();

    for (a, row) in scalars.iter().zip(equal) {
        keys.prepare("ada", a, Ttl::Forever).await.unwrap();
        for (b, expected) in scalars.iter().zip(row.as_array().unwrap()) {
            // Nothing changes for the next pair.
            let same = keys.reprepare("ada", Some(b), a, Ttl::Forever).await.unwrap();
            assert_eq!(Some(same), expected.as_bool(), "{a:?} {b:?}");
        }
        assert!(keys.rollback("ada").await.unwrap());
    }
}

#[fixture::test]
async fn values_and_keys_are_never_expressions() {
    let home = Home::new().await;
    let keys = home.keys();
    let tricky = [
        bson!("$$ROOT"),
        bson!("$_id"),
        bson!("$$REMOVE"),
        bson!({ "$add": [1, 2] }),
        bson!({ "$literal": { "$literal": 1 } }),
        bson!({ "a.b": { "$c": "$d" }, "": null, "$": "$$NOW", "_id": 1 }),
        bson!([{ "$ref": 5 }, "$value"]),
    ];
    for value in &tricky {
        let other = bson!({ "$set": { "a.b": 1 } });
        assert!(keys.prepare("$$ROOT", value, Ttl::Forever).await.unwrap(), "{value}");
        assert_eq!(keys.get_value("$$ROOT").await.unwrap().as_ref(), Some(value));
        assert!(keys.reprepare("$$ROOT", Some(value), &other, Ttl::Forever).await.unwrap());
        assert_eq!(keys.get_value("$$ROOT").await.unwrap().as_ref(), Some(&other));
        assert!(keys.rollback_value("$$ROOT", &other).await.unwrap(), "{value}");
    }
}

#[fixture::test]
async fn document_value_is_replaced_and_not_merged() {
    let home = Home::new().await;
    let keys = home.keys();
    keys.prepare("ada", &bson!({ "a": 1 }), Ttl::Forever).await.unwrap();

    keys.reprepare("ada", None, &bson!({ "b": 2 }), Ttl::Forever).await.unwrap();

    assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!({ "b": 2 })));
}

#[fixture::test]
async fn document_without_a_value_is_not_held() {
    let home = Home::new().await;
    let keys = home.keys();
    home.stored().insert_one(doc! { "_id": "ada" }).await.unwrap();

    assert_eq!(keys.get("ada").await.unwrap(), None);
    assert!(!keys.rollback("ada").await.unwrap());
    assert!(keys.prepare("ada", &Bson::Null, Ttl::Forever).await.unwrap());
    assert_eq!(keys.get_value("ada").await.unwrap(), Some(Bson::Null));
}

#[fixture::test]
async fn key_that_expires_after_the_read_is_not_changed() {
    let outbox = TestOutbox::new().await;
    let keys = Home::within(&outbox, &outbox.client).keys();
    let past = Ttl::At(DateTime::from_millis(1_000));
    for rollback in [false, true] {
        keys.prepare("ada", &bson!("old"), Ttl::Forever).await.unwrap();
        let (slow, has_paused) = interrupted(&outbox, bson!("old"), past).await;

        let outcome = if rollback {
            slow.rollback_value("ada", &bson!("old")).await
        } else {
            slow.reprepare("ada", Some(&bson!("old")), &bson!(1), Ttl::Forever).await
        };

        assert!(has_paused());
        assert!(!outcome.unwrap(), "{rollback}");
        assert_eq!(keys.get("ada").await.unwrap(), None);
    }
}

/// Keys of a client that changes the key between the first read of the value and the write.
async fn interrupted(
    outbox: &TestOutbox,
    value: Bson,
    ttl: Ttl,
) -> (PrepareKey, impl Fn() -> bool + use<>) {
    let recorder = CommandRecorder::on(outbox).await;
    let direct: Client = outbox.client.clone();
    let home = Home::within(outbox, &direct);
    let keys = Home::within(outbox, recorder.collections.client()).keys();
    // The schema has been checked.
    assert!(!keys.rollback("nobody").await.unwrap());
    recorder.after(
        |command| command.name == "find",
        move || async move {
            home.keys().reprepare("ada", None, &value, ttl).await.unwrap();
        },
    );
    (keys, move || recorder.has_paused())
}

#[fixture::test]
async fn value_that_changes_after_the_read_is_kept() {
    let outbox = TestOutbox::new().await;
    let keys = Home::within(&outbox, &outbox.client).keys();
    for rollback in [false, true] {
        keys.prepare("ada", &bson!("old"), Ttl::Forever).await.unwrap();
        let (slow, has_paused) = interrupted(&outbox, bson!("another's"), Ttl::Forever).await;

        let outcome = if rollback {
            slow.rollback_value("ada", &bson!("old")).await
        } else {
            slow.reprepare("ada", Some(&bson!("old")), &bson!(1), Ttl::Forever).await
        };

        assert!(has_paused());
        assert!(!outcome.unwrap(), "{rollback}");
        assert_eq!(keys.get_value("ada").await.unwrap(), Some(bson!("another's")));
        assert!(keys.rollback("ada").await.unwrap());
    }
}

#[fixture::test]
async fn value_that_becomes_an_equal_one_is_read_again() {
    let outbox = TestOutbox::new().await;
    let keys = Home::within(&outbox, &outbox.client).keys();
    keys.prepare("ada", &bson!({ "a": 1, "b": 2 }), Ttl::Forever).await.unwrap();
    let (slow, has_paused) = interrupted(&outbox, bson!({ "b": 2, "a": 1 }), Ttl::Forever).await;

    assert!(slow.rollback_value("ada", &bson!({ "a": 1, "b": 2 })).await.unwrap());

    assert!(has_paused());
    assert_eq!(keys.get("ada").await.unwrap(), None);
}

/// serde would take the value for extended JSON.
#[fixture::test]
async fn value_like_extended_json_is_unchanged() {
    let home = Home::new().await;
    let keys = home.keys();
    for value in [
        doc! { "$oid": "65a000000000000000000000" },
        doc! { "$numberLong": "5" },
        doc! { "in": [{ "$date": 1 }, { "$oid": 1 }, { "$numberLong": "x" }] },
    ] {
        let meant = bson!({ "other": 5_i64 });
        let whole = Bson::from(value.clone());
        assert!(keys.prepare("ada", &whole, Ttl::Forever).await.unwrap());

        assert_eq!(keys.get_value("ada").await.unwrap().as_ref(), Some(&whole));
        assert!(!keys.reprepare("ada", Some(&bson!(5_i64)), &meant, Ttl::Forever).await.unwrap());
        assert!(keys.reprepare("ada", Some(&whole), &whole, Ttl::Forever).await.unwrap());
        assert!(keys.move_key("ada", &whole, "bob", &whole, Ttl::Forever).await.unwrap());
        let documents = PrepareKey::<Document>::new(home.context.clone(), keys.name().clone());
        assert_eq!(documents.get_value("bob").await.unwrap().as_ref(), Some(&value));
        assert!(documents.rollback_value("bob", &value).await.unwrap());
        assert!(documents.prepare("eve", &value, Ttl::Forever).await.unwrap());
        assert_eq!(keys.get_value("eve").await.unwrap(), Some(whole));
        assert!(keys.rollback("eve").await.unwrap());
    }
}
