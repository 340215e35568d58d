//! A consumer of a Kafka topic. Each message has its effect once, however often it arrives:
//! `MONGODB_URI=…/shop KAFKA_BROKERS=… TOPIC=… GROUP=… cargo run --example consumer_kafka`.
//!
//! The effect and a document of the inbox are in one MongoDB transaction, and the offset is committed after it. It ends at
//! SIGTERM, and with an error of Kafka; what was not committed comes again.

// docs:begin consumer-kafka
use std::collections::HashSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bson::{DateTime, Document, doc};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{IndexOptions, ReturnDocument};
use mongodb::{Client, Database, IndexModel};
use rdkafka::ClientConfig;
use rdkafka::consumer::{CommitMode, Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::signal::unix::{SignalKind, signal};

/// The name of this consumer: an inbox can be shared by several.
const CONSUMER: &str = "received";

/// How often a message may fail before it goes to the dead-letter topic.
const MAX_ATTEMPTS: i64 = 5;

/// The time from a failure to the next attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How long the inbox remembers a message: longer than it can be repeated, so longer than the topic retains it.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// The message was processed before.
#[derive(Debug)]
struct Repeated;

/// Consumes until SIGTERM or an error.
pub async fn run() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let client = Client::with_uri_str(variable("MONGODB_URI")?).await?;
    let db = client
        .default_database()
        .context("MONGODB_URI: add a database: mongodb://host/database")?;
    for collection in ["inbox", "inbox_failures"] {
        let expiry = IndexOptions::builder().expire_after(REMEMBERED).build();
        let index = IndexModel::builder().keys(doc! { "at": 1 }).options(expiry).build();
        db.collection::<Document>(collection).create_index(index).await?;
    }

    let brokers = variable("KAFKA_BROKERS")?;
    let mut settings = ClientConfig::new();
    if let Ok(name) = std::env::var("INSTANCE") {
        // A name of this process that stays: after a crash it has its partitions again at once.
        settings.set("group.instance.id", name);
    }
    let consumer: StreamConsumer = settings
        .set("bootstrap.servers", &brokers)
        .set("group.id", variable("GROUP")?)
        .set("auto.offset.reset", "earliest")
        .set("enable.auto.commit", "false")
        // A consumer that is killed keeps its partitions for so long.
        .set("session.timeout.ms", "10000")
        .create()?;
    let dead: FutureProducer = ClientConfig::new().set("bootstrap.servers", &brokers).create()?;
    consumer.subscribe(&[&variable("TOPIC")?])?;
    let mut stop = signal(SignalKind::terminate())?;
    let mut handler = Handler { db, dead, proven: HashSet::new() };
    let consuming = async {
        loop {
            let message = consumer.recv().await?;
            handler.handle(&message).await?;
            consumer.commit_message(&message, CommitMode::Sync)?;
        }
    };
    tokio::select! {
        ended = consuming => ended,
        // The consumer leaves its group when it is dropped.
        _ = stop.recv() => Ok(()),
    }
}

struct Handler {
    db: Database,
    dead: FutureProducer,
    /// The partitions in which this process has applied a message.
    proven: HashSet<i32>,
}

impl Handler {
    /// Applies a message, or sends it to the topic of the dead after too many failures.
    async fn handle(&mut self, message: &BorrowedMessage<'_>) -> Result<()> {
        let (db, dead) = (&self.db, &self.dead);
        let Some(id) = text_header(message, "message-id").filter(|id| !id.is_empty()) else {
            // It is not a message of Postrider.
            return write_to_dead_topic(dead, message, "no message-id").await;
        };
        // Kafka does not count deliveries. A message that ends the process is in the next process the first one of its
        // partition whose effect is not there yet. So only such a message is counted before its attempt.
        let mut is_counted = !self.proven.contains(&message.partition());
        let mut failure = "it ended the process".to_owned();
        let mut failed = if is_counted { count_attempt(db, &id, &failure).await? - 1 } else { 0 };
        while failed < MAX_ATTEMPTS {
            let Err(error) = apply_once(db, &id, message).await else {
                self.proven.insert(message.partition());
                return if is_counted || failed > 0 { forget(db, &id).await } else { Ok(()) };
            };
            let own = error.downcast_ref::<Error>();
            if own.is_some_and(is_repeated) {
                println!("{id} again");
                return if is_counted || failed > 0 { forget(db, &id).await } else { Ok(()) };
            }
            if own.is_some_and(is_unavailable) {
                eprintln!("{id}: MongoDB is not available: {error:#}");
            } else {
                failure = format!("{error:#}");
                failed =
                    if is_counted { failed + 1 } else { count_attempt(db, &id, &failure).await? };
                is_counted = false;
                eprintln!("{id} failed, attempt {failed} of {MAX_ATTEMPTS}: {failure}");
            }
            // Here, so that the messages behind it wait.
            tokio::time::sleep(RETRY_PAUSE).await;
        }
        write_to_dead_topic(dead, message, &failure).await?;
        // If it is sent again, it has all its attempts again.
        forget(db, &id).await
    }
}

/// Writes the effect and the document of the inbox in one transaction.
async fn apply_once(db: &Database, id: &str, message: &BorrowedMessage<'_>) -> Result<()> {
    let key = message.key().context("a message without a key")?;
    let key = std::str::from_utf8(key).context("the key is not UTF-8")?;
    let payload = message.payload().context("a message without a payload")?;
    let payload: serde_json::Value = serde_json::from_slice(payload).context("not JSON")?;
    let n = payload["n"].as_i64().context("n is not an integer")?;

    let mut session = db.client().start_session().await?;
    // The driver calls this again after a conflict with another transaction (error 112).
    let applied = session.start_transaction().and_run2(async |session| {
        let row = doc! { "_id": { "consumer": CONSUMER, "message": id }, "at": DateTime::now() };
        let inserted = db.collection("inbox").insert_one(row).session(&mut *session).await;
        inserted
            .map_err(|error| if is_duplicate(&error) { Error::custom(Repeated) } else { error })?;
        // The effect; all its writes have the session.
        let effect = doc! { "$push": { "n": n } };
        let received = db.collection::<Document>("received");
        received.update_one(doc! { "_id": key }, effect).upsert(true).session(session).await?;
        Ok(())
    });
    Ok(applied.await?)
}

/// Counts an attempt, and returns how many there have been. Not in the transaction of the effect, so that the count stays.
async fn count_attempt(db: &Database, id: &str, failure: &str) -> Result<i64> {
    let failures = db.collection::<Document>("inbox_failures");
    let attempt = doc! { "$set": { "at": DateTime::now(), "failure": failure }, "$inc": { "attempts": 1_i64 } };
    let row = doc! { "_id": { "consumer": CONSUMER, "message": id } };
    let counting = failures.find_one_and_update(row, attempt).upsert(true);
    let counted = counting.return_document(ReturnDocument::After).await?;
    Ok(counted.context("an upsert returns the document")?.get_i64("attempts")?)
}

/// Removes the count of a message.
async fn forget(db: &Database, id: &str) -> Result<()> {
    let row = doc! { "_id": { "consumer": CONSUMER, "message": id } };
    db.collection::<Document>("inbox_failures").delete_one(row).await?;
    Ok(())
}

/// Copies the message to the topic `….dead`, with its headers and the header `failure`.
async fn write_to_dead_topic(
    dead: &FutureProducer,
    message: &BorrowedMessage<'_>,
    failure: &str,
) -> Result<()> {
    let topic = format!("{}.dead", message.topic());
    let headers = message.headers().map_or_else(OwnedHeaders::new, |headers| headers.detach());
    let headers = headers.insert(Header { key: "failure", value: Some(failure) });
    let mut record = FutureRecord::to(&topic).headers(headers);
    record.key = message.key();
    record.payload = message.payload();
    let delivered = dead.send(record, Duration::from_secs(30)).await;
    delivered.map_err(|(error, _)| error).with_context(|| format!("failed to write to {topic}"))?;
    Ok(())
}

fn text_header(message: &BorrowedMessage<'_>, name: &str) -> Option<String> {
    let header = message.headers()?.iter().find(|header| header.key == name)?;
    String::from_utf8(header.value?.to_vec()).ok()
}

/// Error 11000: a unique index has this value already.
fn is_duplicate(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(write)) if write.code == 11000)
}

fn is_repeated(error: &Error) -> bool {
    error.get_custom::<Repeated>().is_some()
}

/// MongoDB cannot be reached, or has no primary.
fn is_unavailable(error: &Error) -> bool {
    matches!(
        &*error.kind,
        ErrorKind::Io(_)
            | ErrorKind::ServerSelection { .. }
            | ErrorKind::ConnectionPoolCleared { .. }
    ) || error.contains_label("TransientTransactionError")
        || error.contains_label("UnknownTransactionCommitResult")
}
// docs:end consumer-kafka

#[tokio::main]
async fn main() -> Result<()> {
    run().await
}
