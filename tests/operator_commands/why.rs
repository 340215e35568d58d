//! `outbox show`: why a record waits, behind which one, for which sink, leased by which instance.

use bson::{DateTime, Document, doc};
use postrider::outbox::collections::names;
use serde_json::Value;

use crate::support::outbox::{TestOutbox, record, unstamped};
use crate::support::ports::free_port;
use crate::support::process::call_with;
use crate::support::queue::{amqp_uri_at, mongo_settings, stdout_sink};
use crate::{dead, in_seconds, leased, outbox_command, with_status};

/// An instance whose last heartbeat was this many seconds ago, and which owns all partitions.
async fn instance(outbox: &TestOutbox, seconds: i64) -> bson::Uuid {
    let id = bson::Uuid::new();
    let database = outbox.client.database(&outbox.database);
    let instances = database.collection::<Document>(names::INSTANCES);
    // A fresh one stays fresh, however long the test takes.
    let beat = in_seconds(if seconds <= 1 { 3_600 } else { -seconds });
    let alive = doc! { "_id": id, "hostname": "host-7", "status": "active", "lastHeartbeat": beat };
    instances.insert_one(alive).await.unwrap();
    let assignments = database.collection::<Document>(names::ASSIGNMENTS);
    assignments.delete_many(doc! {}).await.unwrap();
    let all = (0..256).map(|partition| doc! { "_id": partition, "instanceId": id, "epoch": 1_i64 });
    assignments.insert_many(all).await.unwrap();
    id
}

/// What an instance's relay reports about itself.
async fn set_report(outbox: &TestOutbox, id: bson::Uuid, relay: Document) {
    let database = outbox.client.database(&outbox.database);
    let instances = database.collection::<Document>(names::INSTANCES);
    let update = doc! { "$set": { "relay": relay } };
    instances.update_one(doc! { "_id": id }, update).await.unwrap();
}

async fn waits_with(outbox: &TestOutbox, settings: Vec<String>, id: &str) -> Value {
    let settings = [mongo_settings(&outbox.database), settings].concat();
    let arguments = ["outbox", "show", id, "--output", "json"];
    let mut shown = call_with(&settings, &arguments).await.with_code(0).json();
    shown["waits"].take()
}

async fn waits(outbox: &TestOutbox, id: &str) -> Value {
    waits_with(outbox, stdout_sink(), id).await
}

#[track_caller]
fn says(waits: &Value, what: &str, parts: &[&str]) {
    assert_eq!(waits["for"], what, "{waits}");
    let detail = waits["detail"].as_str().unwrap();
    for part in parts {
        assert!(detail.contains(part), "no {part:?} in {waits}");
    }
}

#[fixture::test]
async fn a_free_record_goes_at_the_next_scan_of_a_live_owner() {
    let outbox = TestOutbox::new().await;
    outbox.insert([record("a", "k")]).await;
    instance(&outbox, 60).await;

    says(&waits(&outbox, "a").await, "instance", &["none is alive"]);
    instance(&outbox, 1).await;
    let next = waits(&outbox, "a").await;

    says(&next, "next_scan", &["next scan of instance ", " on host-7"]);
    assert_eq!(next["sink"], "out");
    assert!(next.get("behind").is_none(), "{next}");
}

#[fixture::test]
async fn a_record_waits_for_the_blocker_of_its_keys_head() {
    let outbox = TestOutbox::new().await;
    let mut failed = record("a", "k");
    failed.extend(
        doc! { "attempt": 3, "visibleAt": in_seconds(600), "lastError": "the queue is full" },
    );
    outbox.insert([failed, record("b", "k"), record("c", "k"), record("other", "l")]).await;
    instance(&outbox, 0).await;

    let (first, second, third) =
        (waits(&outbox, "a").await, waits(&outbox, "b").await, waits(&outbox, "c").await);

    says(&first, "not_due", &["delivery 3 of 10 failed: the queue is full"]);
    assert!(first.get("behind").is_none(), "{first}");
    says(&second, "not_due", &["behind a; a is retried at", "the queue is full"]);
    assert_eq!(second["behind"], "a");
    says(&third, "not_due", &["behind a and one more earlier record of its key; a is retried"]);
    says(&waits(&outbox, "other").await, "next_scan", &[]);
    let unordered = [stdout_sink(), vec!["relay.ordering=none".to_owned()]].concat();
    says(&waits_with(&outbox, unordered, "c").await, "next_scan", &[]);
}

#[fixture::test]
async fn an_unstamped_record_holds_back_later_ones_of_its_key() {
    let outbox = TestOutbox::new().await;
    let unstamped = unstamped("a", "k");
    outbox.insert([unstamped, record("b", "k")]).await;
    instance(&outbox, 0).await;

    assert_eq!(waits(&outbox, "b").await["behind"], "a");
    assert!(waits(&outbox, "a").await.get("behind").is_none());
}

#[fixture::test]
async fn show_names_the_lease_owner_and_its_end() {
    let outbox = TestOutbox::new().await;
    let owner = instance(&outbox, 0).await;
    let until = DateTime::from_millis(4_102_444_800_000);
    let mut held = leased("a", "k", until);
    held.insert("leaseOwner", owner);
    let (mut gone, gone_owner) = (leased("c", "l", until), bson::Uuid::new());
    gone.insert("leaseOwner", gone_owner);
    let mut crashed = leased("d", "m", in_seconds(-9));
    crashed.extend(doc! { "attempt": 2, "leaseCrashes": 1 });
    outbox.insert([held, record("b", "k"), gone, crashed]).await;

    let held = waits(&outbox, "a").await;
    says(&held, "leased", &["until 2100-01-01T00:00:00Z", &owner.to_string(), "on host-7"]);
    assert_eq!(held["leaseOwner"], owner.to_string());
    says(&waits(&outbox, "b").await, "leased", &["behind a; a is leased until", "on host-7"]);
    let gone = waits(&outbox, "c").await;
    says(&gone, "leased", &[&gone_owner.to_string(), "which no longer exists"]);
    says(&waits(&outbox, "d").await, "quarantined", &["is in quarantine", "delivery 2 of 10"]);
    let down = doc! { "sinksDown": [{ "sink": "out", "cause": "the broker is gone" }] };
    set_report(&outbox, owner, down).await;
    says(&waits(&outbox, "d").await, "sink_down", &["sink out, which is down", "is gone"]);
}

#[fixture::test]
async fn show_names_what_must_be_corrected() {
    let outbox = TestOutbox::new().await;
    // (A lease on it does not keep a relay from the repair.)
    let (mut misplaced, mut placeless) = (record("a", "k"), leased("c", "l", in_seconds(3_600)));
    misplaced.insert("partition", 7.5);
    placeless.insert("seq", "soon");
    outbox.insert([misplaced, record("b", "k"), placeless]).await;
    let owner = instance(&outbox, 0).await;

    let of_partition = ["partition, 7.5, is not an integer", &owner.to_string()];
    says(&waits(&outbox, "a").await, "repair", &of_partition);
    says(&waits(&outbox, "b").await, "repair", &["behind a; a is corrected by instance"]);
    says(&waits(&outbox, "c").await, "repair", &["it has no valid seq"]);
}

#[fixture::test]
async fn a_key_blocked_by_a_dead_record_is_shown_with_the_remedy() {
    let outbox = TestOutbox::new().await;
    let mut blocking = dead("a", "k", "refused: not a letter");
    blocking.insert("blocks", true);
    outbox.insert([blocking, record("b", "k"), record("c", "k")]).await;
    instance(&outbox, 0).await;

    let held = waits(&outbox, "c").await;

    says(
        &held,
        "blocked",
        &["behind a, which is dead", "refused: not a letter", "requeue", "discard"],
    );
    assert_eq!(held["behind"], "a");
}

#[fixture::test]
async fn a_sink_that_is_down_is_named_without_its_password() {
    let outbox = TestOutbox::new().await;
    outbox.insert([record("a", "k"), record("b", "k")]).await;
    instance(&outbox, 0).await;
    let uri = amqp_uri_at(&format!("127.0.0.1:{}", free_port()));
    let uri = uri.replacen("guest:guest", "guest:pl4nted-s3cret", 1);
    let rabbit = vec!["sinks.rabbit.kind=rabbitmq".to_owned(), format!("sinks.rabbit.uri={uri}")];

    let first = waits_with(&outbox, rabbit.clone(), "a").await;
    let second = waits_with(&outbox, rabbit, "b").await;

    says(&first, "sink_down", &["waits for its sink rabbit, which this command cannot reach"]);
    assert_eq!(first["sink"], "rabbit");
    says(&second, "sink_down", &["behind a, which waits for its sink rabbit"]);
    assert!(!first.to_string().contains("pl4nted"), "{first}");
}

#[fixture::test]
async fn a_scheduled_record_says_when_it_is_due() {
    let outbox = TestOutbox::new().await;
    let mut later = with_status("later", "k", "scheduled");
    later.insert("visibleAt", DateTime::from_millis(4_102_444_800_000));
    let mut not_yet = record("not yet", "k");
    not_yet.insert("visibleAt", DateTime::from_millis(4_102_444_800_000));
    outbox.insert([later, not_yet, with_status("due", "k", "scheduled")]).await;
    outbox.insert([with_status("done", "k", "done"), dead("dead", "k", "refused: no")]).await;
    outbox.insert([with_status("odd", "k", "Pending")]).await;
    instance(&outbox, 0).await;

    says(&waits(&outbox, "later").await, "scheduled", &["at 2100-01-01T00:00:00Z"]);
    says(&waits(&outbox, "due").await, "scheduled", &["is due"]);
    says(&waits(&outbox, "not yet").await, "not_due", &["before 2100-01-01T00:00:00Z (visibleAt)"]);
    says(
        &waits(&outbox, "odd").await,
        "invalid",
        &["the status \"Pending\", which must be pending"],
    );
    for over in ["done", "dead"] {
        assert!(waits(&outbox, over).await.is_null(), "{over}");
    }
    let table = outbox_command(&outbox, &["show", "later"]).await.with_code(0);
    assert!(table.stdout.lines().any(|line| line.starts_with("waits ")), "{table}");
}

/// The partition's owner reports what MongoDB does not know.
#[fixture::test]
async fn the_owners_report_overrides_the_records() {
    let outbox = TestOutbox::new().await;
    outbox.insert([record("a", "k"), record("b", "k")]).await;
    let owner = instance(&outbox, 0).await;
    let down = doc! { "sinksDown": [{ "sink": "out", "cause": "the broker is gone" }] };

    for (state, what, words) in [
        (down, "sink_down", "sink out, which is down according to instance"),
        (doc! { "alone": ["a"] }, "quarantined", "is in quarantine on instance"),
        (doc! { "refused": ["a"] }, "refused", "MongoDB rejects the changes of instance"),
        (doc! { "deadLetter": ["a"] }, "dead_letter", "can send its dead-letter copy"),
        (doc! { "unconfirmed": ["a"] }, "destination_down", "which does not confirm"),
        (doc! { "storeTrouble": "it refuses" }, "store", "waits for MongoDB according to instance"),
        (
            doc! { "sinksDown": [{ "sink": "other", "cause": "x" }] },
            "next_scan",
            "next scan of instance",
        ),
        (doc! { "blockedKeys": { "quarantined": 32_i64 } }, "next_scan", "next scan of instance"),
        (
            doc! { "blockedKeys": { "quarantined": 33_i64 } },
            "next_scan",
            "one of 33 waiting records",
        ),
    ] {
        set_report(&outbox, owner, state).await;

        for id in ["a", "b"] {
            let waits_for = waits(&outbox, id).await;
            says(&waits_for, what, &[words, &owner.to_string(), "on host-7"]);
            assert_eq!(waits_for["instance"], owner.to_string());
        }
    }
}

/// Its last delivery is over: it no longer waits for its backoff.
#[fixture::test]
async fn show_says_that_a_record_waits_for_its_dead_letter() {
    let outbox = TestOutbox::new().await;
    let mut failed = record("a", "k");
    failed.extend(doc! { "attempt": 10, "lastError": "nack", "visibleAt": in_seconds(3_600) });
    outbox.insert([failed]).await;
    let owner = instance(&outbox, 0).await;
    says(&waits(&outbox, "a").await, "not_due", &["delivery 10 of 10 failed: nack"]);

    set_report(&outbox, owner, doc! { "deadLetter": ["a"] }).await;

    says(
        &waits(&outbox, "a").await,
        "dead_letter",
        &["becomes dead after its dead-letter copy", "is retried at"],
    );
}

#[fixture::test]
async fn partition_without_a_living_owner_and_a_pause_are_named() {
    let outbox = TestOutbox::new().await;
    // Without a partition and with an invalid one: the key's partition counts.
    let (mut absent, mut invalid) = (record("a", "k"), record("c", "l"));
    absent.remove("partition");
    invalid.insert("partition", 700);
    outbox.insert([absent, record("b", "k"), invalid, record("d", "l")]).await;
    let gone = instance(&outbox, 60).await;
    let database = outbox.client.database(&outbox.database);
    let instances = database.collection::<Document>(names::INSTANCES);
    let other =
        doc! { "_id": bson::Uuid::new(), "status": "active", "lastHeartbeat": in_seconds(3_600) };
    instances.insert_one(other).await.unwrap();

    for id in ["a", "b", "c", "d"] {
        let stale = waits(&outbox, id).await;
        says(&stale, "instance", &["belongs to instance", "on host-7", "stale", &gone.to_string()]);
    }
    assert_eq!(waits(&outbox, "b").await["behind"], "a");
    assert_eq!(waits(&outbox, "d").await["behind"], "c");
    database.collection::<Document>(names::ASSIGNMENTS).delete_many(doc! {}).await.unwrap();
    says(&waits(&outbox, "b").await, "instance", &["none owns its partition"]);
    let fixed = doc! {
        "_id": bson::Uuid::new(), "status": "active", "lastHeartbeat": in_seconds(3_600),
        "partitions": "0-255", "hostname": "host-8",
    };
    instances.insert_one(fixed).await.unwrap();
    says(&waits(&outbox, "b").await, "next_scan", &["on host-8"]);
    crate::call_with(&mongo_settings(&outbox.database), &["relay", "pause"]).await.with_code(0);
    says(&waits(&outbox, "b").await, "paused", &["postrider relay resume"]);
}
