//! Who copies: one owner at a time, with at most `max_pending` records.

use std::time::Duration;

use bson::{Document, doc};
use mongodb::Database;

use crate::api::Api;
use crate::feed::TestFeed;
use crate::support::outbox::eventually;
use crate::support::process::Signal;
use crate::support::queue::mongo_settings;
use crate::util::{
    TestSubscriptions, assert_once_in_order, copies, is_page, push, until_transaction,
};

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

    page_is_not_copied_after(async move |database| set(&database, other).await).await;
}

#[fixture::test]
async fn page_read_before_a_pause_is_not_copied() {
    let paused = doc! { "state": "paused" };

    page_is_not_copied_after(async move |database| set(&database, paused).await).await;
}

/// As after a commit whose outcome its owner does not know.
#[fixture::test]
async fn page_before_the_position_is_not_copied() {
    let copied = doc! { "position": 2_i64 };

    page_is_not_copied_after(async move |database| set(&database, copied).await).await;
}

#[fixture::test]
async fn page_read_before_a_replay_is_not_copied() {
    let far = bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() + 3_600_000);
    let replayed = doc! { "replay": 1_i64, "ownedUntil": far };

    page_is_not_copied_after(async move |database| set(&database, replayed).await).await;
}

#[fixture::test]
async fn page_read_before_a_deletion_is_not_copied() {
    page_is_not_copied_after(async move |database| {
        let subscriptions = database.collection::<Document>("postrider_subscriptions");
        subscriptions.delete_one(doc! { "_id": "everything" }).await.unwrap();
    })
    .await;
}

async fn set(database: &Database, fields: Document) {
    let subscriptions = database.collection::<Document>("postrider_subscriptions");
    let set = doc! { "$set": fields };
    let done = subscriptions.update_one(doc! { "_id": "everything" }, set).await.unwrap();
    assert_eq!(done.matched_count, 1);
}

/// Changes a subscription while its owner has read a page, and has not sent its transaction yet.
async fn page_is_not_copied_after<F>(change: impl FnOnce(Database) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    all.create(&push("everything", 1_000)).await;
    let (pusher, recorder) = all.push_recorded().await;
    let database = all.test.outbox.client.database(&all.test.outbox.database);
    recorder.after(is_page, move || change(database));

    until_transaction(&recorder).await;

    assert!(recorder.has_paused());
    assert_eq!(recorder.commands("commitTransaction").len(), 0);
    assert_eq!(all.copies("everything").await.len(), 0);
    pusher.stop().await;
    all.stop().await;
}

/// The successor ends that session, and with it whatever the driver would have given it to.
#[fixture::test]
async fn session_that_a_document_names_serves_nothing_else() {
    let all = TestSubscriptions::new().await;
    all.create(&push("everything", 1_000)).await;
    let (pusher, recorder) = all.push_recorded().await;
    let report = async || all.subscriptions.get("everything").await.unwrap();
    eventually("an owner", || async { report().await.owner.is_some() }).await;
    let database = all.test.outbox.client.database(&all.test.outbox.database);
    // Nothing is copied, and the lease is not given up.
    let refuses_copies = doc! { "headers.subscription": { "$exists": false } };
    let keeps_owners = doc! { "$or": [{ "epoch": 0 }, { "owner": { "$exists": true } }] };
    for (collection, validator) in
        [("outbox_records", refuses_copies), ("postrider_subscriptions", keeps_owners)]
    {
        let change = doc! { "collMod": collection, "validator": validator };
        database.run_command(change).await.unwrap();
    }

    all.append("order", &["1"], "a").await;

    let refused = || async { recorder.has_failed("findAndModify") };
    eventually("a lease that is not given up", refused).await;
    // (The worker has ended when its process reads the subscriptions for the second time.)
    let reads = || recorder.commands("aggregate").len();
    let before = reads();
    eventually("the end of the worker", || async { reads() > before + 2 }).await;
    let subscriptions = database.collection::<Document>("postrider_subscriptions");
    let stored = subscriptions.find_one(doc! {}).await.unwrap().unwrap();
    let named = stored.get("session").unwrap();
    let client = recorder.collections.client();
    let mut sessions = Vec::new();
    for _ in 0..20 {
        let session = client.start_session().await.unwrap();
        assert_ne!(session.id().get("id"), Some(named), "another operation would get it");
        sessions.push(session);
    }
    pusher.stop().await;
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
