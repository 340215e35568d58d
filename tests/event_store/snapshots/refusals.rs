//! Snapshots that are refused.

use bson::{bson, doc};
use postrider::context::CollectionKind;
use postrider::snapshot::{Snapshot, SnapshotError};

use crate::home::{Home, id, order};

#[fixture::test]
async fn state_too_large_is_reported() {
    let home = Home::new().await;
    // One byte too many with the document around it; and more than the driver sends.
    for size in [(16 << 20) - 30, 16 << 20, 17 << 20, 50 << 20] {
        let state = doc! { "s": "x".repeat(size) };
        let saved = home.snapshots().save(&order(), Snapshot::new(id("order-1"), 1, state)).await;
        assert!(matches!(saved, Err(SnapshotError::TooLarge)), "{size}: {saved:?}");
    }
}

#[fixture::test]
async fn state_of_almost_16_mib_is_saved() {
    let home = Home::new().await;
    let snapshots = home.snapshots();
    for version in [1, 2] {
        let state = doc! { "s": "x".repeat((16 << 20) - 1_000) };
        let snapshot = Snapshot::new(id("order-1"), version, state);
        assert!(snapshots.save(&order(), snapshot).await.unwrap().written);
    }
}

#[fixture::test]
async fn state_too_deep_is_reported() {
    let home = Home::new().await;
    let deep = (0..190).fold(bson!(1), |inner, _| bson!([inner]));

    let snapshot = Snapshot::new(id("order-1"), 1, doc! { "deep": deep });
    let saved = home.snapshots().save(&order(), snapshot).await;

    assert!(matches!(saved, Err(SnapshotError::TooDeep)), "{saved:?}");
}

#[fixture::test]
async fn version_below_1_is_refused() {
    let home = Home::new().await;
    for version in [0, -1, i64::MIN] {
        let snapshot = Snapshot::new(id("order-1"), version, doc! {});
        let saved = home.snapshots().save(&order(), snapshot).await;
        assert!(
            matches!(saved, Err(SnapshotError::Version(refused)) if refused == version),
            "{saved:?}"
        );
    }
    let database = home.context.database(CollectionKind::Snapshots);
    assert!(database.list_collection_names().await.unwrap().is_empty(), "nothing was sent");
}
