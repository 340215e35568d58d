//! Requeue and discard while relays deliver and producers insert: nothing is lost, and no record of
//! a key overtakes another, except requeued ones.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;

use postrider::outbox::redrive::{Redrive, RedriveFilter, RedriveStatus, Redriver};
use postrider::outbox::undecoded::RawId;
use postrider::relay::settings::{OnDead, Settings};
use postrider::sink::PublishFailure;

use crate::support::history::{arrivals, judge, read_back};
use crate::support::outbox::{TestOutbox, record};
use crate::support::producers::Producers;
use crate::support::relay::{settings, start};
use crate::support::sink::{Fault, TestSink};

const PRODUCERS: usize = 4;

/// Refuses each of these records some times before it accepts it.
fn refuse(sink: &TestSink, each: usize) -> HashSet<String> {
    let mut refused = HashSet::new();
    for (number, key) in Producers::keys(PRODUCERS).enumerate() {
        // Some of the transactions of a key (each third of its producer's).
        for n in (number % 3..120).step_by(3).skip(number % 4).step_by(4) {
            let id = format!("{key}/{n:06}.0");
            sink.script(&id, vec![Fault::Answer(PublishFailure::Rejected); each]);
            refused.insert(id);
        }
    }
    refused
}

/// Requeues all dead records, until it is stopped.
fn requeue_all(outbox: &TestOutbox, stop: &Arc<AtomicBool>) -> tokio::task::JoinHandle<u64> {
    let (redriver, stop) = (Redriver::new(outbox.collections.clone()), stop.clone());
    tokio::spawn(async move {
        let mut requeued = 0;
        while !stop.load(Ordering::Relaxed) {
            requeued += redriver
                .redrive_matching(Redrive::Requeue, &RedriveFilter::default())
                .await
                .unwrap()
                .changed;
            tokio::task::yield_now().await;
        }
        requeued
    })
}

/// Runs two relays and producers, and requeues dead records, until all is done; returns the ids
/// that were committed, and how often one was requeued.
async fn deliver_all(
    outbox: &TestOutbox,
    sink: &TestSink,
    settings: impl Fn() -> Settings,
) -> (Vec<String>, u64) {
    let relays = [0, 1].map(|_| start(&outbox.collections, sink.clone(), settings()));
    let stop = Arc::new(AtomicBool::new(false));
    let requeuing = requeue_all(outbox, &stop);

    let producers = Producers::start(outbox, PRODUCERS);
    producers.until_more(400).await;
    let committed = producers.stop().await;

    outbox.until_count(doc! { "status": "done" }, committed.len() as u64).await;
    stop.store(true, Ordering::Relaxed);
    let requeued = requeuing.await.unwrap();
    for relay in relays {
        relay.stop().await;
    }
    (committed, requeued)
}

#[fixture::test]
async fn a_blocked_key_continues_in_order_after_requeues() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let refused = refuse(&sink, 2);
    let blocking = || Settings { on_dead: OnDead::Block, ..settings() };

    let (committed, requeued) = deliver_all(&outbox, &sink, blocking).await;

    let blocked = committed.iter().filter(|id| refused.contains(*id)).count() as u64;
    assert!(blocked > 20, "{blocked}");
    assert_eq!(requeued, blocked * 2, "each died twice");
    // None is exempt: with `block` no record of a key goes before its dead one.
    judge(&read_back(&outbox.collections).await, &arrivals(&sink.arrived())).assert_kept();
}

#[fixture::test]
async fn only_requeued_records_are_late_when_dead_ones_are_skipped() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let refused = refuse(&sink, 1);

    let (_, requeued) = deliver_all(&outbox, &sink, settings).await;

    assert!(requeued > 20, "{requeued}");
    let mut records = read_back(&outbox.collections).await;
    for record in &mut records {
        record.exempt = refused.contains(&record.id);
    }
    judge(&records, &arrivals(&sink.arrived())).assert_kept();
}

#[fixture::test]
async fn discarded_records_never_arrive_and_arrived_ones_stay() {
    let outbox = TestOutbox::new().await;
    let sink = TestSink::default();
    let relays = [0, 1].map(|_| start(&outbox.collections, sink.clone(), settings()));
    let redriver = Redriver::new(outbox.collections.clone());
    let producers = Producers::start(&outbox, PRODUCERS);
    let backlog = 3_000;
    outbox.insert((0..backlog).map(|n| record(&format!("{n:05}"), &format!("b{}", n % 5)))).await;

    let mut discarded = HashSet::new();
    while discarded.len() < 100 {
        // Many of them are leased, or delivered, by the time that their turn comes.
        let free = doc! { "status": "pending", "leaseId": null };
        let records = outbox.records();
        let find = records.find(free).limit(20).projection(doc! { "_id": 1 });
        let found: Vec<Document> = find.await.unwrap().try_collect().await.unwrap();
        for record in found {
            let id = record.get_str("_id").unwrap().to_owned();
            let ids = [RawId::from(&Bson::String(id.clone()))];
            if redriver.redrive(Redrive::Discard, &ids).await.unwrap().is_ok() {
                discarded.insert(id);
            }
        }
    }
    let committed = producers.stop().await;

    let left = (committed.len() + backlog - discarded.len()) as u64;
    outbox.until_count(doc! { "status": "done" }, left).await;
    let arrived = sink.arrived();
    judge(&read_back(&outbox.collections).await, &arrivals(&arrived)).assert_kept();
    assert!(arrived.iter().all(|message| !discarded.contains(&message.id)));
    let nothing =
        RedriveFilter { status: Some(RedriveStatus::Pending), ..RedriveFilter::default() };
    assert_eq!(redriver.count_matching(&nothing).await.unwrap(), 0);
    for relay in relays {
        relay.stop().await;
    }
}
