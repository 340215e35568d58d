//! Stops while a broker hangs: the timeout, and the end by force.

use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::future::join_all;
use postrider::outbox::collections::names::INSTANCES;
use serde_json::{Value, json};

use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal, run_with};
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of};
use crate::util::{PROMPT_LIMIT, backlog, instances, says, with};

/// A relay with a publish in flight to a broker that has frozen.
struct HangingRelay {
    outbox: TestOutbox,
    queue: Queue,
    proxy: FaultProxy,
    postrider: Postrider,
}

impl HangingRelay {
    async fn start(more: &[&str]) -> Self {
        let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
        let proxy = FaultProxy::to(&host_of(&amqp_uri())).await;
        let uri = amqp_uri_at(&proxy.address().to_string());
        let settings = with(queue.settings_at(&outbox, &uri), more);
        let mut command = run_with(&settings);
        command.env("FAILPOINTS", "relay::before_publish=print");
        let postrider = Postrider::of(command);
        // By then it is connected, and the exchange is known.
        outbox.insert([record("first", "k")]).await;
        outbox.until_count(doc! { "status": "done" }, 1).await;
        proxy.freeze();
        outbox.insert(backlog(10, 5)).await;
        // A stop would release what is leased and not published yet.
        let publishes = || postrider.stderr().matches("relay::before_publish executed").count();
        eventually("the first of each key is handed over", || async { publishes() == 1 + 5 }).await;
        Self { outbox, queue, proxy, postrider }
    }
}

#[fixture::test]
async fn a_publish_beyond_the_shutdown_timeout_is_released() {
    // Not two seconds after it, for the broker's answer to the end of the connection. (A busy machine may take that
    // long, too.)
    for _ in 0..3 {
        if stop_of_a_hanging_publish().await < Duration::from_secs(5) {
            return;
        }
    }
    panic!("each stop took two seconds longer than relay.shutdown_timeout");
}

/// Stops a process whose publish takes longer than `relay.shutdown_timeout`, which is 3 s; returns the time that took.
async fn stop_of_a_hanging_publish() -> Duration {
    let settings = ["relay.shutdown_timeout=3s", "relay.lease=60s", "sinks.rabbit.timeout=40s"];
    let mut hanging = HangingRelay::start(&settings).await;

    let begin = Instant::now();
    hanging.postrider.signal(Signal::TERM);
    hanging.postrider.until_logged("a second signal ends the process at once").await;
    let (status, report) = hanging.postrider.readyz().await;
    let ended = hanging.postrider.until_ended(PROMPT_LIMIT).await.with_code(0);

    let took = begin.elapsed();
    assert_eq!((status, &report["status"]), (503, &json!("down")), "{report}");
    let detail = report["parts"]["relay"]["detail"].as_str().unwrap();
    assert!(detail.starts_with("draining"), "{report}");
    says(&ended, &["all records in flight were settled or released"]);
    assert_eq!(hanging.outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
    assert_eq!(instances(&hanging.outbox).await, 0);
    hanging.proxy.open();
    let mut next = Postrider::start(&hanging.queue.settings(&hanging.outbox));
    hanging.outbox.until_count(doc! { "status": "done" }, 11).await;
    next.stop().await;
    took
}

#[fixture::test]
async fn a_hanging_publish_is_given_up_in_time_for_a_clean_stop() {
    let mut hanging = HangingRelay::start(&["sinks.rabbit.timeout=2s"]).await;

    let stopped = hanging.postrider.stop().await;

    says(&stopped, &["all records in flight were settled or released"]);
    let outbox = &hanging.outbox;
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
    assert_eq!(outbox.count(doc! { "status": "pending" }).await, 10);
    assert_eq!(instances(outbox).await, 0);
}

#[fixture::test]
async fn a_second_signal_of_either_kind_ends_the_process() {
    use Signal as S;
    let pairs = [(S::TERM, S::TERM), (S::TERM, S::INT), (S::INT, S::TERM), (S::INT, S::INT)];
    join_all(pairs.map(async |(first, second)| {
        let mut hanging = HangingRelay::start(&[]).await;
        hanging.postrider.signal(first);
        hanging.postrider.until_logged("a second signal ends the process at once").await;

        // Within half a second it would belong to the first.
        tokio::time::sleep(Duration::from_millis(600)).await;
        hanging.postrider.signal(second);
        let ended = hanging.postrider.until_ended(PROMPT_LIMIT).await.with_code(1);

        says(&ended, &["a second signal: ending at once"]);
    }))
    .await;
}

/// `timeout` and some init systems send two, to the process and to its group.
#[fixture::test]
async fn two_simultaneous_signals_are_one_stop() {
    join_all([Signal::TERM, Signal::INT].map(async |second| {
        let mut hanging = HangingRelay::start(&["sinks.rabbit.timeout=2s"]).await;

        hanging.postrider.signal(Signal::TERM);
        hanging.postrider.signal(second);
        let ended = hanging.postrider.until_ended(PROMPT_LIMIT).await.with_code(0);

        says(&ended, &["all records in flight were settled or released"]);
    }))
    .await;
}

#[fixture::test]
async fn readyz_reports_draining_until_the_end() {
    let mut hanging = HangingRelay::start(&["sinks.rabbit.timeout=3s"]).await;
    let instances =
        hanging.outbox.client.database(&hanging.outbox.database).collection::<Document>(INSTANCES);
    let address = hanging.postrider.address().await;
    let draining = doc! { "status": "draining" };

    hanging.postrider.signal(Signal::TERM);
    eventually("the word of it in MongoDB", || async {
        instances.count_documents(draining.clone()).await.unwrap() == 1
    })
    .await;
    let mut answered = 0;
    let report = async || reqwest::get(format!("http://{address}/readyz")).await?.json().await;
    while let Ok::<Value, reqwest::Error>(report) = report().await {
        let detail = report["parts"]["relay"]["detail"].as_str().unwrap();
        assert!(detail.starts_with("draining"), "{report}");
        let live = reqwest::get(format!("http://{address}/livez")).await;
        answered += usize::from(live.is_ok_and(|live| live.status() == 200));
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let silent = Instant::now();
    hanging.postrider.until_ended(PROMPT_LIMIT).await.with_code(0);

    assert!(answered > 10, "{answered} times");
    assert!(silent.elapsed() < Duration::from_secs(1), "{:?} before its end", silent.elapsed());
}
