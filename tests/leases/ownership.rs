//! Hazards 3 and 4, and the lease's budget: which relay owns a record, and which one must stop.

use std::collections::HashSet;
use std::time::Duration;

use bson::doc;
use postrider::ids::{InstanceId, LeaseId, RecordId};
use postrider::outbox::lease::{LeaseRequest, Leaser, OwnerId};
use postrider::outbox::reason::DeadReason;
use postrider::outbox::settle::{Outcome, Settlement, Settlements};
use postrider::relay::lane::LaneEnd;
use postrider::relay::settings::Settings;

use crate::support::outbox::{TestOutbox, eventually, record, versions};
use crate::support::relay::{settings, start};
use crate::support::relay_harness::RelayHarness;
use crate::support::rival_relay::RivalRelay;
use crate::support::sink::TestSink;

fn outcomes() -> [Outcome; 4] {
    let reason = DeadReason::Refused("by the test".into());
    let retry = Outcome::Retry { delay: Duration::from_secs(60), error: "nack".into() };
    [Outcome::Done, Outcome::Released, Outcome::Dead { reason, blocks: false }, retry]
}

#[fixture::test]
async fn a_record_done_by_a_peer_after_the_read_is_not_delivered() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert([record("a1", "a"), record("b1", "b")]).await;
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;
    let seen = harness.scan().await;
    let lease = peer.take(&["a1"]).await;
    peer.settle(lease, "a1", Outcome::Done).await;
    let done = outbox.record("a1").await;

    let lanes = harness.acquire(seen).await;
    harness.deliver(lanes).await;

    assert_eq!(sink.ids(), ["b1"]);
    assert_eq!(outbox.record("a1").await, done, "what is done is final");
}

/// MongoDB was away for longer than the lease, or a release was lost: no instance has crashed.
#[fixture::test]
async fn a_lease_that_its_own_instance_takes_again_counts_no_crash() {
    let outbox = TestOutbox::restricted().await;
    outbox.insert([record("a", "k")]).await;
    let owner = OwnerId::new(InstanceId::fresh());
    let leaser = |owner| Leaser::new(outbox.collections.clone(), owner, Duration::from_millis(1));
    let lease = async |leaser: &Leaser| {
        let request = LeaseRequest::touched(versions(&outbox.collections, &["a"]).await);
        let id = LeaseId::fresh();
        eventually("a lease", async || !leaser.lease(id, &request).await.unwrap().held.is_empty())
            .await;
        // The primary alone acknowledges a lease.
        outbox.until_count(doc! { "leaseId": id }, 1).await;
        let leased = outbox.record("a").await;
        (leased.get_i32("attempt").unwrap(), leased.get_i32("leaseCrashes").unwrap_or(0))
    };
    let own = leaser(owner.clone());

    assert_eq!(lease(&own).await, (1, 0));
    assert_eq!(lease(&own).await, (1, 0));
    // The instance has lost its partitions meanwhile.
    owner.replace();
    assert_eq!(lease(&own).await, (1, 0));
    let peer = leaser(OwnerId::new(InstanceId::fresh()));
    assert_eq!(lease(&peer).await, (2, 1), "its owner may have crashed");
}

/// A first lease checks only that no other instance has leased or settled the record.
#[fixture::test]
async fn a_record_released_after_the_read_waits_for_the_next_scan() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert([record("a1", "a")]).await;
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;
    let seen = harness.scan().await;
    let lease = peer.take(&["a1"]).await;
    peer.settle(lease, "a1", Outcome::Released).await;

    let lanes = harness.acquire(seen).await;
    assert!(lanes.is_empty(), "{:?}", outbox.record("a1").await);
    let lanes = harness.acquire(harness.scan().await).await;
    harness.deliver(lanes).await;

    assert_eq!(sink.ids(), ["a1"]);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 1).await;
}

/// By the first form of the lease statement, the general one, and its repetition after a lost answer.
/// (`singled_out` has the one for each record after a refusal.)
#[fixture::test]
async fn a_document_that_replaced_the_one_read_is_not_leased() {
    let outbox = TestOutbox::restricted().await;
    let (proxy, collections) = outbox.behind_proxy().await;
    let leaser =
        Leaser::new(collections, OwnerId::new(InstanceId::fresh()), Duration::from_secs(60));
    let names = ["first", "general", "again", "same"];
    outbox.insert(names.map(|id| record(id, id))).await;
    let read = versions(&outbox.collections, &names).await;
    let replace = async |id: &str| {
        let records = outbox.records();
        records.delete_one(doc! { "_id": id }).await.unwrap();
        records.insert_one(record(id, id)).await.unwrap();
    };
    for id in &names[..3] {
        replace(id).await;
    }
    let untouched = LeaseRequest { untouched: vec![read[0].clone()], ..LeaseRequest::default() };
    let same = || read[3].clone();

    let first = leaser.lease(LeaseId::fresh(), &untouched).await.unwrap();
    let general = LeaseRequest::touched(vec![read[1].clone()]);
    let general = leaser.lease(LeaseId::fresh(), &general).await.unwrap();
    proxy.lose_answers_to("leaseOwner", 1);
    let lease = LeaseId::fresh();
    let again =
        LeaseRequest { untouched: vec![read[2].clone(), same()], ..LeaseRequest::default() };
    let again = leaser.lease(lease, &again).await.unwrap();

    assert!(first.held.is_empty() && general.held.is_empty());
    assert_eq!(again.held, HashSet::from([read[3].id.clone()]));
    assert_eq!(outbox.count(doc! { "attempt": { "$exists": true } }).await, 1);
    assert_eq!(outbox.count(doc! { "_id": "same", "leaseId": lease }).await, 1);
}

#[fixture::test]
async fn a_record_replaced_between_a_scan_and_its_lease_is_read_again() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert([record("a1", "a"), record("a2", "a"), record("b1", "b")]).await;
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), settings()).await;
    let seen = harness.scan().await;
    let mut again = record("a1", "a");
    again.insert("payload", "the second one");
    outbox.records().replace_one(doc! { "_id": "a1" }, again).await.unwrap();

    let lanes = harness.acquire(seen).await;
    harness.deliver(lanes).await;
    assert_eq!(sink.ids(), ["b1"]);
    let lanes = harness.acquire(harness.scan().await).await;
    harness.deliver(lanes).await;

    let delivered = sink.contents();
    assert_eq!(sink.ids(), ["b1", "a2", "a1"], "it has a new place in its key");
    assert_eq!(delivered[2].1, "the second one");
    outbox.until_count(doc! { "status": "done" }, 3).await;
}

#[fixture::test]
async fn a_live_lease_is_not_broken_and_an_expired_one_is() {
    let outbox = TestOutbox::restricted().await;
    let peer = RivalRelay::new(&outbox.collections);
    outbox.insert([record("a1", "a")]).await;
    peer.take(&["a1"]).await;
    let leaser = Leaser::new(
        outbox.collections.clone(),
        OwnerId::new(InstanceId::fresh()),
        Duration::from_secs(60),
    );

    let wanted = LeaseRequest::touched(versions(&outbox.collections, &["a1"]).await);
    let grant = leaser.lease(LeaseId::fresh(), &wanted).await.unwrap();

    assert!(grant.held.is_empty());
    assert_eq!(outbox.record("a1").await.get_i32("attempt").unwrap(), 1);
    peer.take_over("a1").await;
    assert_eq!(outbox.record("a1").await.get_i32("attempt").unwrap(), 2);
}

/// The server has leased, and the answer is lost: the same id is sent again.
#[fixture::test]
async fn a_lease_whose_answer_was_lost_counts_once_and_is_complete() {
    let outbox = TestOutbox::restricted().await;
    let (proxy, collections) = outbox.behind_proxy().await;
    outbox.insert([record("a1", "a"), record("a2", "a"), record("a3", "a")]).await;
    let wanted = versions(&outbox.collections, &["a1", "a2", "a3"]).await;
    outbox
        .records()
        .update_one(doc! { "_id": "a3" }, doc! { "$set": { "attempt": 4 } })
        .await
        .unwrap();
    let leaser = Leaser::new(
        collections.clone(),
        OwnerId::new(InstanceId::fresh()),
        Duration::from_secs(60),
    );
    proxy.lose_answers_to("leaseOwner", 1);

    let lease = LeaseId::fresh();
    let grant = leaser.lease(lease, &LeaseRequest::touched(wanted.clone())).await.unwrap();

    assert_eq!(proxy.caught(), 1);
    assert_eq!(grant.held.len(), 3);
    assert_eq!(outbox.count(doc! { "leaseId": lease, "attempt": 1 }).await, 2);
    assert_eq!(outbox.count(doc! { "leaseId": lease, "attempt": 5 }).await, 1);
}

/// Both answers to a lease are lost: the lease is on the records, and no attempt was made.
#[fixture::test]
async fn a_lease_without_any_answer_is_released_without_an_attempt() {
    let outbox = TestOutbox::restricted().await;
    let (proxy, collections) = outbox.behind_proxy().await;
    let sink = TestSink::default();
    outbox.insert([record("a1", "a"), record("a2", "a"), record("b1", "b")]).await;
    // Counted, and left to their lease, they would be dead without a publish.
    let settings = Settings { max_attempts: 1, lease: Duration::from_secs(3), ..settings() };
    proxy.lose_answers_to("leaseOwner", 2);

    let relay = start(&collections, sink.clone(), settings);
    outbox.until_count(doc! { "status": "done", "attempt": 1 }, 3).await;

    assert_eq!(proxy.caught(), 2);
    assert_eq!(sink.ids().len(), 3, "{:?}", sink.ids());
    relay.stop().await;
}

/// A lane that waits for the death of its head must learn that it was written after all.
#[fixture::test]
async fn a_settlement_whose_answer_was_lost_is_confirmed_by_a_read() {
    let outbox = TestOutbox::restricted().await;
    let (proxy, collections) = outbox.behind_proxy().await;
    let peer = RivalRelay::new(&outbox.collections);
    let settlements = Settlements::new(collections.clone(), false);
    for (number, outcome) in (0..).zip(outcomes()) {
        let id = format!("a{number}");
        outbox.insert([record(&id, "a")]).await;
        let lease = peer.take(&[&id]).await;
        let batch = [Settlement { id: RecordId::String(id), lease, attempt: 1, outcome }];
        proxy.lose_answers_to("leaseOwner", 1);

        settlements.write(&batch).await.expect_err("the answer was lost");
        let lost = settlements.write(&batch).await.unwrap();

        assert_eq!(proxy.caught(), number + 1);
        assert!(lost.is_empty(), "{batch:?}");
    }
}

#[fixture::test]
async fn a_settlement_of_a_lost_lease_changes_nothing() {
    let outbox = TestOutbox::restricted().await;
    let peer = RivalRelay::new(&outbox.collections);
    let settlements = Settlements::new(outbox.collections.clone(), false);
    for (number, outcome) in (0..).zip(outcomes()) {
        let id = format!("a{number}");
        outbox.insert([record(&id, "a")]).await;
        let ours = peer.take(&[&id]).await;
        peer.take_over(&id).await;
        let before = outbox.record(id.as_str()).await;
        let id_of = RecordId::String(id.clone());
        let batch = [Settlement { id: id_of, lease: ours, attempt: 1, outcome }];

        let lost = settlements.write(&batch).await.unwrap().lost;

        assert_eq!(lost.len(), 1, "{batch:?}");
        assert_eq!(outbox.record(id).await, before);
    }
}

#[fixture::test]
async fn no_publish_starts_after_the_lease_has_ended() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert([record("a1", "a"), record("a2", "a")]).await;
    let short = Settings { lease: Duration::from_secs(1), ..settings() };
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), short).await;
    let lanes = harness.acquire(harness.scan().await).await;
    assert_eq!(lanes.len(), 1);
    let ended = doc! { "leaseId": { "$ne": null }, "$expr": { "$lt": ["$leaseUntil", "$$NOW"] } };
    outbox.until_count(ended, 2).await;

    let ends = harness.deliver(lanes).await;

    assert_eq!(ends, [LaneEnd::Interrupted]);
    assert!(sink.ids().is_empty(), "{:?}", sink.ids());
    outbox.until_count(doc! { "leaseId": null, "attempt": 0, "status": "pending" }, 2).await;
}

/// The time of the command counts towards the lease.
#[fixture::test]
async fn the_budget_counts_from_before_the_lease_command() {
    let outbox = TestOutbox::restricted().await;
    let sink = TestSink::default();
    outbox.insert([record("a1", "a")]).await;
    let short = Settings { lease: Duration::from_secs(1), ..settings() };
    let harness = RelayHarness::new(&outbox.collections, sink.clone(), short.clone()).await;
    let seen = harness.scan().await;
    let mut session = outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let touch = doc! { "$set": { "xTouched": true } };
    outbox.records().update_one(doc! { "_id": "a1" }, touch).session(&mut session).await.unwrap();

    let since = std::time::Instant::now();
    let leasing = harness.acquire(seen);
    let holding_up = async {
        // On a busy machine the command may be sent a moment after `since`.
        eventually("a lease's length", || async { since.elapsed() > short.lease * 3 }).await;
        session.abort_transaction().await.unwrap();
    };
    let (lanes, ()) = tokio::join!(leasing, holding_up);

    assert_eq!(lanes.len(), 1, "the command succeeded in the end");
    assert_eq!(harness.deliver(lanes).await, [LaneEnd::Interrupted]);
    assert!(sink.ids().is_empty(), "{:?}", sink.ids());
}

/// The record looks like our own outcome, except for the peer's counted attempt.
#[fixture::test]
async fn a_peers_equal_settlement_is_not_taken_for_ours() {
    let outbox = TestOutbox::restricted().await;
    let peer = RivalRelay::new(&outbox.collections);
    let settlements = Settlements::new(outbox.collections.clone(), false);
    for (number, outcome) in (0..).zip(outcomes()) {
        let id = format!("a{number}");
        outbox.insert([record(&id, "a")]).await;
        let ours = peer.take(&[&id]).await;
        let theirs = peer.take_over(&id).await;
        peer.settle(theirs, &id, outcome.clone()).await;
        let id_of = RecordId::String(id.clone());
        let batch = [Settlement { id: id_of, lease: ours, attempt: 1, outcome }];

        let lost = settlements.write(&batch).await.unwrap().lost;

        assert_eq!(lost.len(), 1, "{batch:?}");
    }
}
