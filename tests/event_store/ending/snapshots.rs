//! Snapshots of ended streams.

use bson::{Document, doc};
use postrider::context::CollectionKind;
use postrider::snapshot::{Snapshot, SnapshotError, SnapshotStore};

use crate::ending::util::{SECRET, end, erase, leaks, other_store, secret, settle};
use crate::events::util::{TestStore, append, id, name};
use crate::support::command_recorder::CommandRecorder;
use postrider::context::{Context, ContextSettings};

fn snapshots(test: &TestStore) -> SnapshotStore {
    SnapshotStore::new(test.store.context().clone())
}

fn at(version: i64) -> Snapshot {
    Snapshot::new(id("1"), version, doc! { "who": SECRET })
}

async fn stored(test: &TestStore) -> Option<Document> {
    let stored = test.store.context().collection(CollectionKind::Snapshots, "order");
    stored.find_one(doc! { "_id": "1" }).await.unwrap()
}

#[fixture::test]
async fn snapshot_of_an_ended_stream_is_deleted_and_stays_so() {
    let test = TestStore::new().await;
    let snapshots = snapshots(&test);
    test.store.append(append("1", "a")).await.unwrap();
    snapshots.save(&name(), at(1)).await.unwrap();

    end(&test.store, "1", "e").await.unwrap();

    let marked = stored(&test).await.unwrap();
    assert!(marked.get_bool("deleted").unwrap());
    assert_eq!(marked.get_i32("version").unwrap(), 2);
    assert_eq!(marked.get_document("state").unwrap(), &doc! { "who": SECRET });
    for version in [1, 2, 3, i64::MAX] {
        let saved = snapshots.save(&name(), at(version)).await;
        assert!(matches!(saved, Err(SnapshotError::Ended)), "{version}: {saved:?}");
    }
    assert_eq!(stored(&test).await.unwrap(), marked);
    let loaded = snapshots.load(&name(), &id("1"), None).await;
    assert!(matches!(loaded, Err(SnapshotError::Ended)), "{loaded:?}");
    assert_eq!(snapshots.version(&name(), &id("1")).await.unwrap(), 2);
}

#[fixture::test]
async fn end_creates_no_snapshot_and_none_is_saved_afterwards() {
    let test = TestStore::new().await;
    let snapshots = snapshots(&test);
    test.store.append(append("1", "a")).await.unwrap();
    end(&test.store, "1", "e").await.unwrap();

    let saved = snapshots.save(&name(), at(1)).await;

    assert!(matches!(saved, Err(SnapshotError::Ended)), "{saved:?}");
    assert!(stored(&test).await.is_none());
    assert!(snapshots.load(&name(), &id("1"), None).await.unwrap().is_none());
}

/// The stream ends after the save has looked, and before it inserts.
#[fixture::test]
async fn first_snapshot_that_meets_an_erasure_is_erased() {
    let test = TestStore::new().await;
    test.store.append(secret("a")).await.unwrap();
    settle(&test, "done").await;
    let other = other_store(&test).await;
    let recorder = CommandRecorder::at(&test.outbox.uri, &test.outbox).await;
    let settings = ContextSettings::new(&test.outbox.database);
    let client = recorder.collections.client().clone();
    let snapshots = SnapshotStore::new(Context::new(client, settings));
    recorder.after(
        |command| {
            command.name == "find" && command.sent.get_str("find").unwrap().contains("event_stream")
        },
        move || async move { drop(erase(&other, "x").await.unwrap()) },
    );

    let saved = snapshots.save(&name(), at(1)).await;

    assert!(recorder.has_paused());
    assert!(matches!(saved, Err(SnapshotError::Ended)), "{saved:?}");
    let stored = stored(&test).await.unwrap();
    assert!(stored.get_bool("deleted").unwrap());
    assert_eq!(leaks(&test).await, 0);
}

#[fixture::test]
async fn save_costs_one_command_where_a_snapshot_exists() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a")).await.unwrap();
    let recorder = CommandRecorder::at(&test.outbox.uri, &test.outbox).await;
    let settings = ContextSettings::new(&test.outbox.database);
    let client = recorder.collections.client().clone();
    let snapshots = SnapshotStore::new(Context::new(client, settings));
    snapshots.save(&name(), at(1)).await.unwrap();
    let commands = || recorder.commands("find").len() + recorder.commands("update").len();
    let before = commands();

    snapshots.save(&name(), at(2)).await.unwrap();

    assert_eq!(commands() - before, 1);
}
