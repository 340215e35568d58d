//! Stops with a slow broker: the relay awaits what is in flight, and begins nothing more.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::doc;

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at};
use crate::support::rabbitmq::address;
use crate::util::{backlog, ids, instances, says};

/// In each direction: a confirm arrives after twice this time.
const DELAY: Duration = Duration::from_millis(150);

#[fixture::test]
async fn a_stop_awaits_a_slow_broker_and_settles_what_it_has() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let proxy = FaultProxy::to_address(address(&amqp_uri())).await;
    let settings = queue.settings_at(&outbox, &amqp_uri_at(&proxy.address().to_string()));
    let mut postrider = Postrider::start(&settings);
    postrider.until_metric("postrider_sink_up{sink=\"rabbit\"}", |up| up == 1.0).await;
    proxy.delay(DELAY);
    // Twenty at a time.
    outbox.insert(backlog(1_000, 20)).await;
    let done = async || outbox.count(doc! { "status": "done" }).await;
    eventually("the first deliveries", async || done().await > 0).await;

    let before = done().await;
    let stopped = postrider.stop().await;

    says(&stopped, &["all records in flight were settled or released"]);
    let settled = ids(&outbox, doc! { "status": "done" }).await;
    assert!((before as usize) < settled.len(), "those in flight at the signal were awaited");
    assert!(settled.len() < 1_000, "and no others");
    let arrived = queue.ids(settled.len()).await;
    assert_eq!(arrived.len(), settled.len(), "each once");
    assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), settled);
    let untouched = doc! { "status": "pending", "attempt": { "$in": [0, null] } };
    assert_eq!(outbox.count(untouched).await as usize, 1_000 - settled.len());
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
    assert_eq!(instances(&outbox).await, 0);
}
