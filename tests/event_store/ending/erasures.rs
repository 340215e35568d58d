//! What an erasure erases.

use bson::doc;
use futures_util::future::join_all;
use postrider::context::CollectionKind;
use postrider::events::{
    Append, ErasureCounts, ErasureState, EventStore, NewEvent, PendingRecords,
};
use postrider::names::AggregateName;
use postrider::outbox::redrive::{Redrive, RedriveRefusal, Redriver};
use postrider::outbox::undecoded::RawId;
use postrider::snapshot::{Snapshot, SnapshotStore};

use crate::ending::util::{
    SECRET, erase, erase_with, leaks, open_erasures, other_store, secret, settle,
};
use crate::events::util::{TestStore, append, id, name};

async fn with_secrets(count: usize) -> TestStore {
    let test = TestStore::new().await;
    for number in 0..count {
        test.store.append(secret(&format!("r{number}"))).await.unwrap();
    }
    test
}

#[fixture::test]
async fn erasure_empties_events_snapshot_and_settled_records() {
    let test = with_secrets(3).await;
    let snapshots = SnapshotStore::new(test.store.context().clone());
    let snapshot = Snapshot::new(id("1"), 3, doc! { "who": SECRET });
    snapshots.save(&name(), snapshot).await.unwrap();
    settle(&test, "done").await;
    let dead = doc! { "$set": { "status": "dead" } };
    test.outbox.records().update_one(doc! { "type": "B" }, dead).await.unwrap();
    assert_eq!(leaks(&test).await, 10);

    let erased = erase(&test.store, "x").await.unwrap();

    assert_eq!(leaks(&test).await, 0);
    assert_eq!((erased.version, erased.state, erased.pending), (4, ErasureState::Complete, 0));
    let counts = ErasureCounts { versions: 3, events: 6, snapshot: true, records: 6, discarded: 0 };
    assert_eq!(erased.erased, counts);
    let places: Vec<&str> = erased.unreachable.iter().map(|one| one.place).collect();
    let expected = ["brokers", "consumers", "read models", "oplog", "backups", "identifiers"];
    assert_eq!(places, expected);
    let streams = test.streams("order").await;
    for stream in &streams[..3] {
        assert_eq!(stream.get_document("header").unwrap(), &doc! {});
        assert_eq!(stream.get_i32("size").unwrap(), 2);
        for event in stream.get_array("body").unwrap() {
            let event = event.as_document().unwrap();
            assert_eq!(event.get_document("body").unwrap(), &doc! {});
            assert!(event.get_str("id").is_ok() && event.get_str("name").is_ok());
            assert_eq!(event.get_str("revision").unwrap(), "2");
        }
    }
    let event = streams[3].get_array("body").unwrap()[0].as_document().unwrap();
    assert_eq!(event.get_str("name").unwrap(), "postrider.StreamErased");
    let body = doc! { "reason": "the customer asked", "actor": "ops", "discardPending": false };
    assert_eq!(event.get_document("body").unwrap(), &body);
    // Its own message is delivered with its content.
    let record = test.records("1").await.pop().unwrap();
    assert_eq!(record.get_str("status").unwrap(), "pending");
    assert_eq!(record.get_document("payload").unwrap(), &body);
    let snapshot = test.store.context().collection(CollectionKind::Snapshots, "order");
    let snapshot = snapshot.find_one(doc! {}).await.unwrap().unwrap();
    assert!(snapshot.get_bool("deleted").unwrap());
    assert_eq!(snapshot.get_document("state").unwrap(), &doc! {});
    assert!(open_erasures(&test).await.is_empty());
    // What is left of a message is not sent again under its type.
    let redriver = Redriver::new(test.outbox.admin.clone());
    for record in &test.records("1").await[..6] {
        let id = RawId::from(record.get("_id").unwrap());
        for redrive in [Redrive::Redeliver, Redrive::Requeue] {
            let done = redriver.redrive(redrive, std::slice::from_ref(&id)).await.unwrap();
            assert_eq!(done, Err(RedriveRefusal::Erased), "{record}");
        }
    }
    // The same request again has the same state.
    let again = erase(&other_store(&test).await, "x").await.unwrap();
    assert_eq!((again.state, again.erased, again.replayed), (ErasureState::Complete, counts, true));
}

#[fixture::test]
async fn erasure_leaves_other_aggregates_alone() {
    let test = with_secrets(1).await;
    let invoice = AggregateName::new("invoice").unwrap();
    let event = || vec![NewEvent::new("E", doc! { "kept": true })];
    test.store.append(Append::new(invoice, id("1"), "r0", event())).await.unwrap();
    test.store.append(Append::new(name(), id("11"), "r0", event())).await.unwrap();
    settle(&test, "done").await;

    let erased = erase(&test.store, "x").await.unwrap();

    assert_eq!(erased.state, ErasureState::Complete);
    assert_eq!(test.outbox.count(doc! { "payload.kept": true }).await, 2);
    for (name, count) in [("invoice", 1), ("order", 1)] {
        let streams = test.streams(name).await;
        let kept = |stream: &&bson::Document| stream.to_string().contains("kept");
        assert_eq!(streams.iter().filter(kept).count(), count);
    }
}

#[fixture::test]
async fn concurrent_erasures_of_many_versions_count_each_once() {
    let test = with_secrets(250).await;
    settle(&test, "done").await;
    let stores = [test.store.clone(), other_store(&test).await, other_store(&test).await];

    let erasing = (0..6).map(|number| erase(&stores[number % 3], "x"));
    let answers = join_all(erasing).await;

    assert_eq!(answers.iter().filter(|answer| !answer.as_ref().unwrap().replayed).count(), 1);
    let last = erase(&test.store, "x").await.unwrap();
    assert_eq!(last.state, ErasureState::Complete);
    let counts =
        ErasureCounts { versions: 250, events: 500, snapshot: false, records: 500, discarded: 0 };
    assert_eq!(last.erased, counts);
    assert_eq!(leaks(&test).await, 0);
}

/// As after a restore of the events without that collection.
#[fixture::test]
async fn erasure_is_found_again_without_its_work_document() {
    let test = with_secrets(2).await;
    let waiting = erase(&test.store, "x").await.unwrap();
    assert_eq!(waiting.state, ErasureState::Waiting);
    let database = test.store.context().database(CollectionKind::Events);
    let works = database.collection::<bson::Document>("postrider_erasures");
    works.drop().await.unwrap();
    settle(&test, "done").await;

    let again = erase(&test.store, "x").await.unwrap();

    assert_eq!((again.state, again.erased.versions), (ErasureState::Complete, 2));
    assert_eq!(leaks(&test).await, 0);
}

/// Streams of other programs have other ids, and may lack an array of events.
#[fixture::test]
async fn streams_of_other_programs_are_erased() {
    let test = TestStore::new().await;
    test.store.append(append("1", "a")).await.unwrap();
    settle(&test, "done").await;
    let streams = test.store.context().collection(CollectionKind::Events, "order");
    let odd = |version: i32, body: bson::Bson| {
        doc! {
            "_id": format!("wow-{version}"), "aggregateId": "1", "version": version, "size": 1,
            "requestId": format!("w{version}"), "createTime": 1_i64, "header": SECRET, "body": body,
        }
    };
    streams
        .insert_one(odd(2, bson::bson!([SECRET, { "name": "W", "body": SECRET }])))
        .await
        .unwrap();
    streams.insert_one(odd(3, SECRET.into())).await.unwrap();

    let erased = erase(&other_store(&test).await, "x").await.unwrap();

    assert_eq!((erased.version, erased.state), (4, ErasureState::Complete));
    assert_eq!(erased.erased.versions, 3);
    assert_eq!(leaks(&test).await, 0);
    let streams = test.streams("order").await;
    assert_eq!(
        streams[1].get_array("body").unwrap(),
        &[bson::bson!({}), bson::bson!({ "name": "W", "body": {} })]
    );
}

#[fixture::test]
async fn erasure_completes_in_the_background() {
    let test = with_secrets(2).await;
    // Documents that are no erasures, and due before it.
    let works =
        test.store.context().database(CollectionKind::Events).collection("postrider_erasures");
    for odd in [doc! { "_id": "odd" }, doc! { "_id": "bytes", "aggregateName": "MARK" }] {
        crate::support::outbox::insert_broken(&works, &odd).await;
    }
    let other = other_store(&test).await;
    let (worker, worker_of_other): (EventStore, EventStore) = (test.store.clone(), other.clone());
    let working = tokio::spawn(async move { worker.complete_erasures().await });
    let of_other = tokio::spawn(async move { worker_of_other.complete_erasures().await });
    let waiting = erase_with(&test.store, "x", PendingRecords::Deliver).await.unwrap();
    assert_eq!((waiting.state, waiting.pending), (ErasureState::Waiting, 4));
    assert_eq!(waiting.erased.versions, 2);
    settle(&test, "done").await;

    crate::support::outbox::eventually("the erasure is complete", || async {
        works.count_documents(doc! { "streamId": { "$exists": true } }).await.unwrap() == 0
    })
    .await;
    works.delete_many(doc! {}).await.unwrap();
    assert_eq!(leaks(&test).await, 0);
    let last = erase(&other, "x").await.unwrap();
    assert_eq!((last.state, last.erased.records), (ErasureState::Complete, 4));
    working.abort();
    of_other.abort();
}
