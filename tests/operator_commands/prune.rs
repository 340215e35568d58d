//! Prune: by age, on the server's clock; a record that blocks its key stays.

use std::time::Duration;

use bson::doc;
use postrider::schema::Validator;
use postrider::schema::{SchemaOptions, apply};
use serde_json::json;

use crate::support::outbox::TestOutbox;
use crate::support::process::call_with;
use crate::support::queue::mongo_settings;
use crate::{answer, dead, in_seconds, outbox_command, with_status};

const DAY: i64 = 86_400;

/// An outbox where the server itself deletes nothing: its TTL monitor runs once a minute, and may
/// do so in a test.
async fn outbox_without_expiry() -> TestOutbox {
    let outbox = TestOutbox::new().await;
    let retention = Duration::from_secs(1_000 * DAY.unsigned_abs());
    let options = SchemaOptions { retention, validator: Validator::Error };
    apply(&outbox.collections, &options).await.unwrap();
    for days in [1, 6, 8, 40] {
        let (done, given_up) = (format!("done {days}"), format!("dead {days}"));
        let mut delivered = with_status(&done, "k", "done");
        delivered.insert("doneAt", in_seconds(-days * DAY));
        let mut given_up = dead(&given_up, "k", "refused: no");
        given_up.insert("deadAt", in_seconds(-days * DAY));
        outbox.insert([delivered, given_up]).await;
    }
    let mut blocking = dead("blocking", "b", "refused: no");
    blocking.extend(doc! { "deadAt": in_seconds(-40 * DAY), "blocks": true });
    let mut undated = with_status("undated", "k", "done");
    undated.insert("createdAt", in_seconds(-40 * DAY));
    outbox.insert([blocking, undated, with_status("waiting", "k", "pending")]).await;
    outbox
}

#[fixture::test]
async fn prune_removes_done_records_older_than_the_retention() {
    let outbox = outbox_without_expiry().await;

    let unasked = outbox_command(&outbox, &["prune"]).await.with_code(2);
    let tried = answer(&outbox, &["prune", "--dry-run"]).await;
    assert!(unasked.stderr.contains("--dry-run") && unasked.stderr.contains("--yes"), "{unasked}");
    assert_eq!(tried, json!({ "matched": 2, "pruned": 0 }));
    assert_eq!(outbox.count(doc! {}).await, 11);
    let pruned = answer(&outbox, &["prune", "--yes"]).await;
    assert_eq!(pruned, json!({ "matched": 2, "pruned": 2 }));
    assert_eq!(outbox.count(doc! { "_id": { "$in": ["done 8", "done 40"] } }).await, 0);
    assert_eq!(
        answer(&outbox, &["prune", "--older-than", "2d", "--status", "done", "--yes"]).await["pruned"],
        1
    );
    let settings =
        [mongo_settings(&outbox.database), vec!["outbox.retention=1h".to_owned()]].concat();
    call_with(&settings, &["outbox", "prune", "--yes"]).await.with_code(0);

    let done = outbox.count(doc! { "status": "done" }).await;
    assert_eq!(done, 1, "only the one of which nobody knows when it was done");
    assert_eq!(outbox.count(doc! { "status": { "$ne": "done" } }).await, 6);
}

#[fixture::test]
async fn prune_keeps_dead_records_that_block_their_key() {
    let outbox = outbox_without_expiry().await;

    let dead = ["prune", "--status", "dead", "--output", "json"];
    let tried = outbox_command(&outbox, &[&dead[..], &["--dry-run"]].concat()).await;
    let tried = tried.with_code(0).json();
    assert_eq!(tried, json!({ "matched": 2, "pruned": 0, "blocking": 1 }));
    assert_eq!(outbox.count(doc! { "status": "dead" }).await, 5);
    let pruned = outbox_command(&outbox, &[&dead[..], &["--yes"]].concat()).await;

    let pruned = pruned.with_code(0);
    assert_eq!(pruned.json(), json!({ "matched": 2, "pruned": 2, "blocking": 1 }));
    assert!(pruned.stderr.contains("requeue or discard"), "{pruned}");
    assert_eq!(outbox.count(doc! { "status": "dead" }).await, 3);
    assert_eq!(outbox.count(doc! { "status": "done" }).await, 5);
}

#[fixture::test]
async fn an_age_without_a_unit_and_another_status_are_wrong_usage() {
    let outbox = TestOutbox::new().await;

    for wrong in [["--older-than", "7"], ["--older-than", "-7d"], ["--status", "pending"]] {
        outbox_command(&outbox, &[&["prune", "--yes"], &wrong[..]].concat()).await.with_code(2);
    }
}
