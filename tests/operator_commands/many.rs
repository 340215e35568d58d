//! `--all`: records chosen by key, type, reason and status; listed first, and changed only on
//! request.

use bson::{Document, doc};
use postrider::outbox::redrive::{Redrive, RedriveFilter, Redriver};
use serde_json::json;

use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::{TestOutbox, record};
use crate::{answer, dead, in_seconds, leased, outbox_command, with_status};

async fn statuses(outbox: &TestOutbox, status: &str) -> Vec<String> {
    use futures_util::TryStreamExt;
    let records = outbox.records();
    let find = records.find(doc! { "status": status }).sort(doc! { "_id": 1 });
    let found: Vec<Document> = find.await.unwrap().try_collect().await.unwrap();
    found.iter().map(|record| record.get_str("_id").unwrap().to_owned()).collect()
}

async fn some_dead() -> TestOutbox {
    let outbox = TestOutbox::new().await;
    let of_type = |mut record: Document, kind: &str| {
        record.insert("type", kind);
        record
    };
    outbox
        .insert([
            of_type(dead("a", "k1", "refused: too odd"), "T1"),
            of_type(dead("b", "k1", "attempts exhausted: 10 deliveries failed"), "T2"),
            of_type(dead("c", "k2", "attempts exhausted: 3 deliveries failed"), "T1"),
            with_status("d", "k1", "done"),
            with_status("e", "k1", "scheduled"),
            record("f", "k1"),
            leased("g", "k2", in_seconds(600)),
        ])
        .await;
    outbox
}

#[fixture::test]
async fn requeue_all_takes_a_key_a_type_or_a_reason() {
    let outbox = some_dead().await;
    let all = async |more: &[&str]| {
        answer(&outbox, &[&["requeue", "--all", "--yes"], more].concat()).await
    };

    assert_eq!(all(&["--key", "k1", "--type", "T2", "--reason", "ref"]).await["matched"], 0);
    assert_eq!(all(&["--key", "k2"]).await, json!({ "matched": 1, "requeued": 1 }));
    assert_eq!(statuses(&outbox, "dead").await, ["a", "b"]);
    assert_eq!(all(&["--reason", "attempts exhausted"]).await["requeued"], 1);
    assert_eq!(statuses(&outbox, "dead").await, ["a"]);
    assert_eq!(all(&["--type", "T1"]).await["requeued"], 1);
    assert_eq!(all(&[]).await, json!({ "matched": 0, "requeued": 0 }));
    assert_eq!(statuses(&outbox, "pending").await, ["a", "b", "c", "f", "g"]);
    assert_eq!(statuses(&outbox, "done").await, ["d"]);
}

#[fixture::test]
async fn discard_all_takes_dead_records_by_default() {
    let outbox = some_dead().await;
    let all = async |more: &[&str]| {
        answer(&outbox, &[&["discard", "--all", "--yes"], more].concat()).await
    };

    assert_eq!(all(&["--key", "k1"]).await, json!({ "matched": 2, "discarded": 2 }));
    assert_eq!(all(&["--status", "scheduled"]).await["discarded"], 1);
    assert_eq!(all(&["--status", "pending"]).await["discarded"], 1, "not the one that is held");
    assert_eq!(statuses(&outbox, "pending").await, ["g"]);
    assert_eq!(statuses(&outbox, "dead").await, ["c"]);
}

#[fixture::test]
async fn nothing_changes_without_confirmation() {
    let outbox = some_dead().await;

    for command in ["requeue", "discard"] {
        let unasked = outbox_command(&outbox, &[command, "--all"]).await.with_code(2);
        assert!(
            unasked.stderr.contains("--dry-run") && unasked.stderr.contains("--yes"),
            "{unasked}"
        );
        let tried = answer(&outbox, &[command, "--all", "--key", "k1", "--dry-run"]).await;
        assert_eq!(tried["matched"], 2, "{tried}");
        let tried = answer(&outbox, &[command, "a", "--dry-run", "--yes"]).await;
        assert_eq!(tried["matched"], 1, "{tried}");
        for wrong in [&[command][..], &[command, "a", "--all"], &[command, "a", "--key", "k"]] {
            outbox_command(&outbox, wrong).await.with_code(2);
        }
    }
    outbox_command(&outbox, &["requeue", "--redeliver", "--all", "--yes"]).await.with_code(2);
    outbox_command(&outbox, &["discard", "a", "--status", "dead"]).await.with_code(2);
    let missing = outbox_command(&outbox, &["discard", "none", "--dry-run"]).await.with_code(1);
    assert!(missing.stderr.contains("none"), "{missing}");

    assert_eq!(statuses(&outbox, "dead").await, ["a", "b", "c"]);
}

/// A relay that reads meanwhile must not see a record of a key without the earlier ones.
#[fixture::test]
async fn a_key_is_requeued_in_its_old_order_one_record_after_the_other() {
    let outbox = TestOutbox::new().await;
    // Their ids sort in another order than their seqs.
    for id in ["c", "a", "b"] {
        outbox
            .insert([dead(id, "k", "refused: no"), dead(&format!("{id}-other"), id, "refused: no")])
            .await;
    }
    let recorder = CommandRecorder::on(&outbox).await;

    let redriver = Redriver::new(recorder.collections.clone());
    let redriven =
        redriver.redrive_matching(Redrive::Requeue, &RedriveFilter::default()).await.unwrap();

    assert_eq!((redriven.matched, redriven.changed), (6, 6));
    let command = recorder.commands("update").remove(0).sent;
    let of_key: Vec<String> = command
        .get_array("updates")
        .unwrap()
        .iter()
        .map(|statement| {
            let ids = statement.as_document().unwrap().get_document("q").unwrap();
            let ids = ids.get_document("_id").unwrap().get_array("$in").unwrap();
            let of_key = ids.iter().filter_map(|id| id.as_str()).filter(|id| id.len() == 1);
            of_key.collect::<Vec<_>>().join(" ")
        })
        .collect();
    assert_eq!(of_key, ["c", "a", "b"]);
    assert_eq!(
        command.get_document("writeConcern").unwrap().get_str("w").unwrap(),
        "majority",
        "guard 4"
    );
}

/// The relay may be quick: a record that dies again is not requeued for ever.
#[fixture::test]
async fn a_record_that_dies_again_meanwhile_is_left_alone() {
    let outbox = TestOutbox::new().await;
    let mut records: Vec<Document> =
        (0..1_500).map(|n| dead(&format!("{n:04}"), "k", "no: no")).collect();
    records.last_mut().unwrap().insert("key", "last");
    outbox.insert(records).await;
    let recorder = CommandRecorder::on(&outbox).await;
    let again = outbox.records();
    // Between the first batch and the second.
    recorder.after(
        |command| command.name == "update",
        move || async move {
            let dies = doc! { "$set": { "status": "dead" }, "$currentDate": { "deadAt": true } };
            again.update_many(doc! { "status": "pending" }, dies).await.unwrap();
        },
    );

    let redriver = Redriver::new(recorder.collections.clone());
    let redriven =
        redriver.redrive_matching(Redrive::Requeue, &RedriveFilter::default()).await.unwrap();

    assert!(recorder.has_paused());
    assert_eq!((redriven.matched, redriven.changed), (1_500, 1_500));
    assert_eq!(outbox.count(doc! { "status": "dead" }).await, 1_000);
}
