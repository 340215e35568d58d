//! How far MongoDB's oplog reaches: a start at a time, and a resume token that is older than the oplog.

use std::time::Duration;

use bson::{Bson, DateTime, Document, Timestamp, doc};
use mongodb::Client;

use crate::presets::namastack;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::replica_set::ReplicaSet;
use crate::util::{TestSource, debezium};

/// A source in a replica set of its own, whose oplog a test may overwrite.
pub async fn own_set(preset: &'static str, more: &[&str]) -> (ReplicaSet, TestSource) {
    let set = ReplicaSet::of(1).await;
    let outbox = TestOutbox::at(&set.uri()).await;
    let uri = format!("mongo.uri={}", set.uri());
    let test = TestSource::of(outbox, preset, &[more, &[uri.as_str()]].concat());
    (set, test)
}

/// Writes until the oldest entry of the oplog is younger than everything before.
async fn overwrite_oplog(client: &Client) {
    let oplog = client.database("local").collection::<Document>("oplog.rs");
    let oldest = async || -> Timestamp {
        let first = oplog.find_one(doc! {}).sort(doc! { "$natural": 1 }).await.unwrap().unwrap();
        first.get_timestamp("ts").unwrap()
    };
    let newest = oplog.find_one(doc! {}).sort(doc! { "$natural": -1 }).await.unwrap().unwrap();
    let newest = newest.get_timestamp("ts").unwrap();
    let junk = client.database("junk").collection::<Document>("junk");
    let megabytes = doc! { "junk": "x".repeat(4 << 20) };
    while oldest().await <= newest {
        junk.insert_one(&megabytes).await.unwrap();
        junk.drop().await.unwrap();
    }
}

#[fixture::test(long)]
async fn start_at_a_time_copies_what_was_inserted_since_then() {
    let test = TestSource::new("debezium", &[]).await;
    let client = &test.outbox.client;
    let second = async || {
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
        hello.get_datetime("localTime").unwrap().timestamp_millis() / 1_000
    };
    test.insert(vec![debezium(1_i64, "k")]).await;
    let before = second().await;
    eventually("the next second", async || second().await > before).await;
    let from = DateTime::from_millis((before + 1) * 1_000).try_to_rfc3339_string().unwrap();
    test.insert(vec![debezium(2_i64, "k"), debezium(3_i64, "k")]).await;
    test.documents().delete_many(doc! {}).await.unwrap();

    let mut bridge = test.start(&["--old-relay-stopped", "--from", &from], "");
    test.until_copied(2).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, [2_i64, 3].map(Bson::from));
}

#[fixture::test(long)]
async fn overwritten_oplog_leads_to_a_scan_of_documents_with_a_status() {
    let (set, test) = own_set("namastack", &["adopt.handler=orders"]).await;
    test.insert(vec![namastack("a", "k", "NEW", 1)]).await;
    let mut bridge = test.receiving(&[]).await;
    bridge.stop().await;
    test.insert(vec![namastack("c", "k", "NEW", 3), namastack("b", "k", "NEW", 2)]).await;
    overwrite_oplog(set.direct(0)).await;

    let mut bridge = test.start(&["--old-relay-stopped"], "");
    test.until_copied(3).await;
    let series = r#"postrider_adopt_scans_total{reason="lost_stream"}"#;
    bridge.until_metric(series, |value| value >= 1.0).await;
    // And it receives changes again.
    bridge.until_metric("postrider_adopt_change_stream_up", |value| value == 1.0).await;
    test.insert(vec![namastack("d", "k", "NEW", 0)]).await;
    test.until_copied(4).await;
    bridge.stop().await;

    assert_eq!(test.ids().await, ["a", "b", "c", "d"].map(Bson::from));
}

#[fixture::test(long)]
async fn overwritten_oplog_ends_the_bridge_of_documents_without_a_status() {
    let (set, test) = own_set("debezium", &[]).await;
    test.insert(vec![debezium(1_i64, "k")]).await;
    let from_now = ["--old-relay-stopped", "--from", "now"];
    let mut bridge = test.receiving(&from_now[1..]).await;
    bridge.stop().await;
    test.insert(vec![debezium(2_i64, "k")]).await;
    overwrite_oplog(set.direct(0)).await;

    // The same arguments do not start again without a word.
    let mut bridge = test.start(&from_now, "");
    let ended = bridge.until_ended(Duration::from_secs(30)).await;
    assert!(ended.code == Some(1) && ended.stderr.contains("cannot be resumed"), "{ended}");
    assert!(ended.stderr.contains("--restart"), "{ended}");
    assert_eq!(test.records().await.len(), 0);

    let mut bridge = test.start(&["--old-relay-stopped", "--restart", "--from", "1"], "");
    test.until_copied(1).await;
    bridge.stop().await;
    assert_eq!(test.ids().await, [Bson::from(2_i64)]);
}
