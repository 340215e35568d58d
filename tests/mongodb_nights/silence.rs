//! Connections that fall silent, while MongoDB is there for everybody else.

use std::time::Duration;

use bson::doc;
use postrider::outbox::collections::Collections;
use postrider::relay::settings::Settings;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{settings, start};
use crate::support::sink::{Fault, TestSink};
use crate::{door, uri_through};

/// Each on a connection of its own, which a firewall has forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_on_connections_that_fell_silent_are_tried_on_others_before_the_leases_end() {
    const RECORDS: [&str; 4] = ["a1", "b1", "c1", "d1"];
    let (outbox, door) = (TestOutbox::new().await, door().await);
    let client = postrider::store::connect::client(&uri_through(&door)).await.unwrap();
    let collections = Collections::new(client, &outbox.database, "");
    let sink = TestSink::default();
    RECORDS.iter().for_each(|id| sink.script(id, [Fault::Hold]));
    let lease = Duration::from_secs(6);
    let relay = start(&collections, sink.clone(), Settings { lease, ..settings() });
    let mut ends = Vec::new();
    for id in RECORDS {
        // One by one: each is a lease.
        outbox.insert([record(id, id)]).await;
        eventually("its publish", || async { sink.is_under_way(id) }).await;
        outbox.until_count(doc! { "_id": id, "leaseId": { "$exists": true } }, 1).await;
        ends.push(outbox.record(id).await.get_datetime("leaseUntil").unwrap().to_system_time());
    }

    // Not as many as there are: the last one may be due when the first is tried again.
    door.silence("leaseUntil", RECORDS.len() - 1);

    for (id, end) in RECORDS.into_iter().zip(ends) {
        let renewed = doc! { "_id": id, "leaseUntil": { "$gt": bson::DateTime::from(end) } };
        outbox.until_count(renewed, 1).await;
        let until = outbox.record(id).await.get_datetime("leaseUntil").unwrap().to_system_time();
        assert!(until < end + lease, "{id} was renewed when its lease had ended");
    }
    assert!(door.has_caught());
    sink.release();
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 4).await;
    assert_eq!(sink.ids().len(), 4, "each once");
    relay.stop().await;
    outbox.drop().await;
}
