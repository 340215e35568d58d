//! An outbox of the test's own: a database that is dropped with it, and producers.

use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, Timestamp, doc};
use mongodb::{Client, Collection};
use postrider::config::tree::Validator;
use postrider::outbox::collections::Collections;
use postrider::schema::{self, SchemaOptions};

/// The variable with the URI of the test run's replica set.
const URI: &str = "POSTRIDER_TEST_MONGODB_URI";

/// A database with an empty outbox.
pub struct TestOutbox {
    pub client: Client,
    pub database: String,
    pub collections: Collections,
}

/// The replica set of this test run.
pub fn mongodb_uri() -> String {
    std::env::var(URI).unwrap_or_else(|_| panic!("{URI} is not set: run the tests by `make test`"))
}

impl TestOutbox {
    /// Makes a database whose name nobody else has.
    pub async fn new() -> Self {
        Self::at(&mongodb_uri()).await
    }

    /// The same on another server.
    pub async fn at(uri: &str) -> Self {
        let client = postrider::store::connect::client(uri).await.unwrap();
        let database = format!("test_{}", uuid::Uuid::new_v4().simple());
        let collections = Collections::new(client.clone(), &database, "");
        // No validator: many a test inserts what a producer must not.
        let options = SchemaOptions { validator: Validator::Off, ..SchemaOptions::default() };
        schema::apply(&collections, &options).await.unwrap();
        Self { client, database, collections }
    }

    /// The records, decoded.
    pub fn records(&self) -> Collection<Document> {
        self.collections.records().clone_with_type()
    }

    /// Inserts records outside a transaction, in this order.
    pub async fn insert(&self, records: impl IntoIterator<Item = Document>) {
        self.records().insert_many(records).await.unwrap();
    }

    /// One record, whatever state it is in.
    pub async fn record(&self, id: impl Into<Bson>) -> Document {
        self.records()
            .find_one(doc! { "_id": id.into() })
            .await
            .unwrap()
            .expect("the record exists")
    }

    /// How many records match.
    pub async fn count(&self, filter: Document) -> u64 {
        self.records().count_documents(filter).await.unwrap()
    }

    /// Waits until `count` records match.
    pub async fn until_count(&self, filter: Document, count: u64) {
        let what = format!("{count} records with {filter}");
        eventually(&what, || async { self.count(filter.clone()).await == count }).await;
    }

    /// Drops the database; called at a test's end, so that a failed one leaves its evidence.
    pub async fn drop(self) {
        self.client.database(&self.database).drop().await.unwrap();
    }
}

/// A pending record that has a partition, as a producer with a library writes it.
pub fn record(id: &str, key: &str) -> Document {
    doc! {
        "_id": id,
        "key": key,
        "type": "T",
        "payload": { "id": id },
        "status": "pending",
        "seq": Bson::Timestamp(Timestamp { time: 0, increment: 0 }),
        "partition": i32::from(postrider::partition::of_key(key)),
    }
}

/// Inserts a document exactly as it is, with a literal zero or absent `seq` too.
pub async fn insert_raw(collections: &Collections, record: Document) {
    let raw = RawDocumentBuf::try_from(&record).unwrap();
    collections.records().insert_one(raw).await.unwrap();
}

/// Waits for a condition, up to a minute.
pub async fn eventually<F, Fut>(what: &str, mut condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(std::time::Instant::now() < deadline, "waited a minute for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
