//! What push subscriptions copy.

use std::collections::HashSet;

use bson::doc;
use futures_util::future::join_all;
use postrider::events::subscriptions::{SubscriptionError, SubscriptionState};

use crate::support::outbox::{eventually, record};
use crate::support::process::Postrider;
use crate::support::queue::stdout_settings;
use crate::util::{TestSubscriptions, assert_once_in_order, of, positions, push};

#[fixture::test]
async fn matching_events_are_copied_once_in_each_replay() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    all.append("customer", &["1"], "a").await;
    all.append("order", &["1"], "b").await;
    all.create(&of(push("billing", 1_000), &["order"])).await;
    let pusher = all.push();

    all.until_position("billing", 4).await;

    let copies = all.copies("billing").await;
    assert_once_in_order(&copies, [1, 2, 4].into_iter());
    let first = &copies[0];
    assert_eq!(first.get_str("key").unwrap(), "billing/1");
    assert_eq!(first.get_str("destination").unwrap(), "copies");
    assert_eq!(first.get_str("type").unwrap(), "E0");
    assert_eq!(first.get_document("payload").unwrap(), &doc! { "n": 1 });
    let headers = first.get_document("headers").unwrap();
    assert_eq!(headers.get_str("aggregate-name").unwrap(), "order");
    assert_eq!(headers.get_str("aggregate-id").unwrap(), "1");
    assert_eq!(headers.get_i32("aggregate-version").unwrap(), 1);
    assert_eq!(headers.get_i32("event-index").unwrap(), 0);
    assert_eq!(headers.get_i32("event-count").unwrap(), 1);
    assert_eq!(headers.get_str("subscription").unwrap(), "billing");
    assert_eq!(headers.get_str("request-id").unwrap(), "a");

    all.subscriptions.replay("billing", 1).await.unwrap();
    eventually("the replay", || async { all.copies("billing").await.len() == 5 }).await;
    all.until_position("billing", 4).await;
    let copies = all.copies("billing").await;
    assert_eq!(positions(&copies)[3..], [2, 4]);
    let ids: HashSet<String> =
        copies.iter().map(|copy| copy.get("_id").unwrap().to_string()).collect();
    assert_eq!(ids.len(), 5);
    pusher.stop().await;
    all.stop().await;
}

#[fixture::test]
async fn concurrent_appends_are_copied_once_in_order() {
    let all = TestSubscriptions::new().await;
    all.create(&push("everything", 1_000)).await;
    let pusher = all.push();

    let test = &all.test;
    let appends = (0..200).map(|n| async move {
        let (id, request) = ((n % 13).to_string(), n.to_string());
        test.append("order", &id, &request, 1 + n % 3).await;
    });
    join_all(appends).await;

    let total = (0..200).map(|n| 1 + n % 3).sum::<i64>();
    all.until_position("everything", total).await;
    let copies = all.copies("everything").await;
    assert_once_in_order(&copies, 1..=total);
    for copy in &copies {
        let headers = copy.get_document("headers").unwrap();
        let number: i64 = headers.get_str("request-id").unwrap().parse().unwrap();
        let count = headers.get_i32("event-count").unwrap();
        assert_eq!(i64::from(count), 1 + number % 3, "{copy}");
        assert!((0..count).contains(&headers.get_i32("event-index").unwrap()), "{copy}");
    }
    pusher.stop().await;
    all.stop().await;
}

/// A record that blocks the aggregate's live key.
#[fixture::test]
async fn blocked_live_records_delay_no_copy() {
    let all = TestSubscriptions::new().await;
    let later = bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() + 3_600_000);
    let mut blocker = record("blocker", "1");
    blocker.insert("visibleAt", later);
    all.test.outbox.insert([blocker]).await;
    all.create(&push("everything", 1_000)).await;
    let mut settings = stdout_settings(&all.test.outbox);
    settings.push("feed.enabled=true".into());
    settings.push("events.enabled=true".into());
    let mut postrider = Postrider::start(&settings);

    all.append("order", &["1"], "a").await;
    all.append("order", &["1"], "b").await;

    let delivered = doc! { "headers.subscription": "everything", "status": "done" };
    all.test.outbox.until_count(delivered, 2).await;
    assert_eq!(all.test.outbox.count(doc! { "key": "1", "status": "pending" }).await, 3);
    postrider
        .until_metric("postrider_subscription_up{subscription=\"everything\"}", |up| up == 1.0)
        .await;
    let lag = "postrider_subscription_lag_events{subscription=\"everything\"}";
    postrider.until_metric(lag, |lag| lag == 0.0).await;
    all.subscriptions.pause("everything").await.unwrap();
    all.append("order", &["2", "3"], "c").await;
    postrider.until_metric(lag, |lag| lag == 2.0).await;
    let seconds = "postrider_subscription_lag_seconds{subscription=\"everything\"}";
    postrider.until_metric(seconds, |lag| lag > 0.0).await;
    postrider.stop().await;
    all.stop().await;
}

#[fixture::test]
async fn paused_subscription_copies_nothing() {
    let all = TestSubscriptions::new().await;
    all.create(&push("everything", 1_000)).await;
    let pusher = all.push();
    all.append("order", &["1"], "a").await;
    all.until_position("everything", 1).await;

    let paused = all.subscriptions.pause("everything").await.unwrap();
    assert_eq!(paused.state, SubscriptionState::Paused);
    all.subscriptions.pause("everything").await.unwrap();
    all.append("order", &["1"], "b").await;
    all.create(&push("other", 1_000)).await;
    all.until_position("other", 2).await;
    assert_eq!(all.position("everything").await, 1);

    all.subscriptions.resume("everything").await.unwrap();
    all.until_position("everything", 2).await;
    assert_once_in_order(&all.copies("everything").await, 1..=2);
    pusher.stop().await;
    all.stop().await;
}

#[fixture::test]
async fn deleted_subscription_can_be_created_again() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    all.create(&push("everything", 1_000)).await;
    let pusher = all.push();
    all.until_position("everything", 2).await;

    all.subscriptions.delete("everything").await.unwrap();
    let gone = all.subscriptions.get("everything").await;
    assert!(matches!(gone, Err(SubscriptionError::Unknown(_))), "{gone:?}");
    all.create(&push("everything", 1_000)).await;

    // Its records have other ids than those of before.
    all.until_position("everything", 2).await;
    assert_eq!(positions(&all.copies("everything").await), [1, 2, 1, 2]);
    pusher.stop().await;
    all.stop().await;
}

#[fixture::test]
async fn renewed_feed_stops_a_push_until_it_is_replayed() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    all.create(&push("everything", 1_000)).await;
    let pusher = all.push();
    all.until_position("everything", 2).await;

    let renewed = all.test.feed.renew().await.unwrap();
    let state = async || all.subscriptions.get("everything").await.unwrap().state;
    eventually("wrong_feed", || async { state().await == SubscriptionState::WrongFeed }).await;
    all.append("order", &["1"], "b").await;
    let resumed = all.subscriptions.resume("everything").await;
    assert!(matches!(resumed, Err(SubscriptionError::WrongFeed { .. })), "{resumed:?}");
    assert_eq!(all.copies("everything").await.len(), 2);

    let replayed = all.subscriptions.replay("everything", 0).await.unwrap();
    assert_eq!((replayed.feed, replayed.error), (renewed.feed, None));
    all.until_position("everything", 3).await;
    assert_eq!(positions(&all.copies("everything").await), [1, 2, 1, 2, 3]);
    pusher.stop().await;
    all.stop().await;
}

/// MongoDB's validator refuses the record, until an operator changes that.
#[fixture::test]
async fn refused_record_is_reported_and_not_skipped() {
    let all = TestSubscriptions::new().await;
    let validator = |validator: bson::Document| {
        let command = doc! { "collMod": "outbox_records", "validator": validator };
        let database = all.test.outbox.client.database(&all.test.outbox.database);
        async move { database.run_command(command).await.unwrap() }
    };
    all.append("order", &["1"], "a").await;
    validator(doc! { "headers.subscription": { "$exists": false } }).await;
    all.create(&push("everything", 1_000)).await;
    let pusher = all.push();

    let error = async || all.subscriptions.get("everything").await.unwrap().error;
    eventually("the error", || async { error().await.is_some() }).await;
    assert!(error().await.unwrap().contains("rejects"), "{:?}", error().await);
    validator(doc! {}).await;

    all.until_position("everything", 1).await;
    assert_eq!(error().await, None);
    pusher.stop().await;
    all.stop().await;
}
