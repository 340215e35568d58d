//! Erasures and the pages that subscriptions have read.

use std::ops::Range;

use bson::{Document, doc};
use futures_util::future::{join, join_all};
use postrider::events::{
    Append, Erasure, ErasureState, EventStore, NewEvent, PendingRecords, StreamEnding,
};
use postrider::names::{AggregateId, AggregateName};

use crate::support::outbox::eventually;
use crate::util::{TestSubscriptions, is_page, of, positions, push};

async fn erase(store: &EventStore) -> Erasure {
    erase_one(store, "order", "1").await
}

async fn erase_one(store: &EventStore, name: &str, id: &str) -> Erasure {
    let (name, id) = (AggregateName::new(name).unwrap(), AggregateId::new(id).unwrap());
    let ending = StreamEnding::new("x", "the customer asked");
    store.erase(&name, &id, ending, PendingRecords::Discard).await.unwrap()
}

async fn append_secret(store: &EventStore) {
    append_secret_to(store, "order", "1").await;
}

async fn append_secret_to(store: &EventStore, name: &str, id: &str) {
    let (name, id) = (AggregateName::new(name).unwrap(), AggregateId::new(id).unwrap());
    let event = NewEvent::new("Placed", doc! { "who": "secret-of-ada" });
    store.append(Append::new(name, id, "a", vec![event])).await.unwrap();
}

async fn with_the_secret(all: &TestSubscriptions) -> u64 {
    all.test.outbox.count(doc! { "payload.who": "secret-of-ada" }).await
}

async fn epoch(all: &TestSubscriptions, name: &str) -> i64 {
    let database = all.test.outbox.client.database(&all.test.outbox.database);
    let subscriptions = database.collection::<Document>("postrider_subscriptions");
    let found = subscriptions.find_one(doc! { "_id": name }).await.unwrap().unwrap();
    found.get_i64("epoch").unwrap()
}

#[fixture::test]
async fn page_read_before_an_erasure_is_not_copied_after_it() {
    let all = TestSubscriptions::new().await;
    append_secret(&all.test.store).await;
    all.test.until(1).await;
    all.create(&push("everything", 1_000)).await;
    let (pusher, recorder) = all.push_recorded().await;
    let store = all.test.store.clone();
    recorder.after(is_page, async move || {
        let erased = erase(&store).await;
        assert_eq!(erased.state, ErasureState::Complete);
    });

    all.until_position("everything", 2).await;

    assert!(recorder.has_paused());
    assert_eq!(with_the_secret(&all).await, 0);
    // The owner that has read the page copies it: it reads it a second time, in the same epoch.
    assert_eq!(epoch(&all, "everything").await, 1);
    let copies = all.copies("everything").await;
    assert_eq!(positions(&copies), [1, 2]);
    assert_eq!(copies[0].get_document("payload").unwrap(), &doc! {});
    pusher.stop().await;
    all.stop().await;
}

/// Streams are erased before the owner begins, and while it copies.
#[fixture::test]
async fn erasures_stop_no_subscription() {
    const STREAMS: usize = 120;
    let all = TestSubscriptions::new().await;
    let store = &all.test.store;
    join_all((0..STREAMS).map(|id| async move {
        append_secret_to(store, "order", &id.to_string()).await;
    }))
    .await;
    all.test.until(STREAMS as i64).await;
    all.create(&of(push("orders", 20), &["order"])).await;
    let erase = async |ids: Range<usize>| {
        for id in ids {
            let id = id.to_string();
            // What the owner copies in the same moment is left to the next attempt.
            eventually("an erasure", async || {
                erase_one(store, "order", &id).await.state == ErasureState::Complete
            })
            .await;
            let key = format!("orders/{id}");
            let copied = doc! { "key": key, "payload.who": { "$exists": true } };
            assert_eq!(all.test.outbox.count(copied).await, 0, "{id}");
        }
    };
    // An epoch ends with its owner only. Without an owner the first attempt erases all.
    for id in 0..5 {
        let erased = erase_one(store, "order", &id.to_string()).await;
        assert_eq!(erased.state, ErasureState::Complete);
    }
    erase(0..5).await;
    assert_eq!(epoch(&all, "orders").await, 0);

    let pusher = all.push();
    let settle = async {
        let last = (STREAMS + 40) as i64;
        while all.position("orders").await < last {
            let done = doc! { "$set": { "status": "done", "doneAt": bson::DateTime::now() } };
            let waiting = doc! { "headers.subscription": "orders", "status": "pending" };
            all.test.outbox.records().update_many(waiting, done).await.unwrap();
        }
    };
    join(erase(5..40), settle).await;

    assert_eq!(epoch(&all, "orders").await, 1);
    assert!(all.subscriptions.get("orders").await.unwrap().owner.is_some());
    let copies = all.copies("orders").await;
    let mut ids: Vec<&str> = Vec::new();
    for copy in &copies {
        if copy.get_document("payload").unwrap().contains_key("who") {
            ids.push(copy.get_str("key").unwrap().strip_prefix("orders/").unwrap());
        }
    }
    ids.sort_unstable_by_key(|id| id.parse::<usize>().unwrap());
    assert_eq!(ids, (40..STREAMS).map(|id| id.to_string()).collect::<Vec<_>>());
    let mut positions = positions(&copies);
    positions.sort_unstable();
    assert!(positions.windows(2).all(|two| two[0] < two[1]), "{positions:?}");
    pusher.stop().await;
    all.stop().await;
}
