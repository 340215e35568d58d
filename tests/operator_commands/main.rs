//! The commands of an operator, by the real binary: usage, schema, statistics, `outbox` (`list`, `show`,
//! `requeue`, `discard`, `prune`), `instances`, `partitions` and `relay pause`. By its parts under load.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

#[path = "../support/mod.rs"]
mod support;

#[path = "../fuzz/arbitrary.rs"]
#[allow(dead_code, reason = "this binary needs values alone")]
mod arbitrary;
mod blocked;
mod discard;
mod instances;
mod lists;
mod many;
mod nowhere;
mod odd;
mod outbox;
mod prune;
mod raw_ids;
mod requeue;
mod schema;
mod under_load;
mod usage;
mod why;

use bson::{DateTime, Document, doc};
use serde_json::Value;
use support::outbox::TestOutbox;
use support::process::{Ended, call_with};
use support::queue::mongo_settings;

/// `postrider outbox …` on this outbox.
async fn outbox_command(outbox: &TestOutbox, arguments: &[&str]) -> Ended {
    call_with(&mongo_settings(&outbox.database), &[&["outbox"], arguments].concat()).await
}

/// The same, which must succeed and print JSON.
async fn answer(outbox: &TestOutbox, arguments: &[&str]) -> Value {
    let arguments = [arguments, &["--output", "json"]].concat();
    outbox_command(outbox, &arguments).await.with_code(0).json()
}

/// A record that was given up.
fn dead(id: &str, key: &str, reason: &str) -> Document {
    let mut record = support::outbox::record(id, key);
    record.extend(doc! {
        "status": "dead", "attempt": 10, "deadAt": DateTime::now(), "deadReason": reason,
        "lastError": "nack", "lastErrorAt": DateTime::now(),
    });
    record
}

/// A record of another status.
fn with_status(id: &str, key: &str, status: &str) -> Document {
    let mut record = support::outbox::record(id, key);
    record.insert("status", status);
    record
}

/// A pending record with a lease until this time.
fn leased(id: &str, key: &str, until: DateTime) -> Document {
    let mut record = support::outbox::record(id, key);
    record.extend(doc! {
        "attempt": 1, "leaseId": bson::Uuid::new(), "leaseOwner": bson::Uuid::new(), "leaseUntil": until,
    });
    record
}

fn in_seconds(seconds: i64) -> DateTime {
    DateTime::from_millis(DateTime::now().timestamp_millis() + seconds * 1_000)
}
