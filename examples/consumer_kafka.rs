//! A consumer of a Kafka topic. Each message has its effect once, however often it arrives:
//! `MONGODB_URI=…/shop KAFKA_BROKERS=… TOPIC=… GROUP=… cargo run --example consumer_kafka`.
//!
//! The effect and a document of the inbox are in one MongoDB transaction, and the offset is committed after it. It ends with
//! an error when a server is not available, and at SIGTERM; what was not committed comes again.

// docs:begin consumer-kafka
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

/// Consumes until SIGTERM or an error. The first one of MongoDB or Kafka ends the program.
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
    let consumer: StreamConsumer = ClientConfig::new()
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
    loop {
        let message = tokio::select! {
            message = consumer.recv() => message?,
            // The consumer leaves its group when it is dropped.
            _ = stop.recv() => return Ok(()),
        };
        handle(&db, &dead, &message).await?;
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
}

/// Applies a message, or sends it to the dead-letter topic after too many failures.
async fn handle(db: &Database, dead: &FutureProducer, message: &BorrowedMessage<'_>) -> Result<()> {
    let id = text_header(message, "message-id").context("a message without an id")?;
    loop {
        let Err(error) = apply_once(db, &id, message).await else { return Ok(()) };
        let own = error.downcast_ref::<Error>();
        if own.is_some_and(is_repeated) {
            println!("{id} again");
            return Ok(());
        }
        if own.is_some_and(is_unavailable) {
            // Not the message's fault: it comes again when this program runs again.
            return Err(error);
        }
        let attempt = count_failure(db, &id, &error).await?;
        eprintln!("{id} failed, attempt {attempt} of {MAX_ATTEMPTS}: {error:#}");
        if attempt >= MAX_ATTEMPTS {
            return write_to_dead_topic(dead, message, &error).await;
        }
        // Here, so that the messages behind it wait.
        tokio::time::sleep(RETRY_PAUSE).await;
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

/// Counts a failure, and returns how many there have been. Not in the transaction of the effect, which was aborted.
async fn count_failure(db: &Database, id: &str, error: &anyhow::Error) -> Result<i64> {
    let failures = db.collection::<Document>("inbox_failures");
    let failure = doc! { "$set": { "at": DateTime::now(), "error": error.to_string() }, "$inc": { "attempts": 1_i64 } };
    let row = doc! { "_id": { "consumer": CONSUMER, "message": id } };
    let counting = failures.find_one_and_update(row, failure).upsert(true);
    let counted = counting.return_document(ReturnDocument::After).await?;
    Ok(counted.context("an upsert returns the document")?.get_i64("attempts")?)
}

/// Copies the message to the topic `….dead`, with its headers and the header `failure`.
async fn write_to_dead_topic(
    dead: &FutureProducer,
    message: &BorrowedMessage<'_>,
    error: &anyhow::Error,
) -> Result<()> {
    let topic = format!("{}.dead", message.topic());
    let failure = format!("{error:#}");
    let headers = message.headers().map_or_else(OwnedHeaders::new, |headers| headers.detach());
    let headers = headers.insert(Header { key: "failure", value: Some(&failure) });
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
