//! A database with an outbox for one test.

use std::time::Duration;

use bson::raw::{RawArrayBuf, RawDocumentBuf, cstr};
use bson::{Bson, Document, Timestamp, doc, rawdoc};
use mongodb::{Client, Collection};
use postrider::outbox::collections::Collections;
use postrider::outbox::record::{Record, RecordVersion};
use postrider::schema::Validator;
use postrider::schema::roles::{RELAY, SCHEMA};
use postrider::schema::{self, SchemaOptions};

use super::cleanup::Cleanup;
use super::environment::{unique, variable};
use super::fault_proxy::FaultProxy;
use super::queue::host_of;
use super::{mutants, roles};

/// The variable with the URI of the test run's replica set.
const URI: &str = "POSTRIDER_TEST_MONGODB_URI";

/// A database with an empty outbox. On the shared server it is removed when the test passes.
pub struct TestOutbox {
    /// A client of the administrator.
    pub client: Client,
    pub database: String,
    /// The collections through that client.
    pub admin: Collections,
    /// The relay's collections: the same, or those of a user with the rights of the relay's role
    /// only.
    pub collections: Collections,
    /// The URI with which the relay connects.
    pub uri: String,
    _cleanup: Cleanup,
}

/// The replica set of this test run.
pub fn mongodb_uri() -> String {
    variable(URI)
}

impl TestOutbox {
    /// Makes a database with a unique name.
    pub async fn new() -> Self {
        let outbox = Self::at(&mongodb_uri()).await;
        let database = outbox.client.database(&outbox.database);
        let _cleanup = Cleanup::new(async move || database.drop().await.unwrap());
        Self { _cleanup, ..outbox }
    }

    /// The same on another server, where it stays.
    pub async fn at(uri: &str) -> Self {
        // No validator: many tests insert invalid records.
        Self::validated(uri, Validator::Off).await
    }

    /// The same with a validator.
    pub async fn validated(uri: &str, validator: Validator) -> Self {
        mutants::prepare();
        let (client, database) = (client(uri).await, unique("test_"));
        let collections = Collections::new(client.clone(), &database, "");
        apply(&collections, validator).await;
        Self {
            client,
            database,
            admin: collections.clone(),
            collections,
            uri: uri.to_owned(),
            _cleanup: Cleanup::none(),
        }
    }

    /// The same on the server with access control. A user with the schema role made the schema, and
    /// the relay's user has only the relay's role.
    pub async fn restricted() -> Self {
        Self::restricted_for(Duration::MAX).await
    }

    /// The same, whose relay may do what it needs for this retention.
    pub async fn restricted_for(retention: Duration) -> Self {
        let (admin, database) = (client(&roles::admin_uri()).await, unique("test_"));
        roles::make(&admin, &database, "", retention).await;
        let schema = client(&roles::uri_of(&SCHEMA, &database)).await;
        apply(&Collections::new(schema, &database, ""), Validator::Off).await;
        let uri = roles::uri_of(&RELAY, &database);
        let own = admin.database(&database);
        let cleanup = Cleanup::new(async move || {
            roles::forget(&own).await;
            own.drop().await.unwrap();
        });
        Self {
            admin: Collections::new(admin.clone(), &database, ""),
            client: admin,
            collections: Collections::new(client(&uri).await, &database, ""),
            database,
            uri,
            _cleanup: cleanup,
        }
    }

    /// The outbox through a proxy, which lets everything pass.
    pub async fn behind_proxy(&self) -> (FaultProxy, Collections) {
        let host = host_of(&self.uri);
        let proxy = FaultProxy::to(&host).await;
        // The client must not learn the server's own address from the replica set.
        let uri = self.uri.replace(&host, &proxy.address().to_string());
        let uri = uri.replace("replicaSet=rs0", "directConnection=true");
        let collections = Collections::new(client(&uri).await, &self.database, "");
        (proxy, collections)
    }

    /// The records, decoded.
    pub fn records(&self) -> Collection<Document> {
        self.admin.records().clone_with_type()
    }

    /// Inserts records outside a transaction, in this order.
    pub async fn insert(&self, records: impl IntoIterator<Item = Document>) {
        self.records().insert_many(records).await.unwrap();
    }

    /// One record, in any state.
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
}

pub async fn client(uri: &str) -> Client {
    postrider::store::connect::client(uri).await.unwrap()
}

async fn apply(collections: &Collections, validator: Validator) {
    let options = SchemaOptions { validator, ..SchemaOptions::default() };
    schema::apply(collections, &options).await.unwrap();
}

/// A pending record with a partition, as a producer with a library writes it.
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

/// The same without a partition.
pub fn unstamped(id: &str, key: &str) -> Document {
    let mut record = record(id, key);
    record.remove("partition");
    record
}

/// These records as they are now, for a lease.
pub async fn versions(collections: &Collections, ids: &[&str]) -> Vec<RecordVersion> {
    let mut versions = Vec::new();
    for id in ids {
        let found = collections.records().find_one(doc! { "_id": id }).await.unwrap();
        let record = Record::read(&found.expect("the record exists"));
        versions.push(record.version().expect("it has a seq"));
    }
    versions
}

/// Inserts a document without changes, for example with a zero or absent `seq`.
pub async fn insert_raw(collections: &Collections, record: Document) {
    let raw = RawDocumentBuf::try_from(&record).unwrap();
    collections.records().insert_one(raw).await.unwrap();
}

/// The document with each text `MARK` in it made invalid UTF-8, which MongoDB stores and some drivers write.
pub fn broken(document: &Document) -> RawDocumentBuf {
    let mut bytes = RawDocumentBuf::try_from(document).unwrap().into_bytes();
    for at in 0..bytes.len() - 4 {
        if &bytes[at..at + 4] == b"MARK" {
            bytes[at..at + 4].copy_from_slice(b"\xff\xfe\xfd\xfc");
        }
    }
    RawDocumentBuf::from_bytes(bytes).unwrap()
}

/// Inserts the [`broken`] document.
pub async fn insert_broken(collection: &Collection<Document>, document: &Document) {
    insert_bytes(collection, broken(document)).await;
}

/// Inserts a document that cannot be decoded. (The driver's own insertion reads the `_id`.)
pub async fn insert_bytes(collection: &Collection<Document>, document: RawDocumentBuf) {
    let mut documents = RawArrayBuf::new();
    documents.push(document);
    let mut command = rawdoc! { "insert": collection.name() };
    command.append(cstr!("documents"), documents);
    let database = collection.client().database(&collection.namespace().db);
    let written = database.run_raw_command(command).await.unwrap();
    assert_eq!(written.get_i32("n").unwrap(), 1, "{written}");
}

/// The text that is shown in its place.
pub const REPLACED: &str = "\u{fffd}\u{fffd}\u{fffd}\u{fffd}";

/// Waits for a condition, up to a minute.
pub async fn eventually<F, Fut>(what: &str, mut condition: F)
where
    F: FnMut() -> Fut,
    Fut: Future<Output = bool>,
{
    let wait_limit = mutants::wait_limit().unwrap_or(Duration::from_secs(60));
    let deadline = std::time::Instant::now() + wait_limit;
    while !condition().await {
        assert!(std::time::Instant::now() < deadline, "waited {wait_limit:?} for: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
