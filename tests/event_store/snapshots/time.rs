//! Snapshots have the server's time. `wrong_clock` runs this again in processes with a wrong clock.

use bson::doc;
use postrider::snapshot::Snapshot;

use crate::home::{Home, id, order};

#[fixture::test]
async fn snapshot_has_the_servers_time() {
    let home = Home::new().await;
    let snapshots = home.snapshots();

    let before = home.now().await.timestamp_millis();
    snapshots.save(&order(), Snapshot::new(id("order-1"), 1, doc! {})).await.unwrap();
    let after = home.now().await.timestamp_millis();

    let loaded = snapshots.load(&order(), &id("order-1"), None).await.unwrap().unwrap();
    let time = loaded.snapshot_time.unwrap();
    // The estimate of the server's time is accurate to a round trip.
    let range = before - 1_000..=after + 1_000;
    assert!(range.contains(&time), "{time} is not within {range:?}");
}
