//! Health and metrics of a running process, the metrics by the real Prometheus.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::command_line::with;
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, eventually, insert_raw, mongodb_uri, record};
use crate::support::process::Postrider;
use crate::support::prometheus::{LABELS, Scraped, labels_and_metrics, promtool};
use crate::support::queue::{Queue, host_of, mongo_settings, stdout_sink};
use bson::{DateTime, Document, doc};
use serde_json::{Value, json};

#[fixture::test]
async fn counters_start_at_zero_and_gauges_have_the_state() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let mut postrider = Postrider::start(&queue.settings(&outbox));
    postrider.until_ready().await;

    let scraped = Scraped::new(&postrider).await;

    for sink in ["rabbit", ""] {
        for outcome in ["done", "retry", "dead", "released", "lost"] {
            let series = scraped.query("postrider_deliveries_total").await;
            // Prometheus drops an empty label.
            let labels = [("sink", sink), ("outcome", outcome)];
            let labels = labels.into_iter().filter(|(_, value)| !value.is_empty());
            let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            assert_eq!(series.get(&labels), Some(&0.0), "{sink} {outcome}: {series:?}");
        }
    }
    let repaired: [(&[(&str, &str)], f64); 2] =
        [(&[("what", "seq")], 0.0), (&[("what", "partition")], 0.0)];
    scraped.until("postrider_records_repaired_total", &repaired).await;
    scraped.until("postrider_sink_up", &[(&[("sink", "rabbit")], 1.0)]).await;
    scraped.until("postrider_store_up", &[(&[], 1.0)]).await;
    scraped.until("postrider_partitions_owned", &[(&[], 256.0)]).await;
    let version: [(&[(&str, &str)], f64); 1] = [(&[("version", env!("CARGO_PKG_VERSION"))], 1.0)];
    scraped.until("postrider_build_info", &version).await;
    let none: [(&[(&str, &str)], f64); 4] = [
        (&[("status", "pending")], 0.0),
        (&[("status", "scheduled")], 0.0),
        (&[("status", "dead")], 0.0),
        (&[("status", "invalid")], 0.0),
    ];
    scraped.until("postrider_outbox_records", &none).await;
    scraped.until("postrider_oldest_pending_age_seconds", &[(&[], 0.0)]).await;
    for (metric, value) in [
        ("postrider_rabbitmq_connections_total", 1.0),
        ("postrider_rabbitmq_returned_total", 0.0),
        ("postrider_rabbitmq_unconfirmed_messages", 0.0),
        ("postrider_rabbitmq_blocked", 0.0),
    ] {
        scraped.until(metric, &[(&[("sink", "rabbit")], value)]).await;
    }
    for operation in ["lease", "renew", "settle", "append"] {
        for outcome in ["ok", "error"] {
            let labels = format!("{{operation=\"{operation}\",outcome=\"{outcome}\"}}");
            let count =
                postrider.metric(&format!("postrider_mongodb_operations_total{labels}")).await;
            assert_eq!(count, Some(0.0), "{labels}");
        }
    }
    scraped.until("postrider_mongodb_checkout_failures_total", &[(&[], 0.0)]).await;
    let (_, page) = postrider.get("/metrics").await;
    let (content, said) = promtool(&["check", "metrics"], &page);
    assert!(content, "{said}\n{page}");
    postrider.stop().await;
}

#[fixture::test]
async fn metrics_of_the_process_have_the_figures_of_the_system() {
    let outbox = TestOutbox::new().await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&settings);
    postrider.until_ready().await;

    let metric =
        async |name: &str| postrider.metric(name).await.unwrap_or_else(|| panic!("no {name}"));
    let status = std::fs::read_to_string(format!("/proc/{}/status", postrider.id())).unwrap();
    let of_status = |name: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let resident = metric("process_resident_memory_bytes").await;
    let (open, most) = (metric("process_open_fds").await, metric("process_max_fds").await);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let age = now.as_secs_f64() - metric("process_start_time_seconds").await;

    let expected = of_status("VmRSS:") * 1024.0;
    assert!((0.5..2.0).contains(&(resident / expected)), "{resident} instead of {expected}");
    assert!(metric("process_virtual_memory_bytes").await >= resident);
    assert!((0.5..2.0).contains(&(metric("process_threads").await / of_status("Threads:"))));
    assert!(open >= 5.0 && most >= open, "{open} of {most}");
    assert!((-1.0..120.0).contains(&age), "started {age} s ago");
    assert!(metric("process_cpu_seconds_total").await < 60.0);
    postrider.stop().await;
}

#[fixture::test]
async fn records_are_seen_by_scans_at_the_start_and_by_the_change_stream_later() {
    let outbox = TestOutbox::new().await;
    let keys = |wanted: std::ops::Range<u8>| {
        let all = (0..).map(|n| format!("key {n}"));
        all.filter(move |key| wanted.contains(&postrider::partition::of_key(key)))
    };
    let (own, others): (Vec<_>, Vec<_>) =
        (keys(0..128).take(9).collect(), keys(128..255).take(4).collect());
    let of = |keys: &[String]| -> Vec<Document> {
        keys.iter().map(|key| record(&format!("of {key}"), key)).collect()
    };
    outbox.insert([of(&own[..5]), of(&others[..2])].concat()).await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut postrider = Postrider::start(&with(settings, &["partitions.static=0-127"]));
    let seen = async |source: &str| {
        postrider.metric(&format!("postrider_records_seen_total{{source=\"{source}\"}}")).await
    };
    eventually("live", async || postrider.metric("postrider_partitions_live").await == Some(128.0))
        .await;
    outbox.until_count(doc! { "status": "done" }, 5).await;
    let scanned = seen("scan").await.unwrap();

    assert!(scanned >= 5.0, "{scanned}");
    assert_eq!(seen("change_stream").await, Some(0.0));
    outbox.insert([of(&own[5..]), of(&others[2..])].concat()).await;
    outbox.until_count(doc! { "status": "done" }, 9).await;

    assert_eq!(seen("change_stream").await, Some(4.0), "those of its own partitions");
    assert_eq!(seen("audit").await, Some(0.0));
    postrider.stop().await;
}

#[fixture::test]
async fn figures_are_right_after_a_run_and_no_label_has_an_id() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let later =
        DateTime::from_system_time(std::time::SystemTime::now() + Duration::from_secs(3600));
    let planted = |id: &str, more: Document| {
        let mut record = record(&format!("planted-id-{id}"), &format!("planted-key-{id}"));
        record.extend(more);
        record
    };
    let mut records: Vec<Document> = ["a", "b", "c"].map(|id| planted(id, doc! {})).into();
    records.extend([
        planted("returned", doc! { "type": "lost" }),
        planted("malformed", doc! { "headers": 5 }),
        planted("scheduled 1", doc! { "status": "scheduled", "visibleAt": later }),
        planted("scheduled 2", doc! { "status": "scheduled", "visibleAt": later }),
        planted("waits", doc! { "visibleAt": later }),
        planted("was dead", doc! { "status": "dead" }),
        planted("invalid", doc! { "status": "Done" }),
    ]);
    outbox.insert(records).await;
    let mut odd = planted("odd", doc! {});
    odd.remove("seq");
    odd.insert("partition", -1);
    insert_raw(&outbox.admin, odd).await;
    let settings = with(
        queue.settings(&outbox),
        &[
            "relay.max_attempts=3",
            "relay.backoff.initial=20ms",
            "routes=[{type = \"lost\", key = \"no-such-queue\"}]",
        ],
    );
    let mut postrider = Postrider::start(&settings);
    let scraped = Scraped::new(&postrider).await;

    outbox.until_count(doc! { "status": "done" }, 4).await;
    outbox.until_count(doc! { "status": "dead" }, 3).await;

    let settled: [(&[(&str, &str)], f64); 10] = [
        (&[("sink", "rabbit"), ("outcome", "done")], 4.0),
        (&[("sink", "rabbit"), ("outcome", "retry")], 2.0),
        (&[("sink", "rabbit"), ("outcome", "dead")], 1.0),
        (&[("sink", "rabbit"), ("outcome", "released")], 0.0),
        (&[("sink", "rabbit"), ("outcome", "lost")], 0.0),
        (&[("outcome", "done")], 0.0),
        (&[("outcome", "retry")], 0.0),
        (&[("outcome", "dead")], 1.0),
        (&[("outcome", "released")], 0.0),
        (&[("outcome", "lost")], 0.0),
    ];
    scraped.until("postrider_deliveries_total", &settled).await;
    let repaired: [(&[(&str, &str)], f64); 2] =
        [(&[("what", "seq")], 1.0), (&[("what", "partition")], 1.0)];
    scraped.until("postrider_records_repaired_total", &repaired).await;
    // Three were delivered, and the unroutable one was published three times.
    scraped
        .until("postrider_publish_duration_seconds_count", &[(&[("sink", "rabbit")], 7.0)])
        .await;
    scraped.until("postrider_delivery_lag_seconds_count", &[(&[("sink", "rabbit")], 4.0)]).await;
    scraped.until("postrider_rabbitmq_returned_total", &[(&[("sink", "rabbit")], 3.0)]).await;
    for operation in ["lease", "settle", "heartbeat", "count", "scan"] {
        let series = format!(
            "postrider_mongodb_operations_total{{operation=\"{operation}\",outcome=\"ok\"}}"
        );
        assert!(postrider.metric(&series).await > Some(0.0), "{series}");
        let series = format!(
            "postrider_mongodb_operation_duration_seconds_count{{operation=\"{operation}\"}}"
        );
        assert!(postrider.metric(&series).await > Some(0.0), "{series}");
    }
    let connections = async |state: &str| {
        postrider.metric(&format!("postrider_mongodb_connections{{state=\"{state}\"}}")).await
    };
    let (in_use, open) = (connections("in_use").await, connections("open").await);
    assert!(open > Some(0.0) && in_use >= Some(0.0) && in_use < Some(64.0), "{in_use:?} {open:?}");
    // Counted again after a quarter of a minute.
    let counts: [(&[(&str, &str)], f64); 4] = [
        (&[("status", "pending")], 1.0),
        (&[("status", "scheduled")], 2.0),
        (&[("status", "dead")], 3.0),
        (&[("status", "invalid")], 1.0),
    ];
    scraped.until("postrider_outbox_records", &counts).await;
    let age = scraped.query("postrider_oldest_pending_age_seconds").await;
    let (_, page) = postrider.get("/metrics").await;

    let age = age[&BTreeMap::new()];
    assert!((1.0..120.0).contains(&age), "the one that waits has an age: {age}");
    let (content, said) = promtool(&["check", "metrics"], &page);
    assert!(content, "{said}\n{page}");
    let (labels, metrics) = labels_and_metrics(&page);
    for label in &labels {
        assert!(LABELS.contains(&&**label), "{label}: {page}");
    }
    let described = crate::described();
    assert!(metrics.is_subset(&described), "{:?}", metrics.difference(&described));
    assert_eq!(metrics.len(), 40, "each is described: {metrics:?}");
    let starting = postrider.lines().into_iter().find(|line| line["message"] == "starting");
    let instance = starting.unwrap()["instance"].as_str().unwrap().to_owned();
    for id in ["planted", &outbox.database, &queue.name, &instance] {
        assert!(!page.contains(id), "{id}: {page}");
    }
    postrider.stop().await;
}

#[fixture::test]
async fn an_outage_is_reported_by_its_gauge_and_part() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let to_mongodb = FaultProxy::to(&host_of(&mongodb_uri())).await;
    let to_broker = FaultProxy::to(&host_of(&crate::support::queue::amqp_uri())).await;
    let amqp = crate::support::queue::amqp_uri_at(&to_broker.address().to_string());
    let mongo = format!("mongo.uri={}&serverSelectionTimeoutMS=500", to_mongodb.mongodb_uri(""));
    let settings = with(
        queue.settings_at(&outbox, &amqp),
        &[&mongo, "partitions.heartbeat=500ms", "relay.sink_probe_interval_max=500ms"],
    );
    let mut postrider = Postrider::start(&settings);
    let all_well = |report: &Value| report["status"] == "ok";
    postrider.until_report("all well", all_well).await;
    let scraped = Scraped::new(&postrider).await;
    scraped.until("postrider_sink_up", &[(&[("sink", "rabbit")], 1.0)]).await;

    to_broker.close();
    scraped.until("postrider_sink_up", &[(&[("sink", "rabbit")], 0.0)]).await;
    assert_eq!(postrider.readyz().await.0, 200, "a broker is no reason to be taken out");
    to_broker.open();
    scraped.until("postrider_sink_up", &[(&[("sink", "rabbit")], 1.0)]).await;
    let age = "postrider_oldest_pending_age_seconds";
    scraped.until(age, &[(&[], 0.0)]).await;
    to_mongodb.close();
    scraped.until("postrider_store_up", &[(&[], 0.0)]).await;
    scraped.until("postrider_partitions_owned", &[(&[], 0.0)]).await;
    scraped.until("postrider_outbox_records", &[]).await;
    scraped.until(age, &[]).await;
    let (content, said) = promtool(&["check", "metrics"], &postrider.get("/metrics").await.1);
    assert!(content, "{said}");
    let (status, report) = postrider.readyz().await;
    let (live, _) = postrider.get("/livez").await;
    let failed = "postrider_mongodb_operations_total{operation=\"heartbeat\",outcome=\"error\"}";
    assert!(postrider.metric(failed).await > Some(0.0));
    to_mongodb.open();

    assert_eq!((status, &report["parts"]["store"]["status"]), (503, &json!("down")), "{report}");
    assert_eq!(live, 200);
    scraped.until("postrider_store_up", &[(&[], 1.0)]).await;
    scraped.until("postrider_partitions_owned", &[(&[], 256.0)]).await;
    scraped.until(age, &[(&[], 0.0)]).await;
    postrider.until_report("all well", all_well).await;
    postrider.stop().await;
}

#[fixture::test]
async fn the_store_is_down_while_the_start_waits_for_mongodb() {
    let proxy = FaultProxy::closed_to(&host_of(&mongodb_uri())).await;
    let mongo = format!("mongo.uri={}", proxy.mongodb_uri("app"));
    let rabbit = ["sinks.rabbit.kind=rabbitmq", "sinks.rabbit.uri=amqp://127.0.0.1:1/%2f"];
    let more = [&mongo, rabbit[0], rabbit[1], "relay.default_sink=out"];
    let postrider = Postrider::start(&with(stdout_sink(), &more));

    postrider.address().await;
    eventually("the series", || async {
        let done = "postrider_deliveries_total{sink=\"out\",outcome=\"done\"}";
        postrider.metric(done).await == Some(0.0)
    })
    .await;

    assert_eq!(postrider.metric("postrider_store_up").await, Some(0.0));
    let connections = "postrider_rabbitmq_connections_total{sink=\"rabbit\"}";
    assert_eq!(postrider.metric(connections).await, Some(0.0));
    assert_eq!(postrider.metric("postrider_records_seen_total{source=\"scan\"}").await, Some(0.0));
    let (_, page) = postrider.get("/metrics").await;
    assert!(!page.contains("\npostrider_outbox_records{"), "not known, so absent: {page}");
    assert!(!page.contains("\npostrider_oldest_pending_age_seconds "), "likewise: {page}");
}

#[fixture::test]
async fn only_the_owner_of_the_lowest_partition_counts_the_outbox() {
    let outbox = TestOutbox::new().await;
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let mut upper = Postrider::start(&with(settings.clone(), &["partitions.static=128-255"]));
    let mut lower = Postrider::start(&with(settings, &["partitions.static=0-127"]));
    let dead = "postrider_outbox_records{status=\"dead\"}";

    eventually("the lower one's count", || async { lower.metric(dead).await == Some(0.0) }).await;
    let owned = "postrider_partitions_owned";
    eventually("the upper one's", || async { upper.metric(owned).await == Some(128.0) }).await;

    assert_eq!(upper.metric(dead).await, None);
    assert_eq!(upper.metric("postrider_oldest_pending_age_seconds").await, None);
    upper.stop().await;
    lower.stop().await;
}

/// A count that takes 0.6 s or more would be followed by a pause of a minute, if it alone decided.
#[fixture::test]
async fn a_single_slow_count_does_not_delay_the_next_one() {
    let outbox = TestOutbox::new().await;
    let to_mongodb = FaultProxy::to(&host_of(&mongodb_uri())).await;
    let mongo = format!("mongo.uri={}", to_mongodb.mongodb_uri(""));
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    to_mongodb.delay(Duration::from_millis(300));
    let mut postrider = Postrider::start(&with(settings, &[&mongo]));
    let scheduled = "postrider_outbox_records{status=\"scheduled\"}";
    postrider.until_metric(scheduled, |count| count == 0.0).await;
    to_mongodb.delay(Duration::ZERO);
    let due = DateTime::from_millis(DateTime::now().timestamp_millis() + 3_600_000);
    let mut later = record("later", "k");
    later.extend(doc! { "status": "scheduled", "visibleAt": due });
    outbox.insert([later]).await;

    postrider.until_metric(scheduled, |count| count == 1.0).await;

    postrider.stop().await;
}

#[fixture::test]
async fn health_is_json_part_by_part() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let mut postrider = Postrider::start(&with(queue.settings(&outbox), &["api.enabled=true"]));
    postrider.until_report("all well", |report| report["status"] == "ok").await;

    let (ready, report) = postrider.readyz().await;
    let (live, body) = postrider.get("/livez").await;
    let (missing, _) = postrider.get("/nowhere").await;

    let fine = json!({ "status": "ok", "detail": "" });
    let names = [
        "api",
        "change_stream",
        "mongodb pools",
        "partitions",
        "relay",
        "schema",
        "sink rabbit",
        "store",
    ];
    let parts: serde_json::Map<String, Value> =
        names.iter().map(|name| ((*name).to_owned(), fine.clone())).collect();
    assert_eq!((ready, report), (200, json!({ "status": "ok", "parts": parts })));
    assert_eq!((live, &*body), (200, "{\"status\":\"ok\"}"));
    assert_eq!(missing, 404);
    postrider.stop().await;
}

#[fixture::test]
async fn a_sink_that_no_probe_has_reached_yet_is_degraded() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    let proxy = FaultProxy::to(&host_of(&crate::support::queue::amqp_uri())).await;
    proxy.freeze();
    let amqp = crate::support::queue::amqp_uri_at(&proxy.address().to_string());
    let mut postrider = Postrider::start(&queue.settings_at(&outbox, &amqp));
    postrider.until_ready().await;

    let (_, report) = postrider.readyz().await;
    let up = postrider.metric("postrider_sink_up{sink=\"rabbit\"}").await;
    let log = postrider.stderr();
    proxy.open();

    assert!(!log.contains("sink is "), "the first probe is under way: {log}");
    let part = json!({ "status": "degraded", "detail": "not connected yet" });
    assert_eq!((&report["parts"]["sink rabbit"], up), (&part, Some(0.0)), "{report}");
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    postrider.stop().await;
}
