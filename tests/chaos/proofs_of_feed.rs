//! Proves the check of the feed in a real history: each seeded fault is in the verdict. What the checker
//! itself catches is proved in `tests/feed/checker_proofs.rs`; a history without a seeded fault is accepted
//! in [`crate::a_short_history_with_a_feed_keeps_the_promise`].

use std::time::Duration;

use bson::{Document, doc};

use crate::checker::FeedFault;
use crate::history::{History, Servers};
use crate::plan::{Kind, Plan};
use crate::support::outbox::eventually;

/// A history of one process, whose plan has no faults.
async fn quiet() -> History {
    let mut plan = Plan::of(2, Duration::from_secs(3), true);
    plan.faults.clear();
    let setup = &mut plan.setup;
    (setup.kind, setup.instances, setup.blocks, setup.producers) = (Kind::RabbitMq, 1, false, 0);
    let options = &mut setup.mixed_options;
    (options.calm, options.appenders, options.feed) = (false, 2, true);
    options.sick.clear();
    options.dead_letters = None;
    History::begin(plan, Servers::default()).await
}

#[fixture::test(long)]
async fn seeded_faults_of_positions_are_caught() {
    let history = quiet().await;
    let acknowledged = history.happen().await;
    let database = history.outbox.client.database(&history.outbox.database);
    let streams = database.collection::<Document>("legacy_event_stream");
    for id in ["0/1", "1/1"] {
        let placed = doc! { "_id": id, "position": { "$gt": 0 } };
        eventually("a position", async || {
            streams.count_documents(placed.clone()).await.unwrap() == 1
        })
        .await;
    }

    // Two events of one position.
    let mut second = streams.find_one(doc! { "_id": "0/1" }).await.unwrap().unwrap();
    second.extend(doc! { "_id": "other/1", "aggregateId": "other" });
    streams.insert_one(second).await.unwrap();
    // An event that gets another position.
    let unset = doc! { "$unset": { "position": "" } };
    streams.update_one(doc! { "_id": "1/1" }, unset).await.unwrap();
    let verdict = history.end(&acknowledged, Duration::from_secs(5)).await;

    assert!(verdict.word().starts_with("broken:feed="), "{verdict}");
    let is_shared = |fault: &FeedFault| matches!(fault, FeedFault::Shared { .. });
    assert!(verdict.feed.iter().any(is_shared), "{verdict}");
    let is_hole = |fault: &FeedFault| matches!(fault, FeedFault::Hole { .. });
    assert!(verdict.feed.iter().any(is_hole), "{verdict}");
}
