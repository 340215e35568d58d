//! Connections that fall silent, while MongoDB is available to other clients.

use std::time::{Duration, Instant};

use bson::doc;
use postrider::outbox::collections::Collections;
use postrider::relay::lane::LaneEnd;
use postrider::relay::settings::Settings;

use crate::mongodb::proxy_to_mongodb;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::settings;
use crate::support::relay_harness::RelayHarness;
use crate::support::sink::TestSink;

/// Each record on a connection of its own, which a firewall drops.
#[fixture::test]
async fn renewals_on_silent_connections_are_retried_in_time() {
    const RECORDS: [&str; 4] = ["a1", "b1", "c1", "d1"];
    let (outbox, proxy) = (TestOutbox::new().await, proxy_to_mongodb().await);
    let client = postrider::store::connect::client(&proxy.mongodb_uri("")).await.unwrap();
    let collections = Collections::new(client, &outbox.database, "");
    let lease = Duration::from_secs(20);
    let settings = Settings { lease, ..settings() };
    let harness = RelayHarness::new(&collections, TestSink::default(), settings).await;
    let (mut lanes, mut ends) = (Vec::new(), Vec::new());
    for id in RECORDS {
        // One by one: each is a lease.
        outbox.insert([record(id, id)]).await;
        lanes.extend(harness.acquire(harness.scan().await).await);
        outbox.until_count(doc! { "_id": id, "leaseId": { "$exists": true } }, 1).await;
        ends.push(outbox.record(id).await.get_datetime("leaseUntil").unwrap().to_system_time());
    }
    let leased = Instant::now();
    eventually("all to be due", || async { leased.elapsed() > lease / 3 }).await;

    proxy.silence("leaseUntil", RECORDS.len());
    let shared = harness.context.clone();
    let renewing =
        tokio::spawn(async move { shared.state.leases.renew_forever(&shared.leaser).await });

    for (id, end) in RECORDS.into_iter().zip(ends) {
        let renewed = doc! { "_id": id, "leaseUntil": { "$gt": bson::DateTime::from(end) } };
        outbox.until_count(renewed, 1).await;
        let until = outbox.record(id).await.get_datetime("leaseUntil").unwrap().to_system_time();
        assert!(until < end + lease, "{id} was renewed when its lease had ended");
    }
    assert!(proxy.has_caught());
    assert_eq!(harness.deliver(lanes).await, [const { LaneEnd::Drained }; 4]);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 4).await;
    renewing.abort();
}
