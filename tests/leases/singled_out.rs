//! In a batch that MongoDB cannot write as a whole, the refused records are named, and the others
//! are written.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use bson::{Document, doc};
use postrider::ids::{InstanceId, LeaseId};
use postrider::outbox::lease::{LeaseRequest, Leaser, OwnerId};
use postrider::outbox::reason::DeadReason;
use postrider::outbox::record::Record;
use postrider::outbox::repair::{Repairs, Unleasable};
use postrider::outbox::settle::{Outcome, Settlement, Settlements, Unsettled};

use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::{TestOutbox, record, versions};
use crate::support::relay::settings;
use crate::support::relay_harness::RelayHarness;
use crate::support::rival_relay::{RivalRelay, ids};
use crate::support::sink::TestSink;
use crate::support::sizes::{LEASE_BYTES, MAX_DOCUMENT_BYTES, of_size};

/// DocumentValidationFailure.
const INVALID: i32 = 121;

fn sealed(id: &str) -> Document {
    let mut record = record(id, id);
    record.insert("sealed", true);
    record
}

/// From now on a sealed record must match this.
async fn seal(outbox: &TestOutbox, condition: Document) {
    let validator = doc! { "$or": [{ "sealed": null }, condition] };
    let change = doc! { "collMod": "outbox_records", "validator": validator };
    outbox.client.database(&outbox.database).run_command(change).await.unwrap();
}

fn settlement(id: &str, lease: LeaseId, outcome: Outcome) -> Settlement {
    Settlement { id: ids(&[id]).remove(0), lease, attempt: 1, outcome }
}

fn retry(error: String) -> Outcome {
    Outcome::Retry { delay: Duration::from_secs(3_600), error }
}

async fn statuses(outbox: &TestOutbox, names: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for name in names {
        found.push(outbox.record(*name).await.get_str("status").unwrap().to_owned());
    }
    found
}

#[fixture::test]
async fn a_lease_skips_refused_and_full_records() {
    let outbox = TestOutbox::restricted().await;
    let (large, _) = of_size("b large", MAX_DOCUMENT_BYTES - LEASE_BYTES / 2);
    outbox.insert([record("a", "a"), sealed("c sealed"), record("d", "d")]).await;
    outbox.admin.records().insert_one(large).await.unwrap();
    seal(&outbox, doc! { "leaseId": null }).await;
    let leaser = Leaser::new(
        outbox.collections.clone(),
        OwnerId::new(InstanceId::fresh()),
        Duration::from_secs(600),
    );

    let wanted = versions(&outbox.admin, &["a", "b large", "c sealed", "d"]).await;
    let grant =
        leaser.lease(LeaseId::fresh(), &LeaseRequest::touched(wanted.clone())).await.unwrap();

    assert_eq!(grant.held, HashSet::from_iter(ids(&["a", "d"])));
    assert_eq!(grant.oversized, ids(&["b large"]));
    assert_eq!(grant.refused, HashMap::from([(wanted[2].id.clone(), INVALID)]));
}

/// The lease of each is tried by itself, since one of them stops the statement. What replaced the
/// large one is small, and is not made dead as too large.
#[fixture::test]
async fn a_replaced_record_is_neither_leased_nor_dead_as_too_large() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let (large, _) = of_size("large", MAX_DOCUMENT_BYTES - LEASE_BYTES / 2);
    outbox.insert([record("a", "a"), record("b", "b")]).await;
    outbox.admin.records().insert_one(large.clone()).await.unwrap();
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;
    let seen = harness.scan().await;
    let large = Record::read(&large);
    let again = record("b", "b");
    outbox.records().replace_one(doc! { "_id": "b" }, again).await.unwrap();

    let lanes = harness.acquire(seen).await;
    harness.deliver(lanes).await;

    assert_eq!(sink.ids(), ["a"]);
    assert_eq!(statuses(&outbox, &["a", "b", "large"]).await, ["done", "pending", "dead"]);
    let small = record("large", "large");
    outbox.records().replace_one(doc! { "_id": "large" }, small).await.unwrap();
    let (repairs, reason) =
        (Repairs::new(outbox.collections.clone()), DeadReason::TooLarge(String::new()));
    let is_dead = repairs.mark_dead(&large, Unleasable::Oversized, &reason, false).await.unwrap();
    assert!(!is_dead);
    assert_eq!(statuses(&outbox, &["large"]).await, ["pending"]);
}

#[fixture::test]
async fn a_refused_outcome_is_named_and_the_others_are_written() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    outbox.insert(["b", "d", "e"].map(|id| record(id, id))).await;
    outbox.insert(["a", "c"].map(sealed)).await;
    let lease = RivalRelay::new(&outbox.collections).take(&["a", "b", "c", "d", "e"]).await;
    seal(&outbox, doc! { "status": "pending", "lastError": null }).await;
    let settlements = Settlements::new(recorder.collections.clone(), false);

    // One statement for those that are done, which stops at the first refusal; one for each that
    // failed.
    let done = ["a", "b", "d"].map(|id| settlement(id, lease, Outcome::Done));
    let failed = ["c", "e"].map(|id| settlement(id, lease, retry("it failed".to_owned())));
    let unsettled = settlements.write(&[&done[..], &failed[..]].concat()).await.unwrap();

    let refused = ids(&["a", "c"]).into_iter().map(|id| (id, INVALID)).collect();
    assert_eq!(unsettled, Unsettled { lost: HashSet::new(), refused });
    assert_eq!(
        statuses(&outbox, &["a", "b", "c", "d", "e"]).await,
        ["pending", "done", "pending", "done", "pending"]
    );
    assert_eq!(outbox.record("e").await.get_str("lastError").unwrap(), "it failed");
    assert_eq!(recorder.commands("find").len(), 0, "every record is accounted for");
}

#[fixture::test]
async fn an_error_that_does_not_fit_is_left_out_of_the_retry() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let (large, _) = of_size("large", MAX_DOCUMENT_BYTES - LEASE_BYTES);
    outbox.admin.records().insert_one(large).await.unwrap();
    outbox.insert([record("other", "o")]).await;
    let lease = RivalRelay::new(&outbox.collections).take(&["large", "other"]).await;

    let outcomes = ["large", "other"].map(|id| settlement(id, lease, retry("e".repeat(500))));
    let settlements = Settlements::new(recorder.collections.clone(), false);
    let unsettled = settlements.write(&outcomes).await.unwrap();

    assert_eq!(unsettled, Unsettled::default());
    let retried = doc! { "attempt": 1, "leaseId": null, "visibleAt": { "$type": "date" } };
    assert_eq!(outbox.count(retried).await, 2);
    assert_eq!(outbox.count(doc! { "lastError": { "$exists": true } }).await, 1);
    assert_eq!(recorder.commands("find").len(), 0, "every record is accounted for");
}

/// Retention `"0s"`.
#[fixture::test]
async fn deleting_delivered_records_reports_lost_leases() {
    let outbox = TestOutbox::restricted_for(Duration::ZERO).await;
    let recorder = CommandRecorder::on(&outbox).await;
    outbox.insert(["a", "b", "c"].map(|id| record(id, id))).await;
    let peer = RivalRelay::new(&outbox.collections);
    let (ours, other) = (peer.take(&["a", "c"]).await, peer.take(&["b"]).await);
    let settlements = Settlements::new(recorder.collections.clone(), true);

    let all = ["a", "b"].map(|id| settlement(id, ours, Outcome::Done));
    let some_lost = settlements.write(&all).await.unwrap();
    let read_back = recorder.commands("find").len();
    let none_lost = settlements.write(&[settlement("c", ours, Outcome::Done)]).await.unwrap();

    let lost = HashSet::from_iter(ids(&["b"]));
    assert_eq!(some_lost, Unsettled { lost, refused: HashMap::new() });
    assert_eq!(none_lost, Unsettled::default());
    assert_eq!(
        (read_back, recorder.commands("find").len()),
        (1, 1),
        "only what is not accounted for"
    );
    assert_eq!(outbox.count(doc! {}).await, 1);
    assert_eq!(outbox.count(doc! { "_id": "b", "leaseId": bson::Bson::from(other) }).await, 1);
}
