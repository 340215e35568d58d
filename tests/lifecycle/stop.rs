//! Clean stops.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::future::join_all;
use serde_json::Value;

use crate::support::fault_proxy::FaultProxy;
use crate::support::mongod::Mongod;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Postrider, Signal};
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of, mongo_settings, stdout_sink};
use crate::util::{
    PROMPT_LIMIT, backlog, ids, instances, mongo_through, proxy_to_mongodb, says, with,
};

#[fixture::test]
async fn a_stop_settles_or_releases_what_is_in_flight() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    outbox.insert(backlog(4000, 20)).await;
    let mut first = Postrider::start(&queue.settings(&outbox));
    eventually("the first deliveries", || async {
        outbox.count(doc! { "status": "done" }).await > 50
    })
    .await;
    assert_eq!(instances(&outbox).await, 1);

    let stopped = first.stop().await;

    says(&stopped, &["all records in flight were settled or released"]);
    assert_eq!(instances(&outbox).await, 0);
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
    let (done, pending) = (doc! { "status": "done" }, doc! { "status": "pending" });
    let (done, pending) = (ids(&outbox, done).await, ids(&outbox, pending).await);
    assert!(!pending.is_empty(), "it was stopped under way");
    assert_eq!(done.len() + pending.len(), 4000, "none is lost");
    let counted = doc! { "status": "pending", "attempt": { "$gt": 0 } };
    assert_eq!(outbox.count(counted).await, 0, "released is not counted");
    let arrived = queue.ids(done.len()).await;
    assert_eq!(arrived.iter().cloned().collect::<BTreeSet<_>>(), done);
    assert_eq!(arrived.len(), done.len(), "each once");

    let mut second = Postrider::start(&queue.settings(&outbox));
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 4000).await;
    second.stop().await;
}

#[fixture::test]
async fn a_signal_while_waiting_for_mongodb_ends_with_0() {
    let shut = proxy_to_mongodb(FaultProxy::closed_to).await;
    let frozen = proxy_to_mongodb(FaultProxy::to).await;
    frozen.freeze();
    for (proxy, signal) in [(shut, Signal::TERM), (frozen, Signal::INT)] {
        let settings = [mongo_through(&proxy, "unused"), stdout_sink()].concat();
        let mut postrider = Postrider::start(&settings);
        postrider.until_logged("failed to connect to MongoDB").await;

        postrider.signal(signal);

        postrider.until_ended(PROMPT_LIMIT).await.with_code(0);
    }
}

#[fixture::test]
async fn an_idle_process_ends_with_0_without_mongodb() {
    let outbox = TestOutbox::new().await;
    let lost = |report: &Value| report["parts"]["store"]["status"] == "down";
    join_all([FaultProxy::close, FaultProxy::freeze].map(async |hurt: fn(&FaultProxy)| {
        let proxy = proxy_to_mongodb(FaultProxy::to).await;
        let settings = [mongo_through(&proxy, &outbox.database), stdout_sink()].concat();
        let mut postrider = Postrider::start(&with(settings, &["partitions.heartbeat=500ms"]));
        postrider.until_ready().await;

        hurt(&proxy);
        postrider.until_report("a lost store", lost).await;
        assert_eq!(postrider.readyz().await.0, 503);
        let stopping = Instant::now();
        postrider.stop().await;

        assert!(stopping.elapsed() < PROMPT_LIMIT, "{:?}", stopping.elapsed());
    }))
    .await;
}

#[fixture::test]
async fn brokers_that_ignore_a_goodbye_delay_the_stop_together() {
    const SINKS: usize = 5;
    let outbox = TestOutbox::new().await;
    let proxy = FaultProxy::to(&host_of(&amqp_uri())).await;
    let uri = amqp_uri_at(&proxy.address().to_string());
    let sinks = (0..SINKS).flat_map(|number| {
        [format!("sinks.s{number}.kind=rabbitmq"), format!("sinks.s{number}.uri={uri}")]
    });
    let default = vec!["relay.default_sink=s0".to_owned()];
    let settings = [mongo_settings(&outbox.database), sinks.collect(), default].concat();
    let mut postrider = Postrider::start(&settings);
    for number in 0..SINKS {
        let series = format!("postrider_sink_up{{sink=\"s{number}\"}}");
        postrider.until_metric(&series, |up| up == 1.0).await;
    }

    proxy.freeze();
    let stopping = Instant::now();
    postrider.stop().await;

    assert!(stopping.elapsed() < Duration::from_secs(3), "{:?}", stopping.elapsed());
}

/// The last heartbeat reports that it is draining, and MongoDB is slow to answer it.
#[fixture::test]
async fn a_heartbeat_in_progress_does_not_revive_a_stopped_instance() {
    let server = Mongod::with_fail_points().await;
    let (queue, proxy) = (Queue::declare().await, FaultProxy::to(&host_of(&amqp_uri())).await);
    let sink = queue.sink(&amqp_uri_at(&proxy.address().to_string()));
    let settings = [vec![format!("mongo.uri={}", server.uri("", "app"))], sink].concat();
    let rare = ["partitions.heartbeat=30s", "partitions.stale_after=60s"];
    let mut postrider = Postrider::start(&with(settings, &rare));
    postrider.until_metric("postrider_sink_up{sink=\"rabbit\"}", |up| up == 1.0).await;
    // The broker's goodbye takes a while, in which the heartbeat is sent.
    proxy.freeze();
    let admin = server.client("").await;
    let waits = doc! { "failCommands": ["update"], "blockConnection": true, "blockTimeMS": 2_000 };
    let slow = doc! { "configureFailPoint": "failCommand", "mode": { "times": 1 }, "data": waits };
    admin.run_command(slow).await.unwrap();

    postrider.stop().await;

    let instances = admin.client().database("app").collection::<Document>("outbox_instances");
    // Longer than the heartbeat takes.
    let until = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < until {
        assert_eq!(instances.count_documents(doc! {}).await.unwrap(), 0);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
