//! Proves the check of the feed in a real history: each seeded fault is in the verdict. What the checker
//! itself catches is proved in `tests/feed/checker_proofs.rs`.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::Collection;

use crate::checker::FeedFault;
use crate::history::{History, Servers};
use crate::plan::{Kind, Plan};
use crate::support::outbox::eventually;
use crate::verdict::Verdict;

/// A history of one process without faults, and its verdict after this change of its appends.
async fn changed(change: impl AsyncFnOnce(&Collection<Document>)) -> Verdict {
    let mut plan = Plan::of(2, Duration::from_secs(3), true);
    plan.faults.clear();
    let setup = &mut plan.setup;
    (setup.kind, setup.instances, setup.blocks, setup.producers) = (Kind::RabbitMq, 1, false, 0);
    let options = &mut setup.mixed_options;
    (options.calm, options.appenders, options.feed) = (false, 2, true);
    options.sick.clear();
    options.dead_letters = None;
    let history = History::begin(plan, Servers::default()).await;
    let acknowledged = history.happen().await;
    let database = history.outbox.client.database(&history.outbox.database);
    let streams = database.collection::<Document>("legacy_event_stream");
    let first = doc! { "_id": "0/1", "position": { "$gt": 0 } };
    eventually("a position", async || streams.count_documents(first.clone()).await.unwrap() == 1)
        .await;
    change(&streams).await;
    history.end(&acknowledged, Duration::from_secs(5)).await
}

#[fixture::test]
async fn a_seeded_position_of_two_events_is_caught() {
    let verdict = changed(async |streams| {
        let first = streams.find_one(doc! { "_id": "0/1" }).await.unwrap().unwrap();
        let mut second = first.clone();
        second.extend(doc! { "_id": "other/1", "aggregateId": "other" });
        streams.insert_one(second).await.unwrap();
    })
    .await;

    assert!(verdict.word().starts_with("broken:feed="), "{verdict}");
    let is_caught = |fault: &FeedFault| matches!(fault, FeedFault::Shared { .. });
    assert!(verdict.feed.iter().any(is_caught), "{verdict}");
}

#[fixture::test]
async fn a_seeded_change_of_a_position_is_caught() {
    let verdict = changed(async |streams| {
        // It gets another one.
        let unset = doc! { "$unset": { "position": "" } };
        streams.update_one(doc! { "_id": "0/1" }, unset).await.unwrap();
    })
    .await;

    assert!(verdict.word().starts_with("broken:feed="), "{verdict}");
    let is_caught = |fault: &FeedFault| matches!(fault, FeedFault::Hole { .. });
    assert!(verdict.feed.iter().any(is_caught), "{verdict}");
}

#[fixture::test]
async fn a_feed_without_a_seeded_fault_is_accepted() {
    let verdict = changed(async |_| {}).await;

    assert_eq!(verdict.feed, []);
    assert!(verdict.is_good(), "{verdict}");
}
