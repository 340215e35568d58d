//! A stop while MongoDB is unreachable.

use std::time::{Duration, Instant};

use bson::doc;

use crate::mongodb::proxy_to_mongodb;
use crate::support::fault_proxy::{FaultProxy, ProxyFault};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal};
use crate::support::queue::{mongo_settings, stdout_sink};

/// `relay.shutdown_timeout`, the goodbyes to the sinks and to MongoDB, and a margin for a busy
/// machine.
const LIMIT: Duration = Duration::from_secs(2 + 1 + 2 + 5);

fn start(outbox: &TestOutbox, proxy: &FaultProxy) -> Postrider {
    let more = [
        format!("mongo.uri={}", proxy.mongodb_uri("")),
        "relay.shutdown_timeout=2s".into(),
        "relay.lease=5s".into(),
        "sinks.out.timeout=4s".into(),
    ];
    Postrider::start(&[mongo_settings(&outbox.database), stdout_sink(), more.into()].concat())
}

#[fixture::test]
async fn a_stop_without_mongodb_ends_with_1_and_names_leased_records() {
    let stopped = |then| async move {
        let (outbox, proxy) = (TestOutbox::new().await, proxy_to_mongodb().await);
        let mut postrider = start(&outbox, &proxy);
        postrider.until_ready().await;
        // All of one key: they are leased together.
        proxy.on_request("doneAt", then);
        outbox.insert(["a1", "a2", "a3"].map(|id| record(id, "a"))).await;
        eventually("settling", || async { proxy.has_caught() }).await;

        postrider.signal(Signal::TERM);
        let ended = postrider.until_ended(LIMIT).await.with_code(1);

        let message = "relay.shutdown_timeout: 3 records stay leased until their lease expires";
        assert!(ended.stderr.contains(message), "{ended}");
        proxy.open();
        let mut next = start(&outbox, &proxy);
        next.until_ready().await;
        outbox.until_count(doc! { "status": "done" }, 3).await;
        let counted = outbox.count(doc! { "attempt": { "$gt": 2 } }).await;
        assert_eq!(counted, 0, "the lease that ended, and the delivery after it");
        next.stop().await;
    };

    tokio::join!(stopped(ProxyFault::Close), stopped(ProxyFault::Freeze));
}

/// Only a scan is in progress, which holds no lease.
#[fixture::test]
async fn a_stop_with_nothing_in_flight_ends_with_0_without_mongodb() {
    let (outbox, proxy) = (TestOutbox::new().await, proxy_to_mongodb().await);
    let mut postrider = start(&outbox, &proxy);
    postrider.until_ready().await;
    proxy.on_request("lane_idx", ProxyFault::Freeze);
    eventually("a look", || async { proxy.has_caught() }).await;

    let signalled = Instant::now();
    postrider.signal(Signal::TERM);
    postrider.until_ended(LIMIT).await.with_code(0);

    assert!(signalled.elapsed() < LIMIT);
}
