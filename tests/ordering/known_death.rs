//! Guard 4: no follower goes before its predecessor is known to be dead.

use bson::{Document, doc};
use postrider::ids::LeaseId;
use postrider::outbox::reason::DeadReason;
use postrider::outbox::settle::{Outcome, Settlement, Settlements};
use postrider::sink::PublishFailure;

use crate::support::command_recorder::CommandRecorder;
use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::relay::{arrived, rounds, until_arrived, until_under_way};
use crate::support::relay::{settings, start};
use crate::support::rival_relay::{RivalRelay, ids};
use crate::support::sink::{Fault, TestSink};

/// Whether an update of this database is in progress, such as one that waits for a transaction.
async fn an_update_waits(outbox: &TestOutbox) -> bool {
    let namespace = format!("^{}[.]", outbox.database);
    let current = doc! { "currentOp": true, "op": "update", "ns": { "$regex": namespace } };
    let answer = outbox.client.database("admin").run_command(current).await.unwrap();
    !answer.get_array("inprog").unwrap().is_empty()
}

#[fixture::test]
async fn a_follower_waits_until_its_predecessors_death_is_written() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    sink.script("a1", [Fault::HoldThenAnswer(PublishFailure::Rejected)]);
    outbox.insert([record("a1", "a"), record("a2", "a")]).await;
    let relay = start(&outbox.collections, sink.clone(), settings());
    until_under_way(&sink, "a1").await;
    // The transaction of another client has written the record: another write of it waits.
    let mut session = outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let touch = doc! { "$set": { "xTouched": true } };
    outbox.records().update_one(doc! { "_id": "a1" }, touch).session(&mut session).await.unwrap();

    sink.release();
    eventually("the death waits to be written", || an_update_waits(&outbox)).await;
    rounds(&outbox, &sink).await;

    assert_eq!(outbox.count(doc! { "status": "dead" }).await, 0);
    assert!(arrived(&sink).is_empty(), "{:?}", arrived(&sink));
    session.abort_transaction().await.unwrap();
    until_arrived(&sink, "a2").await;
    assert_eq!(outbox.record("a1").await.get_str("status").unwrap(), "dead");
    relay.stop().await;
}

#[fixture::test]
async fn a_death_that_matched_nothing_loses_the_lane() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    sink.script("a1", [Fault::HoldThenAnswer(PublishFailure::Rejected)]);
    outbox.insert([record("a1", "a"), record("a2", "a")]).await;
    let relay = start(&outbox.collections, sink.clone(), settings());
    until_under_way(&sink, "a1").await;
    let lease = peer.take_over("a1").await;

    sink.release();
    outbox.until_count(doc! { "_id": "a2", "leaseId": null, "attempt": 0 }, 1).await;
    rounds(&outbox, &sink).await;

    assert!(arrived(&sink).is_empty(), "{:?}", arrived(&sink));
    assert_eq!(outbox.record("a1").await.get_str("status").unwrap(), "pending");
    peer.settle(lease, "a1", Outcome::Done).await;
    until_arrived(&sink, "a2").await;
    relay.stop().await;
}

/// A death that a failover may roll back does not prove that a record is dead.
#[fixture::test]
async fn a_death_that_matched_nothing_is_read_back_from_a_majority() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    outbox.insert([record("a1", "a")]).await;
    let peer = RivalRelay::new(&outbox.collections);
    let lease = peer.take(&["a1"]).await;
    let reason = DeadReason::Refused("by the peer".into());
    let outcome = Outcome::Dead { reason, blocks: false };
    peer.settle(lease, "a1", outcome.clone()).await;

    let id = ids(&["a1"]).remove(0);
    let ours = Settlement { id, lease: LeaseId::fresh(), attempt: 1, outcome };
    Settlements::new(recorder.collections.clone(), false).write(&[ours]).await.unwrap();

    let finds = recorder.commands("find");
    assert_eq!(finds.len(), 1, "{finds:?}");
    assert_eq!(finds[0].sent.get_document("readConcern").unwrap(), &doc! { "level": "majority" });
}

/// Every write on which a follower relies survives a failover.
#[fixture::test]
async fn deaths_repairs_and_promotions_are_acknowledged_by_a_majority() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    let sink = TestSink::default();
    sink.script("refused", [Fault::Answer(PublishFailure::Rejected)]);
    let mut misplaced = record("misplaced", "a");
    misplaced.insert("partition", -1);
    let mut scheduled = record("scheduled", "b");
    scheduled.insert("status", "scheduled");
    outbox.insert([misplaced, scheduled, record("refused", "c")]).await;

    let relay = start(&recorder.collections, sink.clone(), settings());
    outbox.until_count(doc! { "status": "done" }, 2).await;
    outbox.until_count(doc! { "status": "dead" }, 1).await;
    relay.stop().await;

    let mut writes = std::collections::HashMap::from([("dead", 0), ("pending", 0), ("stamp", 0)]);
    for command in recorder.commands("update") {
        let majority =
            command.sent.get_document("writeConcern").unwrap().get_str("w").unwrap_or("1");
        for statement in command.sent.get_array("updates").unwrap() {
            let change = statement.as_document().unwrap().get_document("u");
            let set = change.ok().and_then(|change| change.get_document("$set").ok());
            let Some(what) = set.and_then(kind) else { continue };
            assert_eq!(majority, "majority", "{}", command.sent);
            *writes.get_mut(what).unwrap() += 1;
        }
    }
    assert!(writes.values().all(|count| *count > 0), "{writes:?}");
}

fn kind(set: &Document) -> Option<&'static str> {
    match set.get_str("status") {
        Ok("dead") => Some("dead"),
        Ok("pending") => Some("pending"),
        _ => set.contains_key("partition").then_some("stamp"),
    }
}
