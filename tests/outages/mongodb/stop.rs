//! A stop while MongoDB is away.

use std::time::{Duration, Instant};

use bson::doc;

use crate::mongodb::{door, uri_through};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal};
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::support::tcp::{Door, Then};

/// `relay.shutdown_timeout`, the goodbyes to the sinks and to MongoDB, and a busy machine.
const LIMIT: Duration = Duration::from_secs(2 + 1 + 2 + 5);

fn start(outbox: &TestOutbox, door: &Door) -> Postrider {
    let more = [
        format!("mongo.uri={}", uri_through(door)),
        "relay.shutdown_timeout=2s".into(),
        "relay.lease=5s".into(),
        "sinks.out.timeout=4s".into(),
    ];
    Postrider::start(&[mongo_settings(&outbox.database), stdout_sink(), more.into()].concat())
}

#[fixture::test]
async fn a_stop_without_mongodb_ends_with_1_in_time_and_tells_what_waits_out_its_lease() {
    let stopped = |then| async move {
        let (outbox, door) = (TestOutbox::new().await, door().await);
        let mut postrider = start(&outbox, &door);
        postrider.until_ready().await;
        // All of one key: they are leased together.
        door.before("doneAt", then);
        outbox.insert(["a1", "a2", "a3"].map(|id| record(id, "a"))).await;
        eventually("settling", || async { door.has_caught() }).await;

        postrider.signal(Signal::TERM);
        let ended = postrider.until_ended(LIMIT).await.with_code(1);

        let told = "relay.shutdown_timeout: 3 records wait out their lease";
        assert!(ended.stderr.contains(told), "{ended}");
        door.open();
        let mut next = start(&outbox, &door);
        next.until_ready().await;
        outbox.until_count(doc! { "status": "done" }, 3).await;
        let charged = outbox.count(doc! { "attempt": { "$gt": 2 } }).await;
        assert_eq!(charged, 0, "the lease that ended, and the delivery after it");
        next.stop().await;
    };

    tokio::join!(stopped(Then::Shut), stopped(Then::Freeze));
}

/// What it waits for in vain is a look: that holds nothing.
#[fixture::test]
async fn a_stop_with_nothing_in_flight_ends_with_0_though_mongodb_answers_nothing() {
    let (outbox, door) = (TestOutbox::new().await, door().await);
    let mut postrider = start(&outbox, &door);
    postrider.until_ready().await;
    door.before("lane_idx", Then::Freeze);
    eventually("a look", || async { door.has_caught() }).await;

    let signalled = Instant::now();
    postrider.signal(Signal::TERM);
    postrider.until_ended(LIMIT).await.with_code(0);

    assert!(signalled.elapsed() < LIMIT);
}
