//! The examples as processes: this test binary runs one of them, so that it is never an old build.

use std::process::{Command, Stdio};

use bson::{Document, doc};
use futures_util::TryStreamExt as _;
use mongodb::ClientSession;
use mongodb::options::ReadConcern;
use postrider::outbox::{NewRecord, Outbox};

use crate::support::outbox::TestOutbox;
use crate::support::process::Process;

#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/consumer_kafka.rs"]
mod consumer_kafka;
#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/consumer_rabbitmq.rs"]
mod consumer_rabbitmq;
#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/consumer_versions.rs"]
mod consumer_versions;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a program that other tests start"]
async fn program_consumer_rabbitmq() {
    consumer_rabbitmq::run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a program that other tests start"]
async fn program_consumer_kafka() {
    consumer_kafka::run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a program that other tests start"]
async fn program_consumer_versions() {
    consumer_versions::run().await.unwrap();
}

/// Starts an example on the database of this test. It is killed when the value is dropped.
pub fn start(name: &str, test: &TestOutbox, environment: &[(&str, &str)]) -> Process {
    let (server, query) = test.uri.split_once('?').unwrap_or((&test.uri, ""));
    let (server, database) = (server.trim_end_matches('/'), &test.database);
    let uri = format!("{server}/{database}?appName={database}&{query}");
    start_at(name, &uri, environment)
}

/// The same with another way to MongoDB.
pub fn start_at(name: &str, uri: &str, environment: &[(&str, &str)]) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture"]);
    command.arg(format!("consumers::programs::program_{name}"));
    command.env("MONGODB_URI", uri).envs(environment.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Process::spawn(command)
}

/// Enqueues a record of each key in turn, each in a transaction of its own: `n` from `from`, below `to`.
pub async fn enqueue(test: &TestOutbox, keys: &[&str], from: i32, to: i32) {
    let outbox = Outbox::new(&test.client.database(&test.database), "");
    let mut session = test.client.start_session().await.unwrap();
    for n in from..to {
        for key in keys {
            let record = NewRecord::new("OrderChanged", doc! { "order": *key, "n": n }).key(*key);
            session.start_transaction().await.unwrap();
            outbox.enqueue(&mut session, record).await.unwrap();
            session.commit_transaction().await.unwrap();
        }
    }
}

/// The effects on this key so far.
pub async fn received(test: &TestOutbox, key: &str) -> Vec<i32> {
    let received = collection(test, "received").find_one(doc! { "_id": key }).await.unwrap();
    let numbers = received.map(|found| found.get_array("n").unwrap().clone()).unwrap_or_default();
    numbers.iter().map(|n| n.as_i64().unwrap().try_into().unwrap()).collect()
}

/// How many messages the inbox has.
pub async fn in_inbox(test: &TestOutbox) -> u64 {
    collection(test, "inbox").count_documents(doc! {}).await.unwrap()
}

/// How many attempts of a message are counted.
pub async fn attempts(test: &TestOutbox, message: &str) -> i64 {
    let failures = collection(test, "inbox_failures");
    let counted = failures.find_one(doc! { "_id.message": message }).await.unwrap();
    counted.map_or(0, |counted| counted.get_i64("attempts").unwrap())
}

/// Changes the document of this key in a transaction that stays open: each effect on it meets a conflict.
pub async fn lock(test: &TestOutbox, key: &str) -> ClientSession {
    let database = test.client.database(&test.database);
    database.run_command(doc! { "profile": 2 }).await.unwrap();
    // Outside of the transaction, which would otherwise lock the collection.
    database.create_collection("received").await.unwrap();
    let mut session = test.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    let locked = doc! { "$set": { "locked": true } };
    let received = collection(test, "received");
    let locking = received.update_one(doc! { "_id": key }, locked);
    locking.upsert(true).session(&mut session).await.unwrap();
    session
}

/// How many writes have met a conflict since the lock.
pub async fn conflicts(test: &TestOutbox) -> u64 {
    collection(test, "system.profile").count_documents(doc! { "errCode": 112 }).await.unwrap()
}

/// Ends the open transactions of programs that were killed. MongoDB itself does that after a minute.
pub async fn end_transactions(test: &TestOutbox) {
    let admin = test.client.database("admin");
    let open = [
        doc! { "$currentOp": { "idleSessions": true } },
        doc! { "$match": { "appName": &test.database, "transaction": { "$exists": true } } },
        doc! { "$project": { "lsid": 1 } },
    ];
    let listing = admin.aggregate(open).read_concern(ReadConcern::local()).await.unwrap();
    let open: Vec<Document> = listing.try_collect().await.unwrap();
    if !open.is_empty() {
        admin.run_command(doc! { "killAllSessionsByPattern": open }).await.unwrap();
    }
}

pub fn collection(test: &TestOutbox, name: &str) -> mongodb::Collection<Document> {
    test.client.database(&test.database).collection(name)
}
