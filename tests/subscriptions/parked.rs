//! Parked events, and dead records of push subscriptions.

use std::time::Duration;

use bson::doc;
use postrider::events::subscriptions::SubscriptionError;
use postrider::store::page::PageSize;

use crate::support::outbox::eventually;
use crate::util::{TestSubscriptions, of, pull, push};

const LEASE: Duration = Duration::from_secs(30);

#[fixture::test]
async fn parked_event_is_acknowledged_and_listed() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1"], "a").await;
    all.append("customer", &["1"], "a").await;
    all.append("order", &["2", "3"], "a").await;
    all.create(&of(pull("billing", LEASE), &["order"])).await;
    let read = all.pull("billing", "a").await.unwrap();
    let park = |position, reason| all.subscriptions.park("billing", &read.lease, position, reason);

    assert_eq!(park(1, "first").await.unwrap(), 1);
    let no_event = park(2, "of a customer").await;
    assert!(matches!(&no_event, Err(SubscriptionError::Invalid(flaws)) if flaws.len() == 1));
    assert_eq!(park(3, "second").await.unwrap(), 3);
    assert_eq!(park(3, "repeated").await.unwrap(), 3);
    let behind = park(1, "late").await;
    assert!(matches!(behind, Err(SubscriptionError::PositionBehind { .. })), "{behind:?}");
    let ahead = park(5, "ahead").await;
    assert!(matches!(ahead, Err(SubscriptionError::PositionAhead { .. })), "{ahead:?}");

    let outbox = &all.test.outbox.admin;
    let size = PageSize::of_answer(10);
    let list = async |after| {
        all.subscriptions.parked(outbox, "billing", after, size).await.unwrap().events
    };
    let listed = list(0).await;
    let texts: Vec<_> = listed
        .iter()
        .map(|event| (event.position, event.aggregate_id.as_str(), event.reason.as_str()))
        .collect();
    assert_eq!(texts, [(1, "1", "first"), (3, "2", "second")]);
    assert_eq!(listed[0].member.as_deref(), Some("a"));
    assert_eq!(list(1).await, listed[1..]);
    assert_eq!(all.pull("billing", "a").await.unwrap().items.len(), 1);
    // One that another program has changed hides no other.
    let stored = all.test.database().collection::<bson::Document>("postrider_parked");
    let odd = doc! { "$set": { "reason": 7, "position": "third" } };
    stored.update_one(doc! { "position": 3 }, odd).await.unwrap();
    let shown = list(0).await;
    assert_eq!(shown[0], listed[0]);
    assert_eq!((shown.len(), shown[1].position, shown[1].reason.as_str()), (2, 3, ""));

    assert_eq!(all.subscriptions.discard_parked("billing", Some(1)).await.unwrap(), 1);
    assert_eq!(all.subscriptions.get("billing").await.unwrap().parked, Some(1));
    // It comes again.
    assert_eq!(all.subscriptions.replay("billing", 1).await.unwrap().parked, Some(0));
    assert_eq!(list(0).await, []);
    all.stop().await;
}

/// Another program has written large fields.
#[fixture::test]
async fn pages_of_parked_events_end_by_their_size() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1"], "a").await;
    all.create(&pull("billing", LEASE)).await;
    let read = all.pull("billing", "a").await.unwrap();
    all.subscriptions.park("billing", &read.lease, 1, "first").await.unwrap();
    let stored = all.test.database().collection::<bson::Document>("postrider_parked");
    let first = stored.find_one(doc! {}).await.unwrap().unwrap();
    let uid = first.get_str("_id").unwrap().split('/').next().unwrap().to_owned();
    for some in (2..=300_i64).collect::<Vec<_>>().chunks(20) {
        let more = some.iter().map(|position| {
            let mut more = first.clone();
            more.insert("_id", format!("{uid}/{position:019}"));
            more.insert("reason", "r".repeat(7_000));
            more.insert("foreign", "x".repeat(50_000));
            more
        });
        stored.insert_many(more).await.unwrap();
    }

    let outbox = &all.test.outbox.admin;
    let (mut positions, mut pages, mut after) = (Vec::new(), 0, Some(0));
    while let Some(behind) = after {
        let size = PageSize::of_answer(1_000);
        let page = all.subscriptions.parked(outbox, "billing", behind, size).await.unwrap();
        let bytes: usize = page.events.iter().map(|event| event.reason.len()).sum();
        assert!(bytes < 1 << 20, "{bytes}");
        positions.extend(page.events.iter().map(|event| event.position));
        (after, pages) = (page.next, pages + 1);
    }
    assert_eq!((positions, pages), ((1..=300).collect(), 3));
    all.stop().await;
}

#[fixture::test]
async fn parked_events_have_a_ceiling() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2"], "a").await;
    all.create(&pull("billing", LEASE)).await;
    let read = all.pull("billing", "a").await.unwrap();
    all.set("billing", doc! { "parked": 999_i64 }).await;

    all.subscriptions.park("billing", &read.lease, 1, "fits").await.unwrap();
    let full = all.subscriptions.park("billing", &read.lease, 2, "does not").await;

    assert!(matches!(full, Err(SubscriptionError::ParkedFull(1_000))), "{full:?}");
    assert_eq!(all.position("billing").await, 1);
    all.subscriptions.delete("billing").await.unwrap();
    let database = all.test.outbox.client.database(&all.test.outbox.database);
    let parked = database.collection::<bson::Document>("postrider_parked");
    assert_eq!(parked.count_documents(doc! {}).await.unwrap(), 0);
    all.stop().await;
}

#[fixture::test]
async fn dead_records_are_the_parked_events_of_a_push() {
    let all = TestSubscriptions::new().await;
    all.append("order", &["1", "2", "3"], "a").await;
    all.create(&push("everything", 1_000)).await;
    let pusher = all.push();
    all.until_position("everything", 3).await;
    let dead = doc! { "$set": {
        "status": "dead", "deadAt": bson::DateTime::now(), "deadReason": "refused: no queue",
    } };
    let second = doc! { "headers.feed-position": 2_i64 };
    all.test.outbox.records().update_one(second, dead).await.unwrap();

    let outbox = &all.test.outbox.admin;
    let size = PageSize::of_answer(10);
    let listed = all.subscriptions.parked(outbox, "everything", 0, size).await.unwrap().events;
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].position, listed[0].aggregate_id.as_str()), (2, "2"));
    assert_eq!(listed[0].reason, "refused: no queue");
    let id = listed[0].record_id.clone().unwrap();
    assert!(all.copies("everything").await.iter().any(|copy| {
        copy.get("_id")
            .is_some_and(|found| postrider::ids::RecordId::from(found.clone()).to_string() == id)
    }));
    let refused = all.subscriptions.discard_parked("everything", None).await;
    assert!(matches!(refused, Err(SubscriptionError::WrongKind { .. })), "{refused:?}");
    let refused = all.pull("everything", "a").await;
    assert!(matches!(refused, Err(SubscriptionError::WrongKind { .. })), "{refused:?}");
    eventually("the lag", || async {
        all.subscriptions.get("everything").await.unwrap().lag_events == Some(0)
    })
    .await;
    pusher.stop().await;
    all.stop().await;
}
