//! Erasures and the pages that subscriptions have read.

use bson::doc;
use postrider::events::{
    Append, Erasure, ErasureState, EventStore, NewEvent, PendingRecords, StreamEnding,
};
use postrider::names::{AggregateId, AggregateName};

use crate::util::{TestSubscriptions, is_page, positions, push};

async fn erase(store: &EventStore) -> Erasure {
    let (name, id) = (AggregateName::new("order").unwrap(), AggregateId::new("1").unwrap());
    let ending = StreamEnding::new("x", "the customer asked");
    store.erase(&name, &id, ending, PendingRecords::Discard).await.unwrap()
}

async fn append_secret(store: &EventStore) {
    let (name, id) = (AggregateName::new("order").unwrap(), AggregateId::new("1").unwrap());
    let event = NewEvent::new("Placed", doc! { "who": "secret-of-ada" });
    store.append(Append::new(name, id, "a", vec![event])).await.unwrap();
}

async fn with_the_secret(all: &TestSubscriptions) -> u64 {
    all.test.outbox.count(doc! { "payload.who": "secret-of-ada" }).await
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
    let copies = all.copies("everything").await;
    assert_eq!(positions(&copies), [1, 2]);
    assert_eq!(copies[0].get_document("payload").unwrap(), &doc! {});
    pusher.stop().await;
    all.stop().await;
}
