//! What operators see of the change stream, on the whole process.

use std::time::{Duration, Instant};

use bson::doc;
use serde_json::Value;

use crate::support::mongod::Mongod;
use crate::support::outbox::{TestOutbox, record};
use crate::support::process::Postrider;
use crate::support::queue::stdout_sink;
use crate::user_without_change_stream;

const UP: &str = "postrider_change_stream_up";

fn settings(uri: &str, outbox: &TestOutbox, more: &[&str]) -> Vec<String> {
    let mongo = [format!("mongo.uri={uri}"), format!("mongo.database={}", outbox.database)];
    let more = more.iter().map(|setting| (*setting).to_owned());
    stdout_sink().into_iter().chain(mongo).chain(more).collect()
}

/// How many log lines report a lost stream, and how many an open one.
fn changes(postrider: &Postrider) -> (usize, usize) {
    let lines = postrider.lines();
    let count = |text: &str| {
        let is_it = |line: &&Value| line["message"].as_str().is_some_and(|of| of.contains(text));
        lines.iter().filter(is_it).count()
    };
    (count("lost the change stream"), count("opened the change stream"))
}

#[fixture::test]
async fn an_insert_is_delivered_at_once_and_the_stop_does_not_wait() {
    let outbox = TestOutbox::new().await;
    let more = ["relay.poll_interval=10m", "outbox.auto_init_schema=false"];
    let mut postrider = Postrider::start(&settings(&outbox.uri, &outbox, &more));
    postrider.until_metric(UP, |up| up == 1.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    assert_eq!(postrider.readyz().await.1["parts"]["change_stream"]["status"], "ok");

    for id in ["a", "b", "c"] {
        outbox.insert([record(id, id)]).await;
        outbox.until_count(doc! { "_id": id, "status": "done" }, 1).await;
    }

    assert_eq!(changes(&postrider), (0, 1), "{}", postrider.stderr());
    let began = Instant::now();
    postrider.stop().await;
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

/// The user was made by an older version's script.
#[fixture::test]
async fn a_missing_right_is_logged_once_and_the_relay_polls() {
    let outbox = TestOutbox::restricted().await;
    let database = outbox.client.database(&outbox.database);
    let (uri, follows) = user_without_change_stream(&outbox).await;
    let more = ["outbox.auto_init_schema=false", "relay.poll_interval=200ms"];

    let mut postrider = Postrider::start(&settings(&uri, &outbox, &more));

    postrider.until_metric(UP, |up| up == 0.0).await;
    let is_refused = |report: &Value| {
        let follow = &report["parts"]["change_stream"];
        follow["status"] == "degraded"
            && follow["detail"].as_str().unwrap().contains("not authorized")
    };
    postrider.until_report("the reason", is_refused).await;
    // The first heartbeat may be acknowledged after that.
    postrider.until_ready().await;
    // Each is a round of polling.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let id = format!("{:?}", began.elapsed());
        outbox.insert([record(&id, "k")]).await;
        outbox.until_count(doc! { "_id": id, "status": "done" }, 1).await;
    }
    assert_eq!(changes(&postrider), (1, 0), "{}", postrider.stderr());
    let grant = doc! { "grantPrivilegesToRole": "polls", "privileges": follows };
    database.run_command(grant).await.unwrap();
    postrider.until_metric(UP, |up| up == 1.0).await;
    postrider.until_report("all well", |report| report["status"] == "ok").await;
    assert_eq!(changes(&postrider), (1, 1), "{}", postrider.stderr());
    postrider.stop().await;
}

#[fixture::test]
async fn a_standalone_server_has_no_stream_and_logs_it_once() {
    let server = Mongod::standalone().await;
    let outbox = TestOutbox::at(&server.uri("", "")).await;

    let mut postrider = Postrider::start(&settings(&outbox.uri, &outbox, &[]));

    let is_standalone = |report: &Value| {
        let follow = &report["parts"]["change_stream"];
        follow["status"] == "degraded" && follow["detail"].as_str().unwrap().contains("standalone")
    };
    postrider.until_report("the reason", is_standalone).await;
    assert_eq!(postrider.metric(UP).await, Some(0.0));
    outbox.insert([record("polled", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    let ended = postrider.stop().await;
    assert_eq!(ended.stderr.matches("standalone").count(), 1, "{ended}");
    assert!(!ended.stderr.contains("change stream"), "{ended}");
}

#[fixture::test]
async fn without_follow_there_is_no_stream_no_part_and_no_metric() {
    let outbox = TestOutbox::new().await;
    let more = ["relay.change_stream=false", "outbox.auto_init_schema=false"];

    let mut postrider = Postrider::start(&settings(&outbox.uri, &outbox, &more));

    postrider.until_report("all well", |report| report["status"] == "ok").await;
    outbox.insert([record("polled", "k")]).await;
    outbox.until_count(doc! { "status": "done" }, 1).await;
    assert_eq!(postrider.metric(UP).await, None);
    assert!(postrider.readyz().await.1["parts"].get("change_stream").is_none());
    assert_eq!(changes(&postrider), (0, 0));
    postrider.stop().await;
}
