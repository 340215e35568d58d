//! The real process through an outage: its log, its health and its metrics.

use std::time::Duration;

use bson::doc;
use serde_json::json;
use tokio::time::{Instant, sleep_until};

use crate::mongodb::log::assert_logged;
use crate::mongodb::proxy_to_mongodb;
use crate::support::fault_proxy::{FaultProxy, ProxyFault};
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Postrider;
use crate::support::queue::{Queue, amqp_uri, amqp_uri_at, host_of};

const RECORDS: usize = 300;
const KEYS: usize = 60;

/// All that a whole outage must log, and what follows it.
const EXPECTED_MESSAGES: [&str; 5] = [
    "INFO heartbeats are acknowledged again; resumed leasing records",
    "INFO settling records again",
    "WARN a heartbeat failed; stopped leasing records",
    "WARN failed to renew leases; they stay valid until they expire",
    "WARN failed to settle records; retrying until MongoDB acknowledges",
];

/// MongoDB fails with the answer to a heartbeat, during leases and publishes. Some publishes are
/// confirmed before it is back, others after.
pub async fn outage(away: Duration) {
    let (outbox, queue, to_mongodb) =
        (TestOutbox::new().await, Queue::declare().await, proxy_to_mongodb().await);
    let to_broker = FaultProxy::to_address(host_of(&amqp_uri()).parse().unwrap()).await;
    let settings = [
        queue.settings_at(&outbox, &amqp_uri_at(&to_broker.address().to_string())),
        vec![
            format!("mongo.uri={}", to_mongodb.mongodb_uri("")),
            "relay.batch_size=50".into(),
            // Leases that outlast the outage, and need a renewal during it.
            format!("relay.lease={}s", away.as_secs() * 3 / 2),
            format!("sinks.rabbit.timeout={}s", away.as_secs() * 5 / 4),
        ],
    ]
    .concat();
    let mut postrider = Postrider::start(&settings);
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let pending = "postrider_outbox_records{status=\"pending\"}";
    let age = "postrider_oldest_pending_age_seconds";
    postrider.until_metric(pending, |count| count == 0.0).await;
    // Until then the queue is not known to exist.
    outbox.insert([record("first", "first")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    to_broker.hold_answers(true);
    outbox
        .insert((0..RECORDS).map(|n| record(&format!("{n:05}"), &format!("k{}", n % KEYS))))
        .await;
    let leased = doc! { "leaseId": { "$exists": true } };
    eventually("leases", || async { outbox.count(leased.clone()).await >= 150 }).await;
    let before = postrider.lines().len();
    to_mongodb.on_answer_to("lastHeartbeat", ProxyFault::Close);
    eventually("a heartbeat", || async { to_mongodb.has_caught() }).await;
    let since = Instant::now();

    postrider.until_report("a store that is down", |report| report["status"] == "down").await;
    eventually("unknown gauges", || async { postrider.metric(pending).await.is_none() }).await;
    let noticed = since.elapsed();
    let mut confirmed = false;
    while since.elapsed() < away {
        let (ready, report) = postrider.readyz().await;
        let (live, _) = postrider.get("/livez").await;
        let (_, page) = postrider.get("/metrics").await;
        assert_eq!((ready, &report["parts"]["store"]["status"]), (503, &json!("down")), "{report}");
        assert_eq!(live, 200, "a restart would not help");
        assert!(page.contains("\npostrider_store_up 0\n"), "{page}");
        for unknown in ["postrider_outbox_records{", &format!("{age} ")] {
            assert!(!page.contains(&format!("\n{unknown}")), "not known, so absent: {page}");
        }
        if !confirmed && since.elapsed() > away * 3 / 4 {
            // Renewals have failed for long, and leases have not ended. The confirms of what is
            // published now come when MongoDB is back.
            to_broker.delay(away / 6);
            to_broker.hold_answers(false);
            confirmed = true;
        }
        sleep_until(Instant::now() + Duration::from_secs(1)).await;
    }
    to_mongodb.open();

    let renews = "postrider_store_failing{operation=\"renew\",cause=\"unavailable\"}";
    postrider.until_metric(renews, |failing| failing == 0.0).await;
    to_broker.delay(Duration::ZERO);
    assert!(noticed < Duration::from_secs(15), "noticed after {noticed:?}");
    outbox.until_count(doc! { "status": "done" }, RECORDS as u64 + 1).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    postrider.until_metric("postrider_store_up", |up| up == 1.0).await;
    assert_logged(&postrider, before, &EXPECTED_MESSAGES);
    let arrived = queue.ids(RECORDS + 1).await;
    assert_eq!(arrived.len(), RECORDS + 1, "each once: its lane kept it until it was settled");
    assert_eq!(outbox.count(doc! { "attempt": 1 }).await, RECORDS as u64 + 1);
    // The metrics report what happened.
    let settled =
        |outcome| format!("postrider_deliveries_total{{sink=\"rabbit\",outcome=\"{outcome}\"}}");
    for (outcome, count) in [("done", RECORDS + 1), ("retry", 0), ("dead", 0), ("lost", 0)] {
        assert_eq!(postrider.metric(&settled(outcome)).await, Some(count as f64), "{outcome}");
    }
    let published = "postrider_publish_duration_seconds_count{sink=\"rabbit\"}";
    assert_eq!(postrider.metric(published).await, Some(arrived.len() as f64));
    postrider.until_metric(pending, |count| count == 0.0).await;
    assert!(postrider.metric(age).await.is_some(), "known again");
    postrider.stop().await;
}
