//! How the real process starts and stops with Kafka; for the rest see `tests/lifecycle`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::TryStreamExt;

use crate::support::command_line::PLANTED;
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::secure::{OPEN_LOGIN, Secure};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, Signal, run_with};
use crate::support::queue::mongo_settings;

/// Starts a relay to this topic, and waits until its sink is up.
async fn start(
    outbox: &TestOutbox,
    broker: &ProxiedBroker,
    topic: &str,
    more: &[&str],
) -> Postrider {
    let sink = [
        "sinks.k.kind=kafka".to_owned(),
        format!("sinks.k.topic={topic}"),
        format!("sinks.k.brokers={}", broker.brokers()),
    ];
    let more = more.iter().map(|setting| (*setting).to_owned());
    let settings = [mongo_settings(&outbox.database), sink.to_vec(), more.collect()].concat();
    let mut command = run_with(&settings);
    command.env("FAILPOINTS", "sink::after_handover=print");
    let postrider = Postrider::of(command);
    postrider.until_metric("postrider_sink_up{sink=\"k\"}", |up| up == 1.0).await;
    postrider
}

fn backlog(count: usize) -> Vec<Document> {
    (0..count).map(|n| record(&format!("{n:05}"), &format!("k{}", n % 20))).collect()
}

#[fixture::test]
async fn a_stop_awaits_a_slow_broker_and_records_arrive_once() {
    let (outbox, broker) = (TestOutbox::new().await, ProxiedBroker::take().await);
    let topic = broker.topic(1).await;
    let mut postrider = start(&outbox, &broker, &topic.name, &[]).await;
    // A confirm arrives after twice this time.
    broker.delay(Duration::from_millis(150));
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
async fn the_shutdown_timeout_releases_records_and_a_signal_does_not() {
    for second in [None, Some(Signal::INT)] {
        let (outbox, broker) = (TestOutbox::new().await, ProxiedBroker::take().await);
        let topic = broker.topic(1).await;
        let timeout = ["relay.shutdown_timeout=3s"];
        let mut postrider = start(&outbox, &broker, &topic.name, &timeout).await;
        outbox.insert([record("first", "k")]).await;
        outbox.until_count(doc! { "status": "done" }, 1).await;
        broker.delay(Duration::from_secs(30));
        outbox.insert(backlog(3)).await;
        // A stop would release at once what is leased and not handed over yet.
        let handed_over = || postrider.stderr().matches("sink::after_handover executed").count();
        eventually("all are handed over", async || handed_over() == 1 + 3).await;

        let stopping = Instant::now();
        postrider.signal(Signal::TERM);
        postrider.until_logged("a second signal ends the process at once").await;
        if let Some(second) = second {
            // Within half a second it would belong to the first.
            tokio::time::sleep(Duration::from_millis(600)).await;
            postrider.signal(second);
        }
        let ended = postrider.until_ended(Duration::from_secs(10)).await;
        assert_eq!(ended.code, Some(i32::from(second.is_some())), "{ended}");

        // The goodbye to the broker may take longer than the timeout.
        assert!(stopping.elapsed() < Duration::from_secs(6), "{:?}", stopping.elapsed());
        let leased = outbox.count(doc! { "leaseId": { "$exists": true } }).await;
        assert_eq!(leased, if second.is_some() { 3 } else { 0 }, "{ended}");
        drop(broker);
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
async fn a_slow_producer_start_delays_nothing_else() {
    let (outbox, broker) = (TestOutbox::new().await, ProxiedBroker::take().await);
    let sink = ["sinks.k.kind=kafka".to_owned(), format!("sinks.k.brokers={}", broker.brokers())];
    let mut command = run_with(&[mongo_settings(&outbox.database), sink.to_vec()].concat());
    // As librdkafka does when the host's clock is set back meanwhile; with one worker, so that no
    // other thread could do the rest of the work.
    command.env("FAILPOINTS", "sink::make=sleep(60000)").env("TOKIO_WORKER_THREADS", "1");
    let postrider = Postrider::of(command);

    let serving = postrider.until_report("the rest at work", |report| {
        report["parts"]["store"]["status"] == "ok" && report["parts"]["sink k"]["status"] != "ok"
    });
    let in_time = tokio::time::timeout(Duration::from_secs(30), serving).await;

    assert!(in_time.is_ok(), "{}", postrider.stderr());
    drop(postrider);
}
