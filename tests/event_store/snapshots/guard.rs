//! Snapshots are guarded by version.

use bson::{Bson, Decimal128, bson, doc};
use postrider::context::CollectionKind;
use postrider::snapshot::{Saved, Snapshot, SnapshotStore};

use crate::home::{Home, id, order};

fn at(version: i64, label: &str) -> Snapshot {
    Snapshot::new(id("order-1"), version, doc! { "label": label })
}

async fn label(snapshots: &SnapshotStore) -> String {
    let loaded = snapshots.load(&order(), &id("order-1"), None).await.unwrap().unwrap();
    loaded.state.get_str("label").unwrap().to_owned()
}

#[fixture::test]
async fn newer_snapshot_replaces_an_older_one() {
    let home = Home::new().await;
    let snapshots = home.snapshots();

    let first = snapshots.save(&order(), at(1, "first")).await.unwrap();
    let second = snapshots.save(&order(), at(4, "second")).await.unwrap();

    assert_eq!(first, Saved { written: true, version: 1 });
    assert_eq!(second, Saved { written: true, version: 4 });
    assert_eq!(label(&snapshots).await, "second");
}

#[fixture::test]
async fn older_snapshot_is_not_written() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    snapshots.save(&order(), at(4, "newer")).await.unwrap();
    let collection = home.context.collection(CollectionKind::Snapshots, "order");
    let before = collection.find_one(doc! {}).await.unwrap();

    let older = snapshots.save(&order(), at(3, "older")).await.unwrap();

    assert_eq!(older, Saved { written: false, version: 4 });
    assert_eq!(collection.find_one(doc! {}).await.unwrap(), before);
}

#[fixture::test]
async fn snapshot_of_the_same_version_is_replaced() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    snapshots.save(&order(), at(4, "one")).await.unwrap();

    let same = snapshots.save(&order(), at(4, "other")).await.unwrap();

    assert_eq!(same, Saved { written: true, version: 4 });
    assert_eq!(label(&snapshots).await, "other");
}

#[fixture::test]
async fn same_snapshot_within_a_millisecond_counts_as_written() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    let saves = (0..200).map(|_| {
        let snapshots = snapshots.clone();
        tokio::spawn(async move { snapshots.save(&order(), at(4, "same")).await.unwrap() })
    });

    for saved in futures_util::future::join_all(saves).await {
        assert_eq!(saved.unwrap(), Saved { written: true, version: 4 });
    }
}

#[fixture::test]
async fn highest_version_stays_when_eight_save_at_once() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    for round in 0..20 {
        let saves = [3, 8, 1, 6, 2, 7, 5, 4].map(|version| {
            let snapshots = snapshots.clone();
            let snapshot = Snapshot::new(id(&format!("order-{round}")), version, doc! {});
            tokio::spawn(async move { snapshots.save(&order(), snapshot).await.unwrap() })
        });

        for (version, saved) in [3, 8, 1, 6, 2, 7, 5, 4].into_iter().zip(saves) {
            let saved = saved.await.unwrap();
            assert!(saved.version >= version, "{saved:?}");
            assert_eq!(saved.written, saved.version == version, "{saved:?}");
        }
        let id = id(&format!("order-{round}"));
        assert_eq!(snapshots.version(&order(), &id).await.unwrap(), 8);
    }
}

#[fixture::test]
async fn stored_version_that_is_not_an_integer_is_replaced() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    let collection = home.context.collection(CollectionKind::Snapshots, "order");
    let odd = [
        bson!("9"),
        Bson::Null,
        bson!(9.5),
        bson!(f64::NAN),
        bson!(f64::INFINITY),
        bson!(9_223_372_036_854_775_808.0),
        Bson::Decimal128("1E+3".parse::<Decimal128>().unwrap()),
        bson!({ "n": 9 }),
        bson!([9]),
        Bson::DateTime(bson::DateTime::MAX),
    ];
    for (at, version) in odd.into_iter().enumerate() {
        let id = id(&format!("order-{at}"));
        let stored = doc! { "_id": id.as_str(), "version": &version, "state": {} };
        collection.insert_one(stored).await.unwrap();
        assert_eq!(snapshots.version(&order(), &id).await.unwrap(), 0, "{version}");
        assert_eq!(snapshots.load(&order(), &id, None).await.unwrap(), None, "{version}");

        let saved = snapshots.save(&order(), Snapshot::new(id.clone(), 2, doc! {})).await.unwrap();

        assert_eq!(saved, Saved { written: true, version: 2 }, "{version}");
        assert_eq!(snapshots.version(&order(), &id).await.unwrap(), 2);
    }
}

#[fixture::test]
async fn stored_version_may_be_a_double() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    let collection = home.context.collection(CollectionKind::Snapshots, "order");
    let stored = doc! { "_id": "order-1", "version": 9.0, "state": { "label": "shell" } };
    collection.insert_one(stored).await.unwrap();

    let older = snapshots.save(&order(), at(8, "older")).await.unwrap();

    assert_eq!(older, Saved { written: false, version: 9 });
    assert_eq!(label(&snapshots).await, "shell");
}

#[fixture::test]
async fn snapshot_without_a_state_is_none() {
    let home = Home::new().await;
    let collection = home.context.collection(CollectionKind::Snapshots, "order");
    collection.insert_one(doc! { "_id": "order-1", "version": 9 }).await.unwrap();

    assert_eq!(home.snapshots().load(&order(), &id("order-1"), None).await.unwrap(), None);
}
