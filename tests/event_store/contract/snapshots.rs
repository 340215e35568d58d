//! The clauses of the contract of a snapshot store.

use bson::doc;
use futures_util::future::join_all;
use postrider::names::{AggregateId, AggregateName};
use postrider::snapshot::{Saved, Snapshot, SnapshotError};

use crate::contract::stores::Snapshots;

fn id(text: &str) -> AggregateId {
    AggregateId::new(text).unwrap()
}

/// A snapshot of aggregate `1`.
fn of_version(version: i64, status: &str) -> Snapshot {
    Snapshot::new(id("1"), version, doc! { "status": status })
}

async fn save(store: &impl Snapshots, name: &AggregateName, snapshot: Snapshot) -> (bool, i64) {
    let Saved { written, version } = store.save(name, snapshot).await.unwrap();
    (written, version)
}

/// The version and status of the stored snapshot.
async fn there(store: &impl Snapshots, name: &AggregateName) -> (i64, String) {
    let snapshot = store.load(name, &id("1"), None).await.unwrap().unwrap();
    assert_eq!(store.version(name, &id("1")).await.unwrap(), snapshot.version);
    (snapshot.version, snapshot.state.get_str("status").unwrap().to_owned())
}

pub async fn saved_snapshot_is_loaded(store: &impl Snapshots, name: &AggregateName) {
    let given = Snapshot {
        tenant_id: Some("t".into()),
        owner_id: Some("o".into()),
        event_id: Some("e".into()),
        first_operator: Some("ada".into()),
        operator: Some("bob".into()),
        first_event_time: Some(1_000),
        event_time: Some(2_000),
        deleted: true,
        state: doc! { "z": 1, "a": { "$deep": ["$x", { "$add": [1, 2] }] } },
        ..of_version(7, "")
    };
    save(store, name, given.clone()).await;
    save(store, name, Snapshot::new(id("2"), 1, doc! {})).await;

    let loaded = store.load(name, &id("1"), None).await.unwrap().unwrap();

    assert!(loaded.snapshot_time.is_some());
    assert_eq!(Snapshot { snapshot_time: None, ..loaded }, given);
    assert!(!store.load(name, &id("2"), None).await.unwrap().unwrap().deleted);
}

pub async fn absent_snapshot_has_version_0(store: &impl Snapshots, name: &AggregateName) {
    for _ in 0..2 {
        assert_eq!(store.load(name, &id("1"), None).await.unwrap(), None);
        assert_eq!(store.version(name, &id("1")).await.unwrap(), 0);
        save(store, name, Snapshot::new(id("2"), 1, doc! {})).await;
    }
}

pub async fn version_below_1_is_refused(store: &impl Snapshots, name: &AggregateName) {
    for version in [0, -1] {
        let refused = store.save(name, of_version(version, "")).await;
        assert!(matches!(refused, Err(SnapshotError::Version(_))), "{refused:?}");
    }
}

pub async fn snapshot_of_the_same_version_replaces(store: &impl Snapshots, name: &AggregateName) {
    assert_eq!(save(store, name, of_version(3, "first")).await, (true, 3));
    assert_eq!(save(store, name, of_version(3, "second")).await, (true, 3));
    assert_eq!(there(store, name).await, (3, "second".into()));
}

pub async fn newer_snapshot_replaces(store: &impl Snapshots, name: &AggregateName) {
    assert_eq!(save(store, name, of_version(3, "older")).await, (true, 3));
    assert_eq!(save(store, name, of_version(9, "newer")).await, (true, 9));
    assert_eq!(there(store, name).await, (9, "newer".into()));
}

pub async fn older_snapshot_is_not_written(store: &impl Snapshots, name: &AggregateName) {
    save(store, name, of_version(9, "newer")).await;

    assert_eq!(save(store, name, of_version(8, "older")).await, (false, 9));

    assert_eq!(there(store, name).await, (9, "newer".into()));
}

pub async fn newest_of_concurrent_saves_is_stored(store: &impl Snapshots, name: &AggregateName) {
    for round in 0..5 {
        let versions = [3, 8, 1, 6, 2, 7, 5, 4].map(|version| round * 8 + version);
        let saving = versions.map(|version| save(store, name, of_version(version, "")));
        for (version, (written, there)) in versions.into_iter().zip(join_all(saving).await) {
            assert!(if written { there == version } else { there > version });
        }
        assert_eq!(there(store, name).await.0, round * 8 + 8);
    }
}

pub async fn reads_are_limited_to_the_tenant(store: &impl Snapshots, name: &AggregateName) {
    save(store, name, Snapshot { tenant_id: Some("t".into()), ..of_version(1, "") }).await;

    for (tenant, sees) in [(Some("t"), true), (None, true), (Some("u"), false)] {
        let loaded = store.load(name, &id("1"), tenant).await.unwrap();
        assert_eq!(loaded.is_some(), sees, "{tenant:?}");
    }
}
