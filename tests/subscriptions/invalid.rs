//! Documents that this version cannot read: subscriptions, and events that are copied.

use bson::{Document, doc};
use postrider::events::subscriptions::{SubscriptionEntry, SubscriptionError};
use postrider::events::{ErasureState, EventStore, PendingRecords, StreamEnding};
use postrider::names::{AggregateId, AggregateName};

use crate::support::outbox::{REPLACED, eventually, insert_broken};
use crate::util::{TestSubscriptions, positions, push};

async fn erase(store: &EventStore) -> postrider::events::Erasure {
    let (name, id) = (AggregateName::new("order").unwrap(), AggregateId::new("1").unwrap());
    let ending = StreamEnding::new("x", "the customer asked");
    store.erase(&name, &id, ending, PendingRecords::Discard).await.unwrap()
}

/// The names of all subscriptions, and why they are invalid.
async fn listed(all: &TestSubscriptions) -> Vec<(String, Option<String>)> {
    let entry = |entry| match entry {
        SubscriptionEntry::Valid(report) => (report.name, None),
        SubscriptionEntry::Invalid(report) => (report.name, Some(report.error)),
    };
    all.subscriptions.list().await.unwrap().into_iter().map(entry).collect()
}

#[fixture::test]
async fn invalid_subscriptions_are_listed_named_by_erasures_and_deleted() {
    let all = TestSubscriptions::new().await;
    all.test.append("order", "1", "a", 1).await;
    all.test.until(1).await;
    for name in ["bytes", "copy", "many", "newer"] {
        all.create(&push(name, 1_000)).await;
    }
    let stored = all.test.database().collection::<Document>("postrider_subscriptions");
    for (name, fields) in
        [("many", doc! { "maxPending": "many" }), ("newer", doc! { "kind": "sideways" })]
    {
        stored.update_one(doc! { "_id": name }, doc! { "$set": fields }).await.unwrap();
    }
    let mut bytes = stored.find_one(doc! { "_id": "bytes" }).await.unwrap().unwrap();
    bytes.insert("destination", "MARK");
    stored.delete_one(doc! { "_id": "bytes" }).await.unwrap();
    insert_broken(&stored, &bytes).await;
    let pusher = all.push();
    all.until_position("copy", 1).await;

    let found = listed(&all).await;

    let names: Vec<(&str, bool)> =
        found.iter().map(|(name, error)| (name.as_str(), error.is_some())).collect();
    assert_eq!(names, [("bytes", true), ("copy", false), ("many", true), ("newer", true)]);
    assert!(found[0].1.as_ref().unwrap().contains("destination"), "{found:?}");
    assert!(found[3].1.as_ref().unwrap().contains("sideways"), "{found:?}");
    let before = stored.find_one(doc! { "_id": "newer" }).await.unwrap();
    let paused = all.subscriptions.pause("newer").await;
    assert!(
        matches!(&paused, Err(SubscriptionError::Unreadable { name, .. }) if name == "newer"),
        "{paused:?}"
    );
    assert_eq!(stored.find_one(doc! { "_id": "newer" }).await.unwrap(), before);

    // The ids of the records of the other two are known.
    let erasure = erase(&all.test.store).await;
    assert_eq!(erasure.state, ErasureState::Waiting);
    assert_eq!(erasure.invalid_subscriptions, ["newer"]);
    let SubscriptionEntry::Invalid(shown) = all.subscriptions.show("newer").await.unwrap() else {
        panic!("it is invalid")
    };
    assert_eq!(shown.erasures, ["order/1"]);
    for name in ["newer", "bytes", "many"] {
        all.subscriptions.delete(name).await.unwrap();
    }
    let erasure = erase(&all.test.store).await;
    assert_eq!((erasure.state, erasure.invalid_subscriptions), (ErasureState::Complete, vec![]));
    let names: Vec<String> = listed(&all).await.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["copy"]);
    pusher.stop().await;
    all.stop().await;
}

#[fixture::test]
async fn event_that_is_not_text_is_copied_and_marked() {
    let all = TestSubscriptions::new().await;
    let odd = doc! { "body": [{ "id": "e", "name": "E", "body": { "t": "MARK", "n": 7 } }] };
    let stream = crate::feed::stream("order", "odd", 1, odd);
    insert_broken(&all.test.streams("order"), &stream).await;
    all.append("order", &["sound"], "a").await;
    all.create(&push("everything", 1_000)).await;
    let pusher = all.push();

    all.until_position("everything", 2).await;

    let copies = all.copies("everything").await;
    assert_eq!(positions(&copies), [1, 2]);
    assert_eq!(copies[0].get_document("payload").unwrap(), &doc! { "t": REPLACED, "n": 7 });
    let header = |copy: &Document| {
        let headers = copy.get_document("headers").unwrap();
        headers.get_str("event-invalid").ok().map(str::to_owned)
    };
    assert_eq!(header(&copies[0]).unwrap(), "body.0.body.t: is not valid UTF-8");
    assert_eq!(header(&copies[1]), None);
    eventually("no failure", async || {
        all.subscriptions.get("everything").await.unwrap().error.is_none()
    })
    .await;
    pusher.stop().await;
    all.stop().await;
}
