//! How the real process starts and stops with Kafka (contract, section 9); the rest of that is
//! in `tests/lifecycle`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;

use crate::support::kafka::secure::{OPEN_LOGIN, Secure};
use crate::support::kafka::wired::Wired;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal, run_with};
use crate::support::queue::mongo_settings;

/// A password as no other text holds it.
const PLANTED: &str = "pl4nted-s3cret";

/// A relay to this topic, its sink up.
async fn start(outbox: &TestOutbox, wired: &Wired, topic: &str, more: &[&str]) -> Postrider {
    let sink = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.topic={topic}"),
        format!("sinks.k.brokers={}", wired.brokers()),
    ];
    let more = more.iter().map(|setting| (*setting).to_owned());
    let settings = [mongo_settings(&outbox.database), sink.to_vec(), more.collect()].concat();
    let postrider = Postrider::start(&settings);
    postrider.until_metric("postrider_sink_up{sink=\"k\"}", |up| up == 1.0).await;
    postrider
}

fn backlog(count: usize) -> Vec<Document> {
    (0..count).map(|n| record(&format!("{n:05}"), &format!("k{}", n % 20))).collect()
}

#[fixture::test]
async fn what_a_slow_broker_has_is_awaited_at_a_stop_and_arrives_once() {
    let (outbox, wired) = (TestOutbox::new().await, Wired::take().await);
    let topic = wired.topic(1).await;
    let mut postrider = start(&outbox, &wired, &topic.name, &[]).await;
    // A confirm comes after twice as long.
    wired.delay(Duration::from_millis(150));
    outbox.insert(backlog(1_000)).await;
    let done = async || outbox.count(doc! { "status": "done" }).await;
    eventually("the first deliveries", async || done().await > 0).await;

    let before = done().await;
    postrider.stop().await;

    let found: Vec<Document> = outbox
        .records()
        .find(doc! { "status": "done" })
        .await
        .unwrap()
        .try_collect()
        .await
        .unwrap();
    let settled: BTreeSet<&str> = found.iter().map(|one| one.get_str("_id").unwrap()).collect();
    assert!((before as usize) < settled.len(), "those in flight at the signal were awaited");
    assert!(settled.len() < 1_000, "and no others");
    let arrived = topic.read_ids().await;
    assert_eq!(arrived.len(), settled.len(), "each once");
    assert_eq!(arrived.iter().map(String::as_str).collect::<BTreeSet<_>>(), settled);
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
}

#[fixture::test]
async fn what_a_slow_broker_has_at_the_shutdown_timeout_is_released_and_at_a_second_signal_not() {
    for second in [None, Some(Signal::INT)] {
        let (outbox, wired) = (TestOutbox::new().await, Wired::take().await);
        let topic = wired.topic(1).await;
        let timeout = ["relay.shutdown_timeout=3s"];
        let mut postrider = start(&outbox, &wired, &topic.name, &timeout).await;
        outbox.insert([record("first", "k")]).await;
        outbox.until_count(doc! { "status": "done" }, 1).await;
        wired.delay(Duration::from_secs(30));
        outbox.insert(backlog(3)).await;
        outbox.until_count(doc! { "leaseId": { "$exists": true } }, 3).await;

        let stopping = Instant::now();
        postrider.signal(Signal::TERM);
        postrider.until_logged("a second signal ends at once").await;
        if let Some(second) = second {
            postrider.signal(second);
        }
        let ended = postrider.until_ended(Duration::from_secs(10)).await;
        assert_eq!(ended.code, Some(i32::from(second.is_some())), "{ended}");

        // A goodbye to the broker, beyond the timeout.
        let limit = if second.is_some() { 2 } else { 6 };
        assert!(stopping.elapsed() < Duration::from_secs(limit), "{:?}", stopping.elapsed());
        let leased = outbox.count(doc! { "leaseId": { "$exists": true } }).await;
        assert_eq!(leased, if second.is_some() { 3 } else { 0 }, "{ended}");
        drop(wired);
    }
}

#[fixture::test]
async fn a_refused_login_does_not_stop_the_start() {
    let (outbox, secure) = (TestOutbox::new().await, Secure::shared().await);
    let sink = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.brokers={}", secure.brokers(OPEN_LOGIN)),
        "sinks.k.properties.security.protocol=sasl_plaintext".to_owned(),
        "sinks.k.properties.sasl.mechanism=PLAIN".to_owned(),
        "sinks.k.properties.sasl.username=alice".to_owned(),
        format!("sinks.k.properties.sasl.password={PLANTED}"),
        "sinks.k.timeout=2s".to_owned(),
    ];
    let mut postrider =
        Postrider::start(&[mongo_settings(&outbox.database), sink.to_vec()].concat());
    outbox.insert(backlog(3)).await;

    postrider.until_ready().await;
    let detail = |report: &serde_json::Value| report["parts"]["sink k"]["detail"].to_string();
    postrider.until_report("a refused login", |report| detail(report).contains("uthent")).await;
    assert_eq!(postrider.readyz().await.0, 200);
    let stopped = postrider.stop().await;

    assert!(stopped.is_free_of(PLANTED), "{stopped}");
    let untouched = doc! { "status": "pending", "attempt": { "$in": [0, null] } };
    assert_eq!(outbox.count(untouched).await, 3);
}

#[fixture::test]
async fn a_producer_that_is_long_in_the_making_holds_up_nothing_else() {
    let (outbox, wired) = (TestOutbox::new().await, Wired::take().await);
    let sink = ["sinks.k.kind=kafka".to_owned(), format!("sinks.k.brokers={}", wired.brokers())];
    let mut command = run_with(&[mongo_settings(&outbox.database), sink.to_vec()].concat());
    // As librdkafka does when the host's clock is set back meanwhile; and nobody else is there
    // who could do the rest of the work.
    command.env("FAILPOINTS", "sink::make=sleep(60000)").env("TOKIO_WORKER_THREADS", "1");
    let postrider = Postrider::of(command);

    let serving = postrider.until_report("the rest at work", |report| {
        report["parts"]["store"]["status"] == "ok" && report["parts"]["sink k"]["status"] != "ok"
    });
    let in_time = tokio::time::timeout(Duration::from_secs(30), serving).await;

    assert!(in_time.is_ok(), "{}", postrider.stderr());
    drop(postrider);
}
