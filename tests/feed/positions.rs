//! Which positions appends get.

use bson::doc;
use futures_util::future::join_all;

use crate::support::outbox::eventually;
use crate::util::{TestFeed, another, append, lines, sequence, stored};

#[fixture::test]
async fn positions_are_consecutive_over_all_names() {
    let test = TestFeed::new().await;
    let running = test.sequence();

    test.append("order", "1", "a", 2).await;
    test.until(2).await;
    test.append("customer", "1", "a", 1).await;
    // Of two names there is no order; a new one is found first.
    test.until(3).await;
    test.append("order", "1", "b", 1).await;

    let events = test.until(4).await;
    assert_eq!(
        lines(&events),
        ["1 order/1@1#0", "2 order/1@1#1", "3 customer/1@1#0", "4 order/1@2#0"]
    );
    running.stop().await;
}

#[fixture::test]
async fn appends_from_before_the_feed_are_backfilled_by_time() {
    let test = TestFeed::new().await;
    test.append("order", "1", "a", 1).await;
    test.append("customer", "1", "a", 3).await;
    test.append("order", "2", "a", 1).await;

    let running = test.sequence();

    let events = test.until(5).await;
    assert_eq!(lines(&events)[0], "1 order/1@1#0");
    assert_eq!(lines(&events)[4], "5 order/2@1#0");
    running.stop().await;
}

/// Its appends are known by the change stream alone.
#[fixture::test]
async fn appends_of_other_processes_get_positions() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    let (store, _) = another(&test.outbox, test.outbox.admin.client().clone());

    for number in 0..20 {
        store.append(append("order", "1", &number.to_string(), 1)).await.unwrap();
    }

    let events = test.until(21).await;
    let versions: Vec<i64> = events.iter().map(|event| event.version).collect();
    assert_eq!(versions, (1..=21).collect::<Vec<_>>());
    running.stop().await;
}

#[fixture::test]
async fn concurrent_appends_get_each_position_once() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    let (_, other) = another(&test.outbox, test.outbox.admin.client().clone());
    let standby = sequence(&other);

    let shared = &test;
    let appends = (0..200).map(|n| async move {
        let (id, request) = ((n % 17).to_string(), n.to_string());
        shared.append("order", &id, &request, 1 + n % 3).await;
    });
    join_all(appends).await;

    let total = (0..200).map(|n| 1 + n % 3).sum::<usize>();
    let events = test.until(i64::try_from(total).unwrap()).await;
    let positions: Vec<i64> = events.iter().map(|event| event.position).collect();
    assert_eq!(positions, (1..=total as i64).collect::<Vec<_>>());
    for id in 0..17 {
        let of_one = events.iter().filter(|event| event.aggregate_id == id.to_string());
        let places: Vec<_> = of_one.map(|event| (event.version, event.index)).collect();
        assert!(places.is_sorted(), "{places:?}");
    }
    running.stop().await;
    standby.stop().await;
}

#[fixture::test]
async fn stream_with_a_missing_version_stops_no_other() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "sound", "a", 1).await;
    test.until(1).await;

    for version in [1, 2, 4, 5] {
        test.insert("order", "gap", version, doc! {}).await;
    }
    test.append("order", "sound", "b", 1).await;

    let events = test.until(4).await;
    assert_eq!(events.iter().filter(|event| event.aggregate_id == "gap").count(), 2);
    assert_eq!(events.iter().filter(|event| event.aggregate_id == "sound").count(), 2);
    test.insert("order", "gap", 3, doc! {}).await;
    let events = test.until(7).await;
    let gap: Vec<i64> =
        events.iter().filter(|it| it.aggregate_id == "gap").map(|it| it.version).collect();
    assert_eq!(gap, [1, 2, 3, 4, 5]);
    running.stop().await;
}

/// The documents of two streams are deleted, while their owner runs. Of one of them version 4 is reported before
/// 1 to 3.
#[fixture::test]
async fn stream_that_begins_again_gets_positions_in_order() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    let ids = ["in-order", "late"];
    for id in ids {
        for request in ["a", "b", "c"] {
            test.append("order", id, request, 1).await;
        }
    }
    test.until(6).await;
    test.streams("order").delete_many(doc! {}).await.unwrap();

    test.insert("order", "late", 4, doc! {}).await;
    // (Reports come in the order of the commits.)
    test.insert("order", "other", 1, doc! {}).await;
    eventually("a position", async || {
        stored(&test, "order").await.contains(&("other".to_owned(), 1, Some(7)))
    })
    .await;
    for version in 1..=3 {
        test.insert("order", "late", version, doc! {}).await;
    }
    for version in 1..=4 {
        test.insert("order", "in-order", version, doc! {}).await;
    }

    let events = test.until(15).await;
    for id in ids {
        let of_one = events.iter().filter(|event| event.aggregate_id == id);
        let versions: Vec<i64> = of_one.map(|event| event.version).collect();
        assert_eq!(versions, [1, 2, 3, 4], "{id}: {:?}", lines(&events));
    }
    running.stop().await;
}

/// Its version is used again, while the owner still runs that gave it a position.
#[fixture::test]
async fn last_version_that_is_used_again_gets_a_position() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    for request in ["a", "b"] {
        test.append("order", "1", request, 1).await;
    }
    test.until(2).await;
    // (Another process: this one knows the version of what it has appended.)
    let (store, _) = another(&test.outbox, test.outbox.admin.client().clone());

    test.streams("order").delete_one(doc! { "version": 2 }).await.unwrap();
    store.append(append("order", "1", "c", 1)).await.unwrap();
    store.append(append("order", "1", "d", 1)).await.unwrap();

    let events = test.until(4).await;
    assert_eq!(lines(&events), ["1 order/1@1#0", "3 order/1@2#0", "4 order/1@3#0"]);
    running.stop().await;
}

/// A transaction that commits late is below no reader's position.
#[fixture::test]
async fn append_that_commits_late_is_behind_the_head() {
    let test = TestFeed::new().await;
    let running = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    let mut session = test.outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let late = crate::util::stream("order", "late", 1, doc! {});
    test.outbox
        .client
        .database(&test.outbox.database)
        .collection("order_event_stream")
        .insert_one(late)
        .session(&mut session)
        .await
        .unwrap();
    test.append("order", "1", "b", 1).await;
    test.until(2).await;

    session.commit_transaction().await.unwrap();

    let events = test.until(3).await;
    assert_eq!(lines(&events)[2], "3 order/late@1#0");
    running.stop().await;
}

#[fixture::test]
async fn next_owner_continues_where_a_stopped_one_ended() {
    let test = TestFeed::new().await;
    let first = test.sequence();
    test.append("order", "1", "a", 1).await;
    test.until(1).await;
    first.stop().await;
    test.append("order", "1", "b", 1).await;

    let (_, other) = another(&test.outbox, test.outbox.admin.client().clone());
    let second = sequence(&other);

    eventually("the next position", async || {
        stored(&test, "order").await[1] == ("1".to_owned(), 2, Some(2))
    })
    .await;
    second.stop().await;
}
