//! A privilege that is revoked and granted again: the log names it, and the relay resumes by
//! itself.

use std::time::Duration;

use bson::{Bson, Document, doc};
use postrider::schema::roles::RELAY;
use serde_json::json;

use crate::mongodb::log::assert_logged;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, call_with};
use crate::support::roles;

/// Grants the relay's user its privileges, without `update` on this collection.
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

/// The settings of a user with its role only.
fn settings(outbox: &TestOutbox) -> Vec<String> {
    vec![
        format!("mongo.uri={}", outbox.uri),
        format!("mongo.database={}", outbox.database),
        "outbox.auto_init_schema=false".into(),
        "sinks.out.kind=stdout".into(),
    ]
}

#[fixture::test]
async fn a_revoked_privilege_is_named_and_the_relay_resumes() {
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
        let words = ["MongoDB rejects this instance", "Unauthorized", "postrider check"];
        store["status"] == json!(status) && words.iter().all(|word| detail.contains(word))
    };
    postrider.until_report("a refusal", |report| is_named(report, "degraded")).await;
    let refused = r#"postrider_store_failing{operation="lease",cause="refused"}"#;
    postrider.until_metric(refused, |failing| failing == 1.0).await;
    postrider.until_logged("MongoDB rejects the relay; paused leasing records").await;
    let show = ["outbox", "show", "second", "--output", "json"];
    let is_reported = || async {
        let shown = call_with(&settings, &show).await.with_code(0).json();
        let detail = shown["waits"]["detail"].as_str().unwrap_or_default().to_owned();
        shown["waits"]["for"] == "store" && detail.contains("MongoDB rejects this instance")
    };
    eventually("its state names the refusal", is_reported).await;
    grant(&outbox, "").await;
    outbox.until_count(doc! { "status": "done" }, 2).await;
    postrider.until_metric(refused, |failing| failing == 0.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;

    grant(&outbox, "outbox_instances").await;
    postrider.until_report("a refused heartbeat", |report| is_named(report, "down")).await;
    grant(&outbox, "").await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;

    assert_eq!(outbox.count(doc! { "attempt": 1 }).await, 2);
    let messages = [
        "WARN MongoDB rejects the relay; paused leasing records",
        "INFO MongoDB responds again; resumed leasing records",
        "WARN a heartbeat failed; stopped leasing records",
        "INFO heartbeats are acknowledged again; resumed leasing records",
    ];
    assert_logged(&postrider, before, &messages);
    let line = postrider.lines()[before..].iter().find(|line| line["remedy"].is_string()).cloned();
    let line = line.unwrap();
    assert!(line["error"].as_str().unwrap().contains("Unauthorized"), "{line}");
    assert!(!line.to_string().contains("\"$db\""), "no command is quoted: {line}");
    postrider.stop().await;
}

/// Nothing is pending, so that no scan could report it.
#[fixture::test]
async fn a_scheduled_record_without_the_privilege_is_reported() {
    let outbox = TestOutbox::restricted().await;
    let settings = settings(&outbox);
    let mut postrider = Postrider::start(&settings);
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    grant(&outbox, "outbox_records").await;
    let mut scheduled = record("scheduled", "a");
    scheduled.insert("status", "scheduled");
    scheduled.insert("visibleAt", bson::DateTime::now());
    outbox.insert([scheduled]).await;

    let refused = r#"postrider_store_failing{operation="promote",cause="refused"}"#;
    postrider.until_metric(refused, |failing| failing == 1.0).await;
    postrider.until_logged("scheduled records are not promoted").await;
    postrider.until_report("a refusal", |report| report["status"] == "degraded").await;
    grant(&outbox, "").await;

    outbox.until_count(doc! { "status": "done" }, 1).await;
    postrider.until_metric(refused, |failing| failing == 0.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    postrider.stop().await;
}
