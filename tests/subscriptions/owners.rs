//! Who copies: one owner at a time, with at most `max_pending` records.

use std::time::Duration;

use bson::doc;

use crate::api::Api;
use crate::feed::TestFeed;
use crate::support::outbox::eventually;
use crate::support::process::Signal;
use crate::support::queue::mongo_settings;
use crate::util::{TestSubscriptions, assert_once_in_order, copies, push};

#[fixture::test]
async fn next_owner_continues_where_a_stopped_one_ended() {
    let all = TestSubscriptions::new().await;
    all.create(&push("everything", 1_000)).await;
    let first = all.push();
    all.append("order", &["1", "2"], "a").await;
    all.until_position("everything", 2).await;
    let second = all.push_elsewhere();

    let owner = all.subscriptions.get("everything").await.unwrap().owner;
    all.append("order", &["1", "2"], "b").await;
    all.until_position("everything", 4).await;
    assert_eq!(all.subscriptions.get("everything").await.unwrap().owner, owner);
    first.stop().await;
    all.append("order", &["1", "2"], "c").await;

    all.until_position("everything", 6).await;
    assert_ne!(all.subscriptions.get("everything").await.unwrap().owner, owner);
    assert_once_in_order(&all.copies("everything").await, 1..=6);
    second.stop().await;
    all.stop().await;
}

/// The limit holds across a change of the owner, whatever is settled in between.
#[fixture::test]
async fn at_most_max_pending_records_wait() {
    let all = TestSubscriptions::new().await;
    for number in 0..30 {
        all.test.append("order", &(number % 4).to_string(), &number.to_string(), 1).await;
    }
    all.test.until(30).await;
    all.create(&push("slow", 5)).await;
    let mut pusher = all.push();
    let mut done = 0;

    while done < 30 {
        let expected = 5.min(30 - done);
        let waiting = || async { all.pending("slow").await >= expected.min(3) };
        eventually("waiting records", waiting).await;
        let pending = all.pending("slow").await;
        assert!(pending <= 5, "{pending} wait");
        if done % 4 == 0 {
            // Another owner, which knows nothing of what was copied.
            pusher.stop().await;
            pusher = all.push_elsewhere();
            tokio::time::sleep(Duration::from_millis(300)).await;
            let pending = all.pending("slow").await;
            assert!(pending <= 5, "{pending} wait after a change of the owner");
        }
        let one = doc! { "headers.subscription": "slow", "status": "pending" };
        let settle = doc! { "$set": { "status": "done", "doneAt": bson::DateTime::now() } };
        all.test.outbox.records().update_one(one, settle).await.unwrap();
        done += 1;
    }

    all.until_position("slow", 30).await;
    assert_once_in_order(&all.copies("slow").await, 1..=30);
    pusher.stop().await;
    all.stop().await;
}

/// Another daemon owns the subscription and has copied nothing yet, when a page that was read before is sent.
#[fixture::test]
async fn owner_of_an_earlier_epoch_copies_nothing() {
    let far = bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() + 3_600_000);
    let other = doc! { "epoch": 100_i64, "owner": "another", "ownedUntil": far };

    page_is_not_copied_after(async |all| all.set("everything", other).await).await;
}

#[fixture::test]
async fn page_read_before_a_pause_is_not_copied() {
    page_is_not_copied_after(async |all| {
        all.subscriptions.pause("everything").await.unwrap();
    })
    .await;
}

/// Changes a subscription while its owner has read a page, and has not sent its transaction yet.
async fn page_is_not_copied_after(change: impl AsyncFnOnce(&TestSubscriptions)) {
    let all = TestSubscriptions::new().await;
    let settings = mongo_settings(&all.test.outbox.database);
    let settings = crate::api::with(settings, &["events.enabled=true", "feed.enabled=true"]);
    let slow = Api::begin(&settings, "subscriptions::before_copy=1*sleep(4000)").await;
    slow.until_open().await;
    all.create(&push("everything", 1_000)).await;
    let owned = async || all.subscriptions.get("everything").await.unwrap().owner.is_some();
    eventually("an owner", owned).await;
    all.append("order", &["1", "2"], "a").await;
    // It reads the page within this time, and does not send it.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(all.position("everything").await, 0);

    change(&all).await;

    // It has had its turn when the time of the fail point is over.
    tokio::time::sleep(Duration::from_millis(4_000)).await;
    all.create(&push("other", 1_000)).await;
    all.until_position("other", 2).await;
    assert_eq!(all.copies("everything").await.len(), 0);
    assert_eq!(all.position("everything").await, 0);
    slow.stop().await;
    all.stop().await;
}

/// It has read a page when it is suspended, and sends its transaction when it wakes up.
#[fixture::test]
async fn suspended_owner_that_wakes_copies_nothing() {
    let test = TestFeed::new().await;
    let settings = mongo_settings(&test.outbox.database);
    let settings = crate::api::with(settings, &["events.enabled=true", "feed.enabled=true"]);
    // (The passage of the first page, of which the test decides the time.)
    let first = Api::begin(&settings, "subscriptions::before_copy=1*sleep(3000)").await;
    first.until_open().await;
    let exists = async || matches!(test.feed.state().await, Ok(Some(_)));
    eventually("the feed", exists).await;
    let subscriptions = postrider::events::subscriptions::Subscriptions::new(
        test.store.context(),
        test.feed.clone(),
    );
    subscriptions.create(&push("everything", 1_000)).await.unwrap();
    let owner = async || subscriptions.get("everything").await.unwrap().owner;
    eventually("an owner", || async { owner().await.is_some() }).await;
    let suspended = owner().await;
    test.append("order", "1", "a", 2).await;
    let head = async || test.feed.state().await.unwrap().unwrap().head;
    eventually("the positions", || async { head().await == 2 }).await;
    tokio::time::sleep(Duration::from_millis(1_000)).await;
    first.postrider.signal(Signal::STOP);
    assert_eq!(subscriptions.get("everything").await.unwrap().position, 0, "it was too late");
    let second = Api::begin(&settings, "").await;

    eventually("another owner", || async { owner().await.is_some() && owner().await != suspended })
        .await;
    let done = || async { subscriptions.get("everything").await.unwrap().position == 2 };
    eventually("the copies", done).await;
    first.postrider.signal(Signal::CONT);
    first.postrider.until_ready().await;
    test.append("order", "1", "b", 2).await;
    let done = || async { subscriptions.get("everything").await.unwrap().position == 4 };
    eventually("the next copies", done).await;
    // The suspended one has had its turn: it is an owner of another subscription now.
    subscriptions.create(&push("other", 1_000)).await.unwrap();
    let done = || async { subscriptions.get("other").await.unwrap().position == 4 };
    eventually("the copies of another subscription", done).await;

    assert_once_in_order(&copies(&test.outbox, "everything").await, 1..=4);
    first.stop().await;
    second.stop().await;
}
