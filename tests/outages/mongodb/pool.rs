//! Slow requests of the API, and the relay's own connections.

use bson::doc;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::Postrider;
use crate::support::replica_set::ReplicaSet;

/// More than the driver's pool has connections by default.
const REQUESTS: usize = 40;

#[fixture::test]
async fn slow_requests_do_not_delay_heartbeats_and_leases() {
    let set = ReplicaSet::of(1).await;
    // With another name: the test's own requests must not be slow.
    let outbox = TestOutbox::at(&format!("{}&appName=test", set.uri())).await;
    let settings = [
        format!("mongo.uri={}", set.uri()),
        format!("mongo.database={}", outbox.database),
        "partitions.heartbeat=500ms".into(),
        "sinks.out.kind=stdout".into(),
        "api.enabled=true".into(),
        "api.listen=127.0.0.1:0".into(),
        "api.timeout=5m".into(),
    ];
    let postrider = Postrider::start(&settings);
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    outbox.insert([record("first", "first")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    let lines = postrider.lines();
    let line = lines.iter().find(|line| line["message"] == "serving the HTTP API").unwrap();
    let url = format!("http://{}/v1/instances", line["address"].as_str().unwrap());
    let admin = set.direct(0).database("admin");
    let slow = doc! {
        "configureFailPoint": "failCommand",
        "mode": "alwaysOn",
        "data": {
            "failCommands": ["find", "aggregate", "count"],
            "appName": "postrider",
            "blockConnection": true,
            "blockTimeMS": 120_000,
        },
    };
    let entered = admin.run_command(slow).await.unwrap().get_i32("count").unwrap();

    let client = reqwest::Client::new();
    // Each is given up after some seconds, and asked again.
    let asking = |_| {
        let request = client.get(&url);
        tokio::spawn(async move {
            loop {
                let answer = request.try_clone().unwrap().send().await;
                if answer.is_ok_and(|answer| answer.status() == 200) {
                    return;
                }
            }
        })
    };
    let requests: Vec<_> = (0..REQUESTS).map(asking).collect();
    let wait = doc! {
        "waitForFailPoint": "failCommand",
        "timesEntered": i64::from(entered) + 10,
        "maxTimeMS": 60_000,
    };
    admin.run_command(wait).await.unwrap();
    outbox.insert((0..200).map(|n| record(&format!("{n}"), &format!("k{}", n % 20)))).await;
    outbox.until_count(doc! { "status": "done" }, 201).await;
    // Longer than the timeout of a heartbeat.
    let beats = doc! { "lastHeartbeat": { "$exists": true } };
    let instances = outbox.admin.collection("outbox_instances");
    let last = || async {
        let found = instances.find_one(beats.clone()).await.unwrap().unwrap();
        found.get_datetime("lastHeartbeat").unwrap().timestamp_millis()
    };
    let then = last().await;
    eventually("heartbeats", || async { last().await > then + 5_000 }).await;

    assert!(requests.iter().all(|request| !request.is_finished()), "they are slow");
    assert_eq!(postrider.metric("postrider_store_up").await, Some(1.0));
    assert!(!postrider.stderr().contains("heartbeat failed"), "{}", postrider.stderr());
}
