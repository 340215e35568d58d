//! A privilege that is taken away and given back: named as such, and resumed after by itself.

use std::time::Duration;

use bson::{Bson, Document, doc};
use postrider::schema::roles::RELAY;
use serde_json::json;

use crate::mongodb::log::assert_told;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, call_with};
use crate::support::roles;

/// The privileges of the relay's user, but not to `update` this collection.
async fn grant(outbox: &TestOutbox, without: &str) {
    let mut privileges = roles::privileges(&RELAY, &outbox.database, "", Duration::MAX);
    for privilege in &mut privileges {
        let resource = privilege.get_document("resource").unwrap();
        if resource.get_str("collection").is_ok_and(|collection| collection == without) {
            privilege
                .get_array_mut("actions")
                .unwrap()
                .retain(|action| *action != Bson::from("update"));
        }
    }
    let grant: Document = doc! { "updateRole": RELAY.name, "privileges": privileges };
    outbox.client.database(&outbox.database).run_command(grant).await.unwrap();
}

/// Those of a user who has no more than his role.
fn settings(outbox: &TestOutbox) -> Vec<String> {
    vec![
        format!("mongo.uri={}", outbox.uri),
        format!("mongo.database={}", outbox.database),
        "outbox.auto_init_schema=false".into(),
        "sinks.out.kind=stdout".into(),
    ]
}

#[fixture::test]
async fn a_privilege_that_is_withdrawn_is_named_and_resumed_after() {
    let outbox = TestOutbox::restricted().await;
    let mut settings = settings(&outbox);
    settings.push("partitions.heartbeat=500ms".into());
    let mut postrider = Postrider::start(&settings);
    outbox.insert([record("first", "a")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let before = postrider.lines().len();

    grant(&outbox, "outbox_records").await;
    outbox.insert([record("second", "a")]).await;
    let is_named = |report: &serde_json::Value, status: &str| {
        let store = &report["parts"]["store"];
        let detail = store["detail"].as_str().unwrap_or_default();
        let words = ["MongoDB refuses this instance", "Unauthorized", "postrider check"];
        store["status"] == json!(status) && words.iter().all(|word| detail.contains(word))
    };
    postrider.until_report("a refusal", |report| is_named(report, "degraded")).await;
    let refused = r#"postrider_store_failing{work="take",cause="refused"}"#;
    postrider.until_metric(refused, |failing| failing == 1.0).await;
    postrider.until_logged("MongoDB refuses the relay: taking is paused").await;
    let show = ["outbox", "show", "second", "--output", "json"];
    let is_told = || async {
        let shown = call_with(&settings, &show).await.with_code(0).json();
        let detail = shown["waits"]["detail"].as_str().unwrap_or_default().to_owned();
        shown["waits"]["for"] == "store" && detail.contains("MongoDB refuses this instance")
    };
    eventually("its state names the refusal", is_told).await;
    grant(&outbox, "").await;
    outbox.until_count(doc! { "status": "done" }, 2).await;
    postrider.until_metric(refused, |failing| failing == 0.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;

    grant(&outbox, "outbox_instances").await;
    postrider.until_report("a refused heartbeat", |report| is_named(report, "down")).await;
    grant(&outbox, "").await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;

    assert_eq!(outbox.count(doc! { "attempt": 1 }).await, 2);
    let told = [
        "WARN MongoDB refuses the relay: taking is paused",
        "INFO MongoDB answers again: taking goes on",
        "WARN heartbeat failed: taking stops",
        "INFO heartbeat is back: taking goes on",
    ];
    assert_told(&postrider, before, &told, &[]);
    let line = postrider.lines()[before..].iter().find(|line| line["remedy"].is_string()).cloned();
    let line = line.unwrap();
    assert!(line["error"].as_str().unwrap().contains("Unauthorized"), "{line}");
    assert!(!line.to_string().contains("\"$db\""), "no command is quoted: {line}");
    postrider.stop().await;
}

/// Nothing is pending, so that no take could tell of it.
#[fixture::test]
async fn a_scheduled_record_that_must_not_be_made_pending_is_told_of() {
    let outbox = TestOutbox::restricted().await;
    let settings = settings(&outbox);
    let mut postrider = Postrider::start(&settings);
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    grant(&outbox, "outbox_records").await;
    let mut scheduled = record("scheduled", "a");
    scheduled.insert("status", "scheduled");
    scheduled.insert("visibleAt", bson::DateTime::now());
    outbox.insert([scheduled]).await;

    let refused = r#"postrider_store_failing{work="promote",cause="refused"}"#;
    postrider.until_metric(refused, |failing| failing == 1.0).await;
    postrider.until_logged("scheduled records are not made pending").await;
    postrider.until_report("a refusal", |report| report["status"] == "degraded").await;
    grant(&outbox, "").await;

    outbox.until_count(doc! { "status": "done" }, 1).await;
    postrider.until_metric(refused, |failing| failing == 0.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    postrider.stop().await;
}
