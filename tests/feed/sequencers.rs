//! Several sequencers: rivals, suspended ones, killed ones, and those of a replica set that rolls back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use futures_util::future::join_all;
use mongodb::options::{CollectionOptions, ReadConcern};
use postrider::events::feed::FeedConfig;
use postrider::events::{AppendError, EventStore};
use tokio::task::JoinSet;

use crate::readers::RecordingReader;
use crate::support::fault_proxy::ProxyFault;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Postrider, run_with};
use crate::support::queue::mongo_settings;
use crate::support::replica_set::ReplicaSet;
use crate::util::{TestFeed, another, append, lines, sequence, sequence_with};

/// Each process that asks gets the right to assign positions, while another one assigns.
#[fixture::test]
async fn rivals_assign_no_position_twice() {
    let test = TestFeed::new().await;
    let (other_store, other) = another(&test.outbox, test.outbox.admin.client().clone());
    let readers = RecordingReader::start_all(&test.feed, 2);
    let running = [sequence(&test.feed), sequence(&other)];
    test.append("order", "first", "a", 1).await;
    test.until(1).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let (state, ends) = (test.state(), is_over.clone());
    let freeing = tokio::spawn(async move {
        let mut owners = std::collections::BTreeSet::new();
        while !ends.load(Ordering::Relaxed) {
            let free = doc! { "$set": { "owner": "none" }, "$unset": { "ownedUntil": "" } };
            // A conflict with a transaction.
            let before = state.find_one_and_update(doc! {}, free).await;
            if let Ok(Some(before)) = before {
                owners.insert(before.get_str("owner").unwrap_or_default().to_owned());
            }
        }
        owners
    });

    let both = [&test.store, &other_store];
    let appends = (0..8).map(|client| async move {
        for number in 0..60 {
            let (name, id) = (["order", "customer"][number % 2], (client % 3).to_string());
            let request = format!("{client}-{number}");
            both[client % 2].append(append(name, &id, &request, 1 + number % 3)).await.unwrap();
        }
    });
    join_all(appends).await;
    is_over.store(true, Ordering::Relaxed);

    let owners = freeing.await.unwrap();
    assert!(owners.len() >= 3, "both were owners: {owners:?}");
    test.check(readers).await;
    for running in running {
        running.stop().await;
    }
}

/// An owner is suspended when it has sent this, or when it is being answered.
async fn suspended(text: &str, is_at_answer: bool) {
    let test = TestFeed::new().await;
    let (proxy, first_feed) = test.behind_proxy().await;
    let first = sequence(&first_feed);
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    let readers = RecordingReader::start_all(&test.feed, 2);

    if is_at_answer {
        proxy.on_answer_to(text, ProxyFault::Freeze);
    } else {
        proxy.on_request(text, ProxyFault::Freeze);
    }
    test.append("order", "1", "b", 2).await;
    test.append("customer", "1", "b", 2).await;
    eventually("the suspension", async || proxy.has_caught()).await;
    let began = Instant::now();
    let (_, second_feed) = another(&test.outbox, test.outbox.admin.client().clone());
    let second = sequence(&second_feed);
    test.append("order", "1", "c", 1).await;
    // The lease ends; the transaction that is open would stay so for a minute.
    test.until(6).await;
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
    proxy.thaw();
    let both = (0..40).map(|number| {
        let request = format!("later-{number}");
        let test = &test;
        async move { test.append("order", "1", &request, 1).await }
    });
    join_all(both).await;

    test.check(readers).await;
    second.stop().await;
    // It continues.
    test.append("order", "1", "d", 1).await;
    test.until(47).await;
    first.stop().await;
}

#[fixture::test]
async fn suspended_sequencer_assigns_no_position_when_it_continues() {
    tokio::join!(
        suspended("startTransaction", false),
        suspended("startTransaction", true),
        suspended("commitTransaction", false),
        suspended("commitTransaction", true),
    );
}

/// Another process has assigned what it was about to assign, and has left again.
#[fixture::test]
async fn suspended_sequencer_that_is_owner_again_assigns_nothing_twice() {
    let test = TestFeed::new().await;
    let (proxy, feed) = test.behind_proxy().await;
    let first = sequence(&feed);
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    let readers = RecordingReader::start_all(&test.feed, 1);
    proxy.on_request("startTransaction", ProxyFault::Freeze);
    test.append("order", "1", "b", 1).await;
    test.append("order", "2", "b", 1).await;
    eventually("the suspension", async || proxy.has_caught()).await;

    test.state().update_one(doc! {}, doc! { "$unset": { "ownedUntil": "" } }).await.unwrap();
    let (_, other) = another(&test.outbox, test.outbox.admin.client().clone());
    let second = sequence(&other);
    test.until(3).await;
    second.stop().await;
    proxy.thaw();

    test.append("order", "1", "c", 1).await;
    test.append("order", "2", "c", 1).await;
    test.until(5).await;
    test.check(readers).await;
    first.stop().await;
}

/// An operator, or a restore, has moved it.
#[fixture::test]
async fn head_that_was_moved_is_not_moved_back() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.until(1).await;

    test.state().update_one(doc! {}, doc! { "$inc": { "head": 10_i64 } }).await.unwrap();
    test.append("order", "1", "b", 1).await;

    let events = test.until(12).await;
    assert_eq!(lines(&events), ["1 order/1@1#0", "12 order/1@2#0"]);
    running.stop().await;
}

/// All positions are removed, for a new feed: what the sequencer knows of streams is wrong.
#[fixture::test]
async fn feed_that_begins_again_has_all_events() {
    let test = TestFeed::new().await;
    let audits = FeedConfig { audit_interval: Duration::from_secs(1), ..FeedConfig::default() };
    let running = sequence_with(&test.feed, audits);
    for number in 0..5 {
        test.append("order", "1", &number.to_string(), 1).await;
    }
    test.until(5).await;

    let begun = doc! { "$set": { "feed": "begun again", "head": 0_i64 } };
    test.state().update_one(doc! {}, begun).await.unwrap();
    let unset = doc! { "$unset": { "position": "" } };
    test.streams("order").update_many(doc! {}, unset).await.unwrap();

    test.append("order", "2", "a", 1).await;
    test.check(Vec::new()).await;
    running.stop().await;
}

fn daemon(test: &TestFeed, fail_points: &str) -> Postrider {
    let own = ["relay.enabled=false", "api.enabled=true", "feed.enabled=true"];
    let settings: Vec<String> = own.iter().map(|setting| (*setting).to_owned()).collect();
    let mut command = run_with(&[mongo_settings(&test.outbox.database), settings].concat());
    command.env("FAILPOINTS", fail_points);
    Postrider::of(command)
}

/// A process dies before or after a commit; the next one continues, when the lease has ended.
async fn killed(place: &str) {
    let test = TestFeed::new().await;
    // At the second batch.
    let mut first = daemon(&test, &format!("{place}=1*off->return"));
    let readers = RecordingReader::start_all(&test.feed, 2);
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    test.append("order", "1", "b", 2).await;
    first.until_ended(Duration::from_secs(20)).await;
    let lock = doc! { "$set": { "locked": true } };
    let state = test.state();
    let locked = state.find_one_and_update(doc! {}, lock).max_time(Duration::from_secs(1));
    let is_open = locked.await.is_err();
    assert_eq!(is_open, place == "feed::before_commit", "whether its transaction is open");
    let began = Instant::now();

    let mut second = daemon(&test, "");
    test.append("order", "1", "c", 1).await;
    test.until(4).await;

    let took = began.elapsed();
    assert!(took < Duration::from_secs(40), "{place}: the next owner waited {took:?}");
    test.check(readers).await;
    second.stop().await;
}

#[fixture::test]
async fn killed_sequencer_leaves_no_gap() {
    tokio::join!(killed("feed::before_commit"), killed("feed::after_commit"));
}

async fn until_appended(store: &EventStore, id: &str, request: &str) {
    loop {
        match store.append(append("order", id, request, 2)).await {
            Ok(_) => return,
            Err(AppendError::Unavailable(_) | AppendError::Unknown(_)) => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[fixture::test]
async fn positions_survive_a_rollback_and_elections() {
    let mut set = ReplicaSet::start().await;
    let test = TestFeed::on(TestOutbox::at(&set.uri()).await);
    let (_, other) = another(&test.outbox, test.outbox.client.clone());
    let running = [sequence(&test.feed), sequence(&other)];
    let readers = RecordingReader::start_all(&test.feed, 3);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let (store, stopped) = (test.store.clone(), stopped.clone());
        writers.spawn(async move {
            for number in 0.. {
                if *stopped.borrow() {
                    return;
                }
                until_appended(&store, &(writer / 2).to_string(), &format!("{writer}-{number}"))
                    .await;
            }
        });
    }
    test.until(50).await;
    let old = set.primary().await;
    let head_on_old = async |concern: ReadConcern| {
        let options = CollectionOptions::builder().read_concern(concern).build();
        let database = set.direct(old).database(&test.outbox.database);
        let state = database.collection_with_options::<Document>("postrider_feed", options);
        let found = state.find_one(doc! {}).await.unwrap().unwrap();
        found.get("head").and_then(Bson::as_i64).unwrap()
    };

    let rollback_id = set.rollback_id(old).await;
    for member in set.secondaries().await {
        set.stop_replication(member).await;
    }
    eventually("a head that is rolled back", async || {
        head_on_old(ReadConcern::local()).await > head_on_old(ReadConcern::majority()).await
    })
    .await;
    // Readers must not see it. Each reads several times.
    let reads = set.commands(old, "find").await;
    eventually("reads", async || set.commands(old, "find").await > reads + 60).await;
    set.kill(old);
    for member in (0..3).filter(|member| *member != old) {
        set.restart_replication(member).await;
    }
    set.primary_other_than(old).await;
    set.restart(old).await;
    eventually("the old primary has rolled back", async || {
        set.rollback_id(old).await > rollback_id
    })
    .await;
    for _ in 0..3 {
        set.step_down().await;
        let head = test.feed.state().await.map_or(0, |state| state.unwrap().head);
        test.feed.wait_beyond(head).await;
    }
    stop.send(true).unwrap();
    while let Some(ended) = writers.join_next().await {
        ended.unwrap();
    }

    test.check(readers).await;
    for running in running {
        running.stop().await;
    }
}
