//! A consumer of a RabbitMQ queue. Each message has its effect once, however often it arrives:
//! `MONGODB_URI=…/shop AMQP_URI=… QUEUE=… cargo run --example consumer_rabbitmq`.
//!
//! The effect and a document of the inbox are in one MongoDB transaction, and the acknowledgement follows the commit. The
//! queue must exist. It ends with an error when a server is not available; what was not acknowledged comes again.

// docs:begin consumer-rabbitmq
use std::time::Duration;

use anyhow::{Context as _, Result};
use bson::{DateTime, Document, doc};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{IndexOptions, ReturnDocument};
use mongodb::{Client, Database, IndexModel};

/// The name of this consumer: an inbox can be shared by several.
const CONSUMER: &str = "received";

/// How often a message may fail before it leaves the queue.
const MAX_ATTEMPTS: i64 = 5;

/// The time from a failure to the next attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How long the inbox remembers a message: longer than it can be repeated.
const REMEMBERED: Duration = Duration::from_secs(30 * 24 * 3600);

/// The message was processed before.
#[derive(Debug)]
struct Repeated;

/// Consumes until an error. The first one of MongoDB or RabbitMQ ends the program.
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

    let connection =
        Connection::connect(&variable("AMQP_URI")?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    // One at a time: those behind a message that fails wait until it has been applied or rejected.
    channel.basic_qos(1, BasicQosOptions::default()).await?;
    let queue = variable("QUEUE")?;
    let options = BasicConsumeOptions::default();
    let consuming =
        channel.basic_consume(queue.into(), CONSUMER.into(), options, FieldTable::default());
    let mut messages = consuming.await?;
    while let Some(message) = messages.next().await {
        handle(&db, &message?).await?;
    }
    anyhow::bail!("RabbitMQ has ended the consumer")
}

/// Applies a message and acknowledges it; rejects it after too many failures.
async fn handle(db: &Database, message: &Delivery) -> Result<()> {
    let id = message.properties.message_id().as_ref().map(ToString::to_string);
    let Some(id) = id.filter(|id| !id.is_empty()) else {
        // It is not a message of Postrider.
        message.reject(BasicRejectOptions { requeue: false }).await?;
        return Ok(());
    };
    // Deliveries without an answer: the message may be what kills this program. Quorum queues count them.
    let (deliveries, is_counted) = deliveries_before(message);
    let mut attempts = deliveries;
    if message.redelivered && !is_counted {
        attempts = count_failure(db, &id, "it was delivered before").await?;
    }
    while attempts < MAX_ATTEMPTS {
        match apply_once(db, &id, message).await {
            Ok(()) => {
                message.ack(BasicAckOptions::default()).await?;
                return Ok(());
            }
            Err(error) if error.downcast_ref::<Error>().is_some_and(is_repeated) => {
                println!("{id} again");
                message.ack(BasicAckOptions::default()).await?;
                return Ok(());
            }
            // Not the message's fault: it comes again when this program runs again.
            Err(error) if error.downcast_ref::<Error>().is_some_and(is_unavailable) => {
                return Err(error);
            }
            Err(error) => {
                attempts = deliveries + count_failure(db, &id, &error.to_string()).await?;
                eprintln!("{id} failed, attempt {attempts} of {MAX_ATTEMPTS}: {error:#}");
                // Here, and not by the queue: it may put the message behind later ones of its key.
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }
    // If it is published again, it has all its attempts again.
    let row = doc! { "_id": { "consumer": CONSUMER, "message": &id } };
    db.collection::<Document>("inbox_failures").delete_one(row).await?;
    // Without requeue it goes to the dead-letter exchange of the queue.
    message.reject(BasicRejectOptions { requeue: false }).await?;
    Ok(())
}

/// Writes the effect and the document of the inbox in one transaction.
async fn apply_once(db: &Database, id: &str, message: &Delivery) -> Result<()> {
    let key = text_header(message, "message-key").context("a message without a key")?;
    let payload: serde_json::Value = serde_json::from_slice(&message.data).context("not JSON")?;
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
        received.update_one(doc! { "_id": &key }, effect).upsert(true).session(session).await?;
        Ok(())
    });
    Ok(applied.await?)
}

/// How often the message was delivered before, and whether RabbitMQ counts that.
fn deliveries_before(message: &Delivery) -> (i64, bool) {
    let headers = message.properties.headers().as_ref();
    let counted = headers.and_then(|headers| headers.inner().get("x-delivery-count"));
    let counted = counted.and_then(AMQPValue::as_long_long_int);
    (counted.unwrap_or(0), counted.is_some())
}

/// Counts a failure, and returns how many there have been. Not in the transaction of the effect, which was aborted.
async fn count_failure(db: &Database, id: &str, error: &str) -> Result<i64> {
    let failures = db.collection::<Document>("inbox_failures");
    let failure =
        doc! { "$set": { "at": DateTime::now(), "error": error }, "$inc": { "attempts": 1_i64 } };
    let row = doc! { "_id": { "consumer": CONSUMER, "message": id } };
    let counting = failures.find_one_and_update(row, failure).upsert(true);
    let counted = counting.return_document(ReturnDocument::After).await?;
    Ok(counted.context("an upsert returns the document")?.get_i64("attempts")?)
}

fn text_header(message: &Delivery, name: &str) -> Option<String> {
    match message.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        _ => None,
    }
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
// docs:end consumer-rabbitmq

#[tokio::main]
async fn main() -> Result<()> {
    run().await
}
