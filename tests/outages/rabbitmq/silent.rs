//! A destination that does not confirm, with more records than a relay leases at a time: the others
//! do not wait until the first publish times out.

use bson::doc;

use crate::outage::{Outage, all_settled, has_no_error, many, to};
use crate::support::outbox::eventually;

/// More than `relay.batch_size` lets publish (twice as many lanes), or be in flight (twelve times).
const BACKLOG: usize = 300;

const ROUNDS: u64 = 10;

/// The backlog once occupied all lanes for as long as a publish may take.
#[fixture::test(long)]
async fn a_backlog_of_an_unconfirming_queue_delays_no_other() {
    let outage = Outage::new().await;
    let (outbox, amqp) = (&outage.outbox, &outage.amqp);
    amqp.classic("sick").await;
    amqp.classic("well").await;
    let more = ["relay.batch_size=20", "sinks.rabbit.timeout=100s", "relay.lease=200s"];
    let postrider = outage.start(&outage.vhost.uri(), &more).await;
    outage.vhost.suspend_queue("sick").await;
    outbox.insert(many("sick", "sick", BACKLOG)).await;
    eventually("all lanes taken", async || {
        outbox.count(doc! { "leaseId": { "$exists": true } }).await >= 40
    })
    .await;

    for round in 1..=ROUNDS {
        outbox.insert(many("well", &format!("well {round}"), 10)).await;
        // A key waits behind a record that is not delivered, and only that key.
        outbox.insert([to("well", &format!("behind {round}"), "sick 000")]).await;
        outbox.until_count(doc! { "status": "done" }, round * 10).await;
    }
    let log = postrider.stderr();
    assert!(!log.contains("does not confirm"), "before the time of a publish was up: {log}");
    outage.vhost.resume_queue("sick").await;

    let all = BACKLOG as u64 + ROUNDS * 11;
    outbox.until_count(doc! { "status": "done" }, all).await;
    let (done, _) = all_settled(outbox).await;
    assert!(done.iter().all(has_no_error), "{done:#?}");
    assert_eq!(amqp.take_ids("sick").await.len(), BACKLOG, "none of them twice");
    assert_eq!(amqp.take_ids("well").await.len() as u64, all - BACKLOG as u64);
    outage.end(postrider).await;
}
