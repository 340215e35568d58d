//! Records that are not delivered when their stream is erased.

use bson::doc;
use postrider::events::{ErasureState, PendingRecords};
use postrider::sink::Message;

use crate::ending::util::{SECRET, erase, erase_with, leaks, secret};
use crate::events::util::{TestStore, append};
use crate::support::outbox::eventually;
use crate::support::relay::{settings, start};
use crate::support::sink::TestSink;

fn has_secret(message: &Message) -> bool {
    String::from_utf8_lossy(message.payload.as_ref().unwrap()).contains(SECRET)
}

#[fixture::test]
async fn pending_records_are_delivered_before_they_are_erased() {
    let test = TestStore::new().await;
    test.store.append(secret("a")).await.unwrap();
    test.store.append(secret("b")).await.unwrap();
    let done = doc! { "$set": { "status": "done" } };
    test.outbox.records().update_one(doc! { "type": "A" }, done).await.unwrap();

    let waiting = erase(&test.store, "x").await.unwrap();
    assert_eq!((waiting.state, waiting.pending), (ErasureState::Waiting, 3));
    // Events, and the record that was delivered before.
    assert_eq!((waiting.erased.versions, waiting.erased.records), (2, 1));
    assert_eq!(leaks(&test).await, 3);

    let sink = TestSink::default();
    let relay = start(&test.outbox.collections, sink.clone(), settings());
    sink.until("the erasure's message", |arrived| arrived.len() == 4).await;
    relay.stop().await;
    let types: Vec<String> = sink.arrived().iter().map(|message| message.kind.clone()).collect();
    assert_eq!(types, ["B", "A", "B", "postrider.StreamErased"]);
    for message in &sink.arrived()[..3] {
        assert!(has_secret(message));
    }
    let complete = erase(&test.store, "x").await.unwrap();
    assert_eq!((complete.state, complete.erased.records), (ErasureState::Complete, 4));
    assert_eq!(leaks(&test).await, 0);
}

#[fixture::test]
async fn pending_records_are_discarded_on_request_unless_leased() {
    let test = TestStore::new().await;
    test.store.append(secret("a")).await.unwrap();
    test.store.append(secret("b")).await.unwrap();
    test.store.append(append("2", "a")).await.unwrap();
    let records = test.outbox.records();
    let leased = test.records("1").await.remove(0);
    let leased = doc! { "_id": leased.get("_id") };
    let lease = vec![doc! { "$set": {
        "leaseId": bson::Uuid::new(), "leaseUntil": { "$add": ["$$NOW", 60_000] },
    } }];
    records.update_one(leased.clone(), lease).await.unwrap();
    let scheduled = test.records("1").await.remove(3);
    let scheduled = doc! { "_id": scheduled.get("_id") };
    let later = doc! { "$set": { "status": "scheduled" } };
    records.update_one(scheduled, later).await.unwrap();

    let waiting = erase_with(&test.store, "x", PendingRecords::Discard).await.unwrap();

    assert_eq!((waiting.state, waiting.pending), (ErasureState::Waiting, 1));
    assert_eq!((waiting.erased.discarded, waiting.erased.records), (3, 0));
    let left = test.records("1").await;
    let types: Vec<_> = left.iter().map(|record| record.get_str("type").unwrap()).collect();
    assert_eq!(types, ["A", "postrider.StreamErased"]);
    assert!(left[0].to_string().contains(SECRET), "a lease in progress keeps its payload");
    // The relay that has the lease settles it.
    let done = doc! { "$set": { "status": "done" }, "$unset": { "leaseId": "", "leaseUntil": "" } };
    records.update_one(leased, done).await.unwrap();
    let complete = erase_with(&test.store, "x", PendingRecords::Discard).await.unwrap();
    assert_eq!(complete.state, ErasureState::Complete);
    assert_eq!((complete.erased.discarded, complete.erased.records), (3, 1));
    assert_eq!(leaks(&test).await, 0);
    assert_eq!(test.records("2").await.len(), 1);
}

/// The relay leases everything while the erasure discards: what it has is delivered, the rest is gone,
/// and nothing is delivered empty or out of order.
#[fixture::test]
async fn relay_delivers_whole_messages_in_order_during_a_discard() {
    let test = TestStore::new().await;
    for number in 0..60 {
        test.store.append(secret(&number.to_string())).await.unwrap();
    }
    let sink = TestSink::default();
    let relay = start(&test.outbox.collections, sink.clone(), settings());

    sink.until("some messages", |arrived| arrived.len() > 5).await;
    erase_with(&test.store, "x", PendingRecords::Discard).await.unwrap();

    sink.until("the erasure's message", |arrived| {
        arrived.last().is_some_and(|last| last.kind == "postrider.StreamErased")
    })
    .await;
    eventually("the erasure is complete", || async {
        let state = erase(&test.store, "x").await.unwrap().state;
        state == ErasureState::Complete
    })
    .await;
    relay.stop().await;
    let arrived = sink.arrived();
    let (_, events) = arrived.split_last().unwrap();
    let mut versions = Vec::new();
    for message in events {
        assert!(has_secret(message));
        let header = message.headers.iter().find(|(name, _)| name == "aggregate-version");
        versions.push(format!("{:?}", header.unwrap().1));
    }
    let numbers: Vec<u32> = versions
        .iter()
        .map(|text| text.chars().filter(char::is_ascii_digit).collect::<String>())
        .map(|digits| digits.parse().unwrap())
        .collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    assert_eq!(leaks(&test).await, 0);
}
