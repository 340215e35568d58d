//! An instance that cannot write its heartbeat stops before another one takes its partitions.

use bson::doc;

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, mongodb_uri, record};
use crate::support::process::Postrider;
use crate::support::queue::{Queue, host_of};

fn settings(outbox: &TestOutbox, queue: &Queue, mongo: &str) -> Vec<String> {
    let more = [
        format!("mongo.uri={mongo}"),
        "partitions.heartbeat=500ms".to_owned(),
        "partitions.stale_after=6s".to_owned(),
        "relay.lease=10s".to_owned(),
        "sinks.rabbit.timeout=2s".to_owned(),
    ];
    [queue.settings(outbox), more.to_vec()].concat()
}

/// Both ends are watched at the same time: the loser's metrics, and the owners.
#[fixture::test]
async fn partitions_are_released_before_a_peer_can_claim_them() {
    let outbox = TestOutbox::new().await;
    let queue = Queue::declare().await;
    let proxy = FaultProxy::to(&host_of(&mongodb_uri())).await;
    let through = proxy.mongodb_uri("");
    let lost = Postrider::start(&settings(&outbox, &queue, &through));
    lost.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;
    let peer = Postrider::start(&settings(&outbox, &queue, &mongodb_uri()));
    peer.until_metric("postrider_partitions_owned", |owned| owned == 128.0).await;
    lost.until_metric("postrider_partitions_owned", |owned| owned == 128.0).await;

    proxy.freeze();
    // The peer is read first: this would find a later release by the other instance.
    eventually("the peer to take over", || async {
        let taken = peer.metric("postrider_partitions_owned").await == Some(256.0);
        let given_up = lost.metric("postrider_partitions_owned").await == Some(0.0);
        assert!(!taken || given_up, "two have the same partitions");
        taken
    })
    .await;

    assert_eq!(lost.metric("postrider_instances_active").await, None);
    outbox.insert((0..50).map(|n| record(&format!("r{n}"), &format!("k{n}")))).await;
    assert_eq!(queue.ids(50).await.len(), 50);
    outbox.until_count(doc! { "status": "done" }, 50).await;

    // With the connection back, it gets its share again.
    proxy.open();
    lost.until_metric("postrider_partitions_owned", |owned| owned == 128.0).await;
    peer.until_metric("postrider_partitions_owned", |owned| owned == 128.0).await;
}
