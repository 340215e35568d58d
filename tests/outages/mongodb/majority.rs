//! A MongoDB that answers reads, and does not reliably write.

use bson::{DateTime, doc};
use mongodb::options::{Acknowledgment, WriteConcern};
use serde_json::json;

use crate::mongodb::log::assert_logged;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Postrider;
use crate::support::queue::stdout_sink;
use crate::support::replica_set::ReplicaSet;

async fn start(set: &ReplicaSet, outbox: &TestOutbox) -> Postrider {
    let more = [
        format!("mongo.uri={}", set.uri()),
        format!("mongo.database={}", outbox.database),
        "partitions.heartbeat=1s".into(),
    ];
    let postrider = Postrider::start(&[stdout_sink(), more.into()].concat());
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    outbox.insert([record("first", "first")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    postrider
}

/// The ids on standard output.
fn delivered(postrider: &Postrider) -> Vec<String> {
    let lines = postrider.stdout();
    let id = |line: &str| -> String {
        let message: serde_json::Value = serde_json::from_str(line).unwrap();
        message["id"].as_str().unwrap().to_owned()
    };
    lines.lines().map(id).collect()
}

/// The primary stays primary and is read from; no majority acknowledges its writes.
#[fixture::test]
async fn nothing_is_leased_without_a_majority_and_all_resumes() {
    let set = ReplicaSet::start().await;
    let (primary, secondaries) = (set.primary().await, set.secondaries().await);
    let outbox = TestOutbox::at(&set.uri()).await;
    let mut postrider = start(&set, &outbox).await;
    // A majority has it long before it is due.
    let due = DateTime::from_millis(DateTime::now().timestamp_millis() + 12_000);
    let mut waits = record("waits", "w");
    waits.insert("visibleAt", due);
    outbox.insert([waits]).await;
    let before = postrider.lines().len();

    for secondary in &secondaries {
        set.stop_replication(*secondary).await;
    }
    let alone = WriteConcern::builder().w(Acknowledgment::from(1)).build();
    let meanwhile = outbox.records().clone();
    meanwhile.insert_one(record("meanwhile", "m")).write_concern(alone).await.unwrap();
    postrider.until_report("a store that is down", |report| report["status"] == "down").await;
    let (ready, report) = postrider.readyz().await;
    assert!(DateTime::now() < due, "noticed before anything is due");
    eventually("the time when it is due", || async { DateTime::now() > due }).await;
    let looks = set.commands(primary, "find").await;
    eventually("looks", || async { set.commands(primary, "find").await > looks + 10 }).await;

    let store = &report["parts"]["store"];
    assert_eq!((ready, &store["status"]), (503, &json!("down")), "{report}");
    assert!(store["detail"].as_str().unwrap().contains("no majority"), "{report}");
    assert_eq!(delivered(&postrider), ["first"], "nothing is published");
    assert_eq!(postrider.metric("postrider_store_up").await, Some(0.0));
    for secondary in &secondaries {
        set.restart_replication(*secondary).await;
    }
    outbox.until_count(doc! { "status": "done" }, 3).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let messages = [
        "WARN a heartbeat failed; stopped leasing records",
        "INFO heartbeats are acknowledged again; resumed leasing records",
    ];
    assert_logged(&postrider, before, &messages);
    postrider.stop().await;
}

/// A disk that is read-only, a lock that a backup holds, a privilege that was revoked.
#[fixture::test]
async fn a_mongodb_that_refuses_writes_is_reported_once() {
    let set = ReplicaSet::of(1).await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let mut postrider = start(&set, &outbox).await;
    let before = postrider.lines().len();
    let admin = set.direct(0).database("admin");
    let fail = |mode| {
        let data = doc! {
            "failCommands": ["update"],
            "namespace": format!("{}.outbox_records", outbox.database),
            "errorCode": 13,
        };
        admin.run_command(doc! { "configureFailPoint": "failCommand", "mode": mode, "data": data })
    };
    let failed = fail("alwaysOn").await.unwrap().get_i32("count").unwrap();
    let mut misplaced = record("misplaced", "u");
    misplaced.insert("partition", -1);
    outbox.insert([misplaced]).await;
    let until_tried = |times: i32| {
        let times = i64::from(times);
        let wait =
            doc! { "waitForFailPoint": "failCommand", "timesEntered": times, "maxTimeMS": 30_000 };
        admin.run_command(wait)
    };
    // One scan with only a repair to write, then some that also try to lease.
    until_tried(failed + 2).await.unwrap();
    outbox.insert([record("a1", "a")]).await;
    until_tried(failed + 6).await.unwrap();
    let refused = r#"postrider_store_failing{operation="lease",cause="refused"}"#;
    postrider.until_metric(refused, |failing| failing == 1.0).await;
    let (ready, report) = postrider.readyz().await;

    fail("off").await.unwrap();
    outbox.until_count(doc! { "status": "done" }, 3).await;

    assert_eq!(ready, 200, "its heartbeat has a majority");
    let store = &report["parts"]["store"];
    assert_eq!(store["status"], "degraded", "{report}");
    let detail = store["detail"].as_str().unwrap();
    // It names the write that was refused first.
    assert!(detail.contains("postrider check"), "{report}");
    let writes = ["lease records", "correct partitions"];
    assert!(writes.iter().any(|write| detail.contains(write)), "{report}");
    postrider.until_logged("resumed leasing records").await;
    postrider.until_metric(refused, |failing| failing == 0.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    let messages = [
        "WARN MongoDB rejects the relay; paused leasing records",
        "INFO MongoDB responds again; resumed leasing records",
    ];
    assert_logged(&postrider, before, &messages);
    postrider.stop().await;
}
