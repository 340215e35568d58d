//! Requeue, field by field.

use bson::{Bson, DateTime, Document, doc};
use serde_json::json;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::Postrider;
use crate::support::queue::Queue;
use crate::support::sizes::{MAX_DOCUMENT_BYTES, filled};
use crate::{answer, dead, in_seconds, outbox_command, with_status};

#[fixture::test]
async fn a_dead_record_is_pending_again_in_its_old_place() {
    let outbox = TestOutbox::new().await;
    let mut given_up = dead("a", "k", "attempts exhausted: 10 deliveries failed");
    given_up.extend(doc! {
        "blocks": true, "visibleAt": in_seconds(3_600), "doneAt": DateTime::now(), "x-note": "kept",
        "headers": { "h": 1 }, "dedupKey": "d",
    });
    outbox.insert([given_up]).await;
    let before = outbox.record("a").await;

    let requeued = answer(&outbox, &["requeue", "a"]).await;

    assert_eq!(requeued, json!({ "matched": 1, "requeued": 1 }));
    let after = outbox.record("a").await;
    let mut wanted = before.clone();
    wanted.extend(doc! { "status": "pending", "attempt": 0 });
    for field in ["deadAt", "deadReason", "doneAt", "blocks", "visibleAt"] {
        wanted.remove(field);
    }
    assert_eq!(after, wanted, "seq, lastError and all that is the producer's stay");
}

#[fixture::test]
async fn only_dead_records_are_requeued_unless_redelivery_is_requested() {
    let outbox = TestOutbox::new().await;
    let others = [("p", "pending"), ("s", "scheduled"), ("d", "done"), ("i", "Odd"), ("e", "")];
    outbox.insert(others.map(|(id, status)| with_status(id, "k", status))).await;
    outbox.insert([dead("x", "k", "refused: no")]).await;
    let given = ["requeue", "p", "s", "d", "i", "e", "missing", "x"];

    let refused = outbox_command(&outbox, &given).await.with_code(1);

    for (id, why) in [
        ("p", "it is pending; only dead records can be requeued"),
        ("s", "it is scheduled; only dead records can be requeued"),
        ("d", "--redeliver"),
        ("i", "it is in the invalid status \"Odd\"; only dead records can be requeued"),
        ("e", "it is in the invalid status \"\"; only dead records can be requeued"),
        ("missing", "there is no record with this id"),
    ] {
        let line = refused.stderr.lines().find(|line| line.starts_with(&format!("error: {id}: ")));
        assert!(line.is_some_and(|line| line.contains(why)), "{id}: {refused}");
    }
    assert_eq!(outbox.record("x").await.get_str("status").unwrap(), "pending", "{refused}");
    assert_eq!(outbox.record("d").await.get_str("status").unwrap(), "done");

    let again = answer(&outbox, &["requeue", "--redeliver", "d"]).await;
    assert_eq!(again, json!({ "matched": 1, "requeued": 1 }));
    let refused = outbox_command(&outbox, &["requeue", "--redeliver", "s"]).await.with_code(1);
    assert!(refused.stderr.contains("only dead and done records"), "{refused}");
}

/// It has no content: its consumers would get `{}` under its type.
#[fixture::test]
async fn record_of_an_erased_stream_is_not_delivered_again() {
    let outbox = TestOutbox::new().await;
    let erased = doc! { "payload": {}, "erased": true };
    let of = |mut record: Document| {
        record.extend(erased.clone());
        record
    };
    outbox.insert([of(with_status("d", "k", "done")), of(dead("x", "k", "refused: no"))]).await;
    outbox.insert([dead("y", "k", "refused: no")]).await;

    for command in [&["requeue", "--redeliver", "d", "x"][..], &["requeue", "d", "x"]] {
        let refused = outbox_command(&outbox, command).await.with_code(1);
        assert_eq!(refused.stderr.matches("its content was erased").count(), 2, "{refused}");
    }
    let many = outbox_command(&outbox, &["requeue", "--all", "--yes"]).await.with_code(1);

    assert!(many.stderr.contains("1 have no content"), "{many}");
    for (id, status) in [("d", "done"), ("x", "dead"), ("y", "pending")] {
        assert_eq!(outbox.record(id).await.get_str("status").unwrap(), status, "{id}");
    }
    answer(&outbox, &["discard", "x"]).await;
}

#[fixture::test]
async fn ids_of_every_kind_are_found_and_unknown_ones_change_nothing() {
    let outbox = TestOutbox::new().await;
    let (uuid, oid) = (bson::Uuid::new(), bson::oid::ObjectId::new());
    let ids: [Bson; 4] = [uuid.into(), oid.into(), 42.into(), "text".into()];
    for id in ids {
        let mut record = dead("", "k", "refused: no");
        record.insert("_id", id);
        outbox.insert([record]).await;
    }
    let texts = [uuid.to_string(), oid.to_hex(), "int:42".to_owned(), "str:text".to_owned()];
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();

    let wrong = [&["requeue"], texts.as_slice(), &["uuid:nine"]].concat();
    outbox_command(&outbox, &wrong).await.with_code(2);
    assert_eq!(outbox.count(doc! { "status": "dead" }).await, 4);

    let requeued = answer(&outbox, &[&["requeue"], texts.as_slice()].concat()).await;
    assert_eq!(requeued, json!({ "matched": 4, "requeued": 4 }));
    assert_eq!(outbox.count(doc! { "status": "pending" }).await, 4);
}

#[fixture::test]
async fn a_redelivered_record_arrives_again_under_the_same_id() {
    let (outbox, queue) = (TestOutbox::new().await, Queue::declare().await);
    outbox.insert([record("a", "k")]).await;
    let mut postrider = Postrider::start(&queue.settings(&outbox));
    outbox.until_count(doc! { "status": "done" }, 1).await;
    let first = outbox.record("a").await;

    answer(&outbox, &["requeue", "--redeliver", "a"]).await;

    outbox
        .until_count(doc! { "status": "done", "doneAt": { "$ne": first.get("doneAt") } }, 1)
        .await;
    let arrived: Vec<String> = queue.arrivals(2).await;
    assert_eq!(arrived, ["a", "a"]);
    let again = outbox.record("a").await;
    assert_eq!(again.get("seq"), first.get("seq"));
    assert_eq!(again.get_i32("attempt").unwrap(), 1);
    postrider.stop().await;
}

#[fixture::test]
async fn a_validator_that_forbids_it_is_named() {
    let outbox = TestOutbox::new().await;
    outbox.insert([dead("a", "k", "refused: no")]).await;
    let database = outbox.client.database(&outbox.database);
    let validator = doc! { "status": "dead" };
    let strict = doc! { "collMod": "outbox_records", "validator": validator };
    database.run_command(strict).await.unwrap();

    let refused = outbox_command(&outbox, &["requeue", "a"]).await.with_code(1);

    assert!(
        refused.stderr.contains("code 121") && refused.stderr.contains("validator"),
        "{refused}"
    );
    assert_eq!(outbox.record("a").await.get_str("status").unwrap(), "dead");
}

#[fixture::test]
async fn records_that_cannot_be_requeued_are_reported() {
    let outbox = TestOutbox::new().await;
    outbox.insert([dead("a", "k", "refused: no"), dead("z", "l", "refused: no")]).await;
    for id in ["m", "n"] {
        let (record, _) = filled(with_status(id, id, "dead"), MAX_DOCUMENT_BYTES);
        outbox.admin.records().insert_one(record).await.unwrap();
    }

    let tried = ["requeue", "--all", "--yes", "--output", "json"];
    let requeued = outbox_command(&outbox, &tried).await.with_code(1);

    assert_eq!(requeued.json(), json!({ "matched": 4, "requeued": 2 }), "{requeued}");
    let why = "not all of 4 records were changed: 2 are too close to MongoDB's limit of 16 MiB to be \
               changed; shorten their payloads first";
    assert!(requeued.stderr.contains(why), "{requeued}");
    assert_eq!(outbox.count(doc! { "status": "pending" }).await, 2);
    let again = outbox_command(&outbox, &tried).await.with_code(1);
    assert_eq!(again.json(), json!({ "matched": 2, "requeued": 0 }), "{again}");
}
