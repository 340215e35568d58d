//! `postrider instances`, `partitions`, `relay pause|resume`.

use bson::doc;
use serde_json::Value;

use crate::support::command_line::list_of;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{Queue, mongo_settings};

async fn switch(outbox: &TestOutbox, how: &str) {
    call_with(&mongo_settings(&outbox.database), &["relay", how]).await.with_code(0);
}

#[fixture::test]
async fn instances_and_partitions_are_listed_with_documented_names() {
    let outbox = TestOutbox::new().await;
    let queue = Queue::declare().await;
    assert_eq!(list_of(&outbox, "instances").await, Vec::<Value>::new());
    assert_eq!(list_of(&outbox, "partitions").await, Vec::<Value>::new());
    let one = Postrider::start(&queue.settings(&outbox));
    let two = Postrider::start(&queue.settings(&outbox));
    for postrider in [&one, &two] {
        postrider.until_metric("postrider_partitions_owned", |owned| owned == 128.0).await;
        postrider.until_metric("postrider_partitions_unassigned", |count| count == 0.0).await;
        postrider.until_metric("postrider_instances_active", |count| count == 2.0).await;
        postrider.until_metric("postrider_rebalances_total", |count| count >= 1.0).await;
    }

    let instances = list_of(&outbox, "instances").await;
    assert_eq!(instances.len(), 2);
    for instance in &instances {
        assert!(uuid::Uuid::parse_str(instance["id"].as_str().unwrap()).is_ok());
        assert_eq!(instance["status"], "active");
        assert_eq!(instance["stale"], false);
        assert_eq!(instance["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(instance["partitionsOwned"], 128);
        assert!(!instance["hostname"].as_str().unwrap().is_empty());
        assert!(!instance["name"].as_str().unwrap().is_empty());
        let (start, last) = (&instance["startedAt"], &instance["lastHeartbeat"]);
        assert!(start.as_str().unwrap() <= last.as_str().unwrap(), "{instance}");
    }
    let partitions = list_of(&outbox, "partitions").await;
    assert_eq!(partitions.len(), 256);
    for (number, partition) in partitions.iter().enumerate() {
        assert_eq!(partition["id"], number);
        assert!(instances.iter().any(|instance| instance["id"] == partition["instanceId"]));
        assert!(partition["epoch"].as_i64().unwrap() >= 1);
        assert_eq!(partition["hostname"], instances[0]["hostname"]);
        assert!(partition["updatedAt"].is_string());
    }
    let table = call_with(&mongo_settings(&outbox.database), &["partitions"]).await.with_code(0);
    assert_eq!(table.stdout.lines().count(), 257);
    drop((one, two));
}

#[fixture::test]
async fn a_pause_applies_to_all_present_and_later_instances() {
    let outbox = TestOutbox::new().await;
    let queue = Queue::declare().await;
    let one = Postrider::start(&queue.settings(&outbox));
    one.until_metric("postrider_relay_paused", |paused| paused == 0.0).await;

    switch(&outbox, "pause").await;
    let mut two = Postrider::start(&queue.settings(&outbox));
    for postrider in [&one, &two] {
        postrider.until_metric("postrider_relay_paused", |paused| paused == 1.0).await;
        postrider
            .until_report("degraded", |report| {
                report["parts"]["partitions"]["status"] == "degraded"
                    && report["parts"]["partitions"]["detail"].as_str().unwrap().contains("paused")
            })
            .await;
        assert_eq!(postrider.readyz().await.0, 200);
    }
    outbox.insert((0..20).map(|n| record(&format!("r{n}"), &format!("k{n}")))).await;
    // Paused instances continue to divide their partitions, and so to scan.
    two.until_metric("postrider_partitions_owned", |owned| owned == 128.0).await;
    two.stop().await;
    one.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;
    assert_eq!(
        outbox.count(doc! { "status": "pending", "attempt": { "$exists": false } }).await,
        20
    );

    switch(&outbox, "resume").await;
    one.until_metric("postrider_relay_paused", |paused| paused == 0.0).await;
    assert_eq!(queue.ids(20).await.len(), 20);
    eventually("no trouble", || async { one.readyz().await.1["status"] == "ok" }).await;
}

#[fixture::test]
async fn fixed_partitions_are_owned_without_assignment() {
    let outbox = TestOutbox::new().await;
    let queue = Queue::declare().await;
    let with = |partitions: &str| {
        let fixed = format!("partitions.static={partitions}");
        Postrider::start(&[queue.settings(&outbox), vec![fixed]].concat())
    };
    let low = with("0-127");
    low.until_metric("postrider_partitions_owned", |owned| owned == 128.0).await;
    outbox.insert((0..40).map(|n| record(&format!("r{n}"), &format!("k{n}")))).await;
    let lower = |n: &usize| postrider::partition::of_key(&format!("k{n}")) < 128;
    let first = (0..40).filter(lower).count();
    outbox.until_count(doc! { "status": "done" }, first as u64).await;
    assert!(first > 5 && first < 35);
    assert_eq!(low.metric("postrider_partitions_unassigned").await, None);

    let high = with("128-255");
    outbox.until_count(doc! { "status": "done" }, 40).await;

    assert_eq!(high.metric("postrider_partitions_owned").await, Some(128.0));
    assert_eq!(list_of(&outbox, "partitions").await, Vec::<Value>::new());
    assert_eq!(list_of(&outbox, "instances").await[0]["partitions"], "0-127");
}

#[fixture::test]
async fn a_newcomer_that_differs_says_why_it_claims_nothing() {
    let outbox = TestOutbox::new().await;
    let queue = Queue::declare().await;
    let old = Postrider::start(&queue.settings(&outbox));
    old.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;

    let blocks = vec!["relay.on_dead=block".to_owned()];
    let new = Postrider::start(&[queue.settings(&outbox), blocks].concat());

    new.until_logged("this instance acquires no partitions").await;
    new.until_report("degraded", |report| {
        let part = &report["parts"]["partitions"];
        part["status"] == "degraded"
            && part["detail"].as_str().unwrap().contains("on_dead = \"skip\"")
    })
    .await;
    assert_eq!(new.metric("postrider_partitions_owned").await, Some(0.0));
    let count = new.lines().iter().filter(|line| line["level"] == "WARN").count();
    assert_eq!(count, 1, "{:?}", new.lines());
    drop((old, new));
}

#[fixture::test]
async fn refused_assignments_are_reported_once_and_retried() {
    let outbox = TestOutbox::new().await;
    let queue = Queue::declare().await;
    let database = outbox.client.database(&outbox.database);
    let validator = async |validator: bson::Document| {
        let change = doc! { "collMod": "outbox_partition_assignments", "validator": validator };
        database.run_command(change).await.unwrap();
    };
    validator(doc! { "theirs": { "$exists": true } }).await;
    let postrider = Postrider::start(&queue.settings(&outbox));
    postrider.until_logged("can neither acquire nor release partitions").await;
    postrider.until_metric("postrider_partitions_owned", |owned| owned == 0.0).await;
    let refused = r#"postrider_store_failing{operation="assign",cause="refused"}"#;
    postrider.until_metric(refused, |failing| failing == 1.0).await;
    let is_named = |report: &serde_json::Value| {
        let detail = report["parts"]["partitions"]["detail"].as_str().unwrap_or_default();
        detail.contains("MongoDB rejects this instance") && detail.contains("postrider check")
    };
    postrider.until_report("the refusal", is_named).await;

    validator(doc! {}).await;

    postrider.until_metric("postrider_partitions_owned", |owned| owned == 256.0).await;
    postrider.until_metric(refused, |failing| failing == 0.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let count = postrider.lines().iter().filter(|line| line["level"] == "WARN").count();
    assert_eq!(count, 1, "{:?}", postrider.lines());
    drop(postrider);
}
