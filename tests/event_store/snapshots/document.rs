//! The stored form of snapshots.

use bson::{Bson, DateTime, Document, doc};
use postrider::context::CollectionKind;
use postrider::snapshot::Snapshot;

use crate::home::{Home, id, order};
use crate::support::outbox::{REPLACED, insert_broken};

async fn stored(home: &Home, id: &str) -> Document {
    let snapshots = home.context.collection(CollectionKind::Snapshots, "order");
    snapshots.find_one(doc! { "_id": id }).await.unwrap().unwrap()
}

fn full() -> Snapshot {
    Snapshot {
        tenant_id: Some("tenant-1".into()),
        owner_id: Some("owner-1".into()),
        event_id: Some("event-10".into()),
        first_operator: Some("ada".into()),
        operator: Some("bob".into()),
        first_event_time: Some(1_699_920_000_000),
        event_time: Some(7),
        deleted: true,
        ..Snapshot::new(id("order-1"), 10, doc! { "status": "PAID" })
    }
}

#[fixture::test]
async fn saved_snapshot_is_loaded() {
    let home = Home::new().await;
    let snapshots = home.snapshots();

    snapshots.save(&order(), full()).await.unwrap();

    let loaded = snapshots.load(&order(), &id("order-1"), None).await.unwrap().unwrap();
    assert!(loaded.snapshot_time.is_some());
    assert_eq!(Snapshot { snapshot_time: None, ..loaded }, full());
    assert_eq!(snapshots.version(&order(), &id("order-1")).await.unwrap(), 10);
}

#[fixture::test]
async fn snapshot_is_stored_as_by_the_wow_framework() {
    let home = Home::new().await;

    home.snapshots().save(&order(), full()).await.unwrap();

    let stored = stored(&home, "order-1").await;
    let time = stored.get_i64("snapshotTime").unwrap();
    let expected = doc! {
        "_id": "order-1",
        "contextName": "default",
        "aggregateName": "order",
        "tenantId": "tenant-1",
        "ownerId": "owner-1",
        "version": 10_i32,
        "eventId": "event-10",
        "firstOperator": "ada",
        "operator": "bob",
        "firstEventTime": 1_699_920_000_000_i64,
        "eventTime": 7_i64,
        "snapshotTime": time,
        "deleted": true,
        "state": { "status": "PAID" },
    };
    assert_eq!(stored, expected);
}

#[fixture::test]
async fn fields_without_a_value_are_absent() {
    let home = Home::new().await;

    home.snapshots().save(&order(), Snapshot::new(id("order-1"), 1, doc! {})).await.unwrap();

    let stored = stored(&home, "order-1").await;
    let mut names: Vec<&str> = stored.keys().map(String::as_str).collect();
    names.sort_unstable();
    let least =
        ["_id", "aggregateName", "contextName", "deleted", "snapshotTime", "state", "version"];
    assert_eq!(names, least);
    assert!(!stored.get_bool("deleted").unwrap());
}

#[fixture::test]
async fn version_beyond_32_bits_is_int64() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    for version in [i64::from(i32::MAX), i64::from(i32::MAX) + 1, i64::MAX] {
        snapshots.save(&order(), Snapshot::new(id("order-1"), version, doc! {})).await.unwrap();

        let stored = stored(&home, "order-1").await;
        let is_long = matches!(stored["version"], Bson::Int64(_));
        assert_eq!(is_long, version > i64::from(i32::MAX), "{version}");
        assert_eq!(snapshots.version(&order(), &id("order-1")).await.unwrap(), version);
    }
}

#[fixture::test]
async fn state_is_stored_as_written() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    let state = doc! {
        "z": 1_i64,
        "a.b": { "$c": "$$ROOT", "$add": [1, 2] },
        "": null,
        "$": "$$REMOVE",
        "_id": ["$version", { "$literal": 1 }],
        "version": 1.0,
        "date": DateTime::from_millis(-1),
    };

    for version in [1, 2] {
        let snapshot = Snapshot::new(id("$$ROOT"), version, state.clone());
        snapshots.save(&order(), snapshot).await.unwrap();

        let loaded = snapshots.load(&order(), &id("$$ROOT"), None).await.unwrap().unwrap().state;
        // As bytes: the order of the fields, and the types.
        assert_eq!(loaded.to_vec().unwrap(), state.to_vec().unwrap());
    }
}

#[fixture::test]
async fn snapshot_fields_are_never_expressions() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    let tricky = Snapshot {
        tenant_id: Some("$$ROOT".into()),
        owner_id: Some("$_id".into()),
        event_id: Some("$$REMOVE".into()),
        first_operator: Some("$version".into()),
        operator: Some("$$NOW".into()),
        ..full()
    };

    snapshots.save(&order(), tricky.clone()).await.unwrap();

    let loaded = snapshots.load(&order(), &id("order-1"), Some("$$ROOT")).await.unwrap().unwrap();
    assert_eq!(Snapshot { snapshot_time: None, ..loaded }, tricky);
}

#[fixture::test]
async fn first_operator_and_time_are_kept_unless_given() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    let bare = |version| Snapshot::new(id("order-1"), version, doc! {});
    let first = |operator: &str, millis| Snapshot {
        first_operator: Some(operator.into()),
        first_event_time: Some(millis),
        operator: Some("bob".into()),
        ..bare(1)
    };
    snapshots.save(&order(), first("ada", 1)).await.unwrap();

    snapshots.save(&order(), bare(2)).await.unwrap();
    let kept = snapshots.load(&order(), &id("order-1"), None).await.unwrap().unwrap();
    assert_eq!(kept.first_operator.as_deref(), Some("ada"));
    assert_eq!(kept.first_event_time, Some(1));
    assert_eq!(kept.operator, None, "which is not of the first");

    let given = Snapshot { version: 3, ..first("eve", 2) };
    snapshots.save(&order(), given).await.unwrap();
    let given = snapshots.load(&order(), &id("order-1"), None).await.unwrap().unwrap();
    assert_eq!(given.first_operator.as_deref(), Some("eve"));
    assert_eq!(given.first_event_time, Some(2));
}

#[fixture::test]
async fn deleted_flag_is_set_and_reset() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    for (version, deleted) in [(1, false), (2, true), (3, false)] {
        let snapshot = Snapshot { deleted, ..Snapshot::new(id("order-1"), version, doc! {}) };
        snapshots.save(&order(), snapshot).await.unwrap();

        let loaded = snapshots.load(&order(), &id("order-1"), None).await.unwrap().unwrap();
        assert_eq!(loaded.deleted, deleted);
    }
}

#[fixture::test]
async fn snapshot_is_loaded_for_its_tenant_only() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    snapshots.save(&order(), full()).await.unwrap();
    snapshots.save(&order(), Snapshot::new(id("order-2"), 1, doc! {})).await.unwrap();

    let load = async |text: &str, tenant| {
        snapshots.load(&order(), &id(text), tenant).await.unwrap().is_some()
    };
    assert!(load("order-1", Some("tenant-1")).await);
    assert!(!load("order-1", Some("tenant-2")).await);
    assert!(!load("order-2", Some("tenant-1")).await);
    assert!(load("order-2", None).await);
}

#[fixture::test]
async fn version_without_a_snapshot_is_0() {
    let home = Home::new().await;
    let snapshots = home.snapshots();

    assert_eq!(snapshots.version(&order(), &id("nobody")).await.unwrap(), 0);
    assert_eq!(snapshots.load(&order(), &id("nobody"), None).await.unwrap(), None);
}

/// serde would take the state for extended JSON.
#[fixture::test]
async fn state_like_extended_json_is_unchanged() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    let states = [
        doc! { "$oid": "65a000000000000000000000" },
        doc! { "$numberLong": "5" },
        doc! { "in": [{ "$date": 1 }, { "$oid": 1 }, { "$numberLong": "x" }] },
        doc! { "$code": "x", "$scope": { "$uuid": "no" }, "$binary": 1 },
    ];
    for (version, state) in (1..).zip(states) {
        let saved = Snapshot::new(id("order-1"), version, state.clone());
        snapshots.save(&order(), saved).await.unwrap();

        let loaded = snapshots.load(&order(), &id("order-1"), None).await.unwrap().unwrap();

        assert_eq!((loaded.version, loaded.state), (version, state));
    }
}

/// MongoDB stores bytes that are not text, and some drivers write them.
#[fixture::test]
async fn snapshot_that_is_not_text_is_loaded_and_marked() {
    let home = Home::new().await;
    let stored = home.context.collection(CollectionKind::Snapshots, "order");
    let odd =
        doc! { "_id": "order-1", "version": 3, "tenantId": "t", "state": { "a": "MARK", "n": 7 } };
    insert_broken(&stored, &odd).await;

    let loaded = home.snapshots().load(&order(), &id("order-1"), Some("t")).await.unwrap().unwrap();

    assert_eq!((loaded.version, loaded.state), (3, doc! { "a": REPLACED, "n": 7 }));
    assert_eq!(loaded.invalid, ["state.a: is not valid UTF-8"]);
    // And replaced by a newer one.
    let saved = Snapshot::new(id("order-1"), 4, doc! { "n": 8 });
    home.snapshots().save(&order(), saved).await.unwrap();
    let loaded = home.snapshots().load(&order(), &id("order-1"), None).await.unwrap().unwrap();
    assert_eq!((loaded.version, loaded.invalid), (4, vec![]));
}
