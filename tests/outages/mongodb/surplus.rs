//! Records that were leased behind a gap, and a MongoDB that refuses to release them at first.

use bson::doc;
use postrider::relay::settings::Settings;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::settings;
use crate::support::relay_harness::RelayHarness;
use crate::support::replica_set::ReplicaSet;
use crate::support::rival_relay::RivalRelay;
use crate::support::sink::TestSink;

#[fixture::test]
async fn records_leased_behind_a_gap_are_released_when_mongodb_permits() {
    let set = ReplicaSet::of(1).await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert(["a1", "a2", "a3", "a4"].map(|id| record(id, "a"))).await;
    let settings = Settings { max_attempts: 1, ..settings() };
    let harness = RelayHarness::new(&outbox.collections, TestSink::default(), settings).await;
    let seen = harness.scan().await;
    peer.take(&["a2"]).await;
    let admin = set.direct(0).database("admin");
    // Not the lease, but every update after it.
    let refused = doc! {
        "configureFailPoint": "failCommand",
        "mode": { "skip": 1 },
        "data": { "failCommands": ["update"], "errorCode": 91 },
    };
    let entered = admin.run_command(refused).await.unwrap().get_i32("count").unwrap();

    let lanes = harness.acquire(seen).await;
    let tried = doc! {
        "waitForFailPoint": "failCommand",
        "timesEntered": i64::from(entered) + 2,
        "maxTimeMS": 60_000,
    };
    admin.run_command(tried).await.unwrap();
    admin.run_command(doc! { "configureFailPoint": "failCommand", "mode": "off" }).await.unwrap();

    let is_free = || async {
        let free = doc! { "_id": { "$in": ["a3", "a4"] }, "leaseId": null, "attempt": 0 };
        outbox.count(free).await == 2
    };
    eventually("they are released", is_free).await;
    assert_eq!(lanes.len(), 1, "the front goes");
    harness.deliver(lanes).await;
}
