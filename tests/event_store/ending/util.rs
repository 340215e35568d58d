//! Streams that end.

use bson::{Document, doc};
use postrider::context::CollectionKind;
use postrider::events::{
    Append, Appended, EndError, Erasure, EventStore, NewEvent, PendingRecords, StreamEnding,
};

use crate::events::util::{TestStore, another, id, name};

/// What no collection may have after an erasure.
pub const SECRET: &str = "secret-of-ada";

pub async fn end(store: &EventStore, aggregate: &str, request: &str) -> Result<Appended, EndError> {
    let ending = StreamEnding::new(request, "it is over").by("ops");
    store.end(&name(), &id(aggregate), ending).await
}

pub async fn erase(store: &EventStore, request: &str) -> Result<Erasure, EndError> {
    erase_with(store, request, PendingRecords::Deliver).await
}

pub async fn erase_with(
    store: &EventStore,
    request: &str,
    pending: PendingRecords,
) -> Result<Erasure, EndError> {
    let ending = StreamEnding::new(request, "the customer asked").by("ops");
    store.erase(&name(), &id("1"), ending, pending).await
}

/// An append of two events with the secret, in the header too.
pub fn secret(request: &str) -> Append {
    let event = |name: &str| NewEvent {
        revision: Some("2".into()),
        ..NewEvent::new(name, doc! { "who": SECRET, "deep": { "list": [SECRET] } })
    };
    let mut append = Append::new(name(), id("1"), request, vec![event("A"), event("B")]);
    append.header = doc! { "by": SECRET };
    append.trace.parent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    append.trace.state = Some(format!("x={SECRET}"));
    append
}

/// Another store, as in another process.
pub async fn other_store(test: &TestStore) -> EventStore {
    let client = postrider::store::connect::client(&test.outbox.uri).await.unwrap();
    another(&test.outbox, client)
}

/// Sets the status of all records but those of ends.
pub async fn settle(test: &TestStore, status: &str) {
    let all = doc! { "type": { "$not": { "$regex": "^postrider" } } };
    let change = doc! { "$set": { "status": status } };
    test.outbox.records().update_many(all, change).await.unwrap();
}

/// The number of documents in the test's database that contain the secret.
pub async fn leaks(test: &TestStore) -> usize {
    let database = test.outbox.client.database(&test.outbox.database);
    let mut found = 0;
    for collection in database.list_collection_names().await.unwrap() {
        let all = database.collection::<Document>(&collection).find(doc! {}).await.unwrap();
        let all: Vec<Document> = futures_util::TryStreamExt::try_collect(all).await.unwrap();
        found += all.iter().filter(|one| one.to_string().contains(SECRET)).count();
    }
    found
}

/// The work documents of erasures.
pub async fn open_erasures(test: &TestStore) -> Vec<Document> {
    let database = test.store.context().database(CollectionKind::Events);
    let works = database.collection::<Document>("postrider_erasures");
    futures_util::TryStreamExt::try_collect(works.find(doc! {}).await.unwrap()).await.unwrap()
}
