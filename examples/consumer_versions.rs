//! A consumer of appended events, from a RabbitMQ queue, which needs no inbox: the state itself says which event is next:
//! `MONGODB_URI=…/shop AMQP_URI=… QUEUE=… cargo run --example consumer_versions`.
//!
//! The queue must have all events of an aggregate, from its first one. It ends with an error when a server is not
//! available; what was not acknowledged comes again.

// docs:begin consumer-versions
use std::time::Duration;

use anyhow::{Context as _, Result};
use bson::{DateTime, Document, doc};
use futures_util::StreamExt as _;
use lapin::message::Delivery;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, BasicRejectOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::options::ReturnDocument;
use mongodb::{Client, Database};

/// How often a message may be early or fail before it leaves the queue.
const MAX_ATTEMPTS: i64 = 5;

/// The time from a failure to the next attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// The place of an event in its aggregate. All events of an append have the same version.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
struct Place {
    version: i64,
    index: i64,
}

/// What a message is to the state.
#[derive(Debug)]
enum Turn {
    /// It was applied before.
    Past,
    /// It is the next one.
    Next,
    /// A message before it is missing.
    Early,
}

/// Consumes until an error. The first one of MongoDB or RabbitMQ ends the program.
pub async fn run() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let client = Client::with_uri_str(variable("MONGODB_URI")?).await?;
    let db = client
        .default_database()
        .context("MONGODB_URI: add a database: mongodb://host/database")?;
    let connection =
        Connection::connect(&variable("AMQP_URI")?, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(1, BasicQosOptions::default()).await?;
    let queue = variable("QUEUE")?;
    let options = BasicConsumeOptions::default();
    let consuming =
        channel.basic_consume(queue.into(), "states".into(), options, FieldTable::default());
    let mut messages = consuming.await?;
    while let Some(message) = messages.next().await {
        handle(&db, &message?).await?;
    }
    anyhow::bail!("RabbitMQ has ended the consumer")
}

/// Applies a message that is the next one, and acknowledges it; rejects one that stays early.
async fn handle(db: &Database, message: &Delivery) -> Result<()> {
    let id = message.properties.message_id().as_ref().map(ToString::to_string);
    let Some(id) = id.filter(|id| !id.is_empty()) else {
        // It is not a message of Postrider.
        message.reject(BasicRejectOptions { requeue: false }).await?;
        return Ok(());
    };
    // Deliveries without an answer: the message may be what kills this program. Quorum queues count them.
    let deliveries = integer_header(message, "x-delivery-count");
    let mut attempts = deliveries.unwrap_or(0);
    if message.redelivered && deliveries.is_none() {
        attempts = count_failure(db, &id, "it was delivered before").await?;
    }
    while attempts < MAX_ATTEMPTS {
        let failure = match apply(db, message).await {
            Ok(turn @ (Turn::Past | Turn::Next)) => {
                if let Turn::Past = turn {
                    println!("{id} again");
                }
                message.ack(BasicAckOptions::default()).await?;
                return Ok(());
            }
            Ok(Turn::Early) => "an event before it is missing".to_owned(),
            Err(error) => match error.downcast::<mongodb::error::Error>() {
                // Another consumer has changed the state: look again.
                Ok(error) if is_duplicate(&error) => continue,
                // Not the message's fault: it comes again when this program runs again.
                Ok(error) => return Err(error.into()),
                Err(error) => format!("{error:#}"),
            },
        };
        attempts = deliveries.unwrap_or(0) + count_failure(db, &id, &failure).await?;
        eprintln!("{id} failed, attempt {attempts} of {MAX_ATTEMPTS}: {failure}");
        // Here, and not by the queue: it may put the message behind later ones of its aggregate.
        tokio::time::sleep(RETRY_PAUSE).await;
    }
    // If it is published again, it has all its attempts again.
    let row = doc! { "_id": { "consumer": "states", "message": &id } };
    db.collection::<Document>("inbox_failures").delete_one(row).await?;
    // Without requeue it goes to the dead-letter exchange of the queue.
    message.reject(BasicRejectOptions { requeue: false }).await?;
    Ok(())
}

/// Changes the state of the aggregate if the event is the next one, in one write that names the place before.
async fn apply(db: &Database, message: &Delivery) -> Result<Turn> {
    // Messages of earlier releases have the aggregate in the key only, and no count.
    let id = text_header(message, "aggregate-id").or_else(|| text_header(message, "message-key"));
    let id = id.context("a message without an aggregate")?;
    let version = integer_header(message, "aggregate-version").context("no aggregate-version")?;
    let index = integer_header(message, "event-index").context("no event-index")?;
    let count = integer_header(message, "event-count");
    let name = message.properties.kind().as_ref().map(ToString::to_string);

    let states = db.collection::<Document>("states");
    let state = states.find_one(doc! { "_id": &id }).await?;
    let turn = turn(state.as_ref(), Place { version, index })?;
    if let Turn::Next = turn {
        // Null matches the absence of a field, so that the first event creates the state.
        let last = |field| state.as_ref().and_then(|state| state.get(field).cloned());
        let before = doc! { "_id": &id, "version": last("version"), "index": last("index") };
        // The effect and the place are in one document, so they need no transaction.
        let place = doc! { "version": version, "index": index, "count": count };
        let effect = doc! { "$set": place, "$push": { "events": name } };
        // Where another consumer was first, it matches nothing, and the insertion fails with error 11000.
        states.update_one(before, effect).upsert(true).await?;
    }
    Ok(turn)
}

/// Compares an event with the state: pairs, since events of one append share a version.
fn turn(state: Option<&Document>, event: Place) -> Result<Turn> {
    let Some(state) = state else {
        let is_first = event == Place { version: 1, index: 0 };
        return Ok(if is_first { Turn::Next } else { Turn::Early });
    };
    let last = Place { version: state.get_i64("version")?, index: state.get_i64("index")? };
    // Without a count it does not show whether its version is complete; the order of the messages is the guard then.
    let is_complete = state.get_i64("count").map_or(true, |count| last.index + 1 == count);
    let follows_within = event.version == last.version && event.index == last.index + 1;
    let follows_append = event.version == last.version + 1 && event.index == 0 && is_complete;
    Ok(if event <= last {
        Turn::Past
    } else if follows_within || follows_append {
        Turn::Next
    } else {
        Turn::Early
    })
}

/// Counts a failure, and returns how many there have been.
async fn count_failure(db: &Database, id: &str, failure: &str) -> Result<i64> {
    let failures = db.collection::<Document>("inbox_failures");
    let change =
        doc! { "$set": { "at": DateTime::now(), "error": failure }, "$inc": { "attempts": 1_i64 } };
    let row = doc! { "_id": { "consumer": "states", "message": id } };
    let counting = failures.find_one_and_update(row, change).upsert(true);
    let counted = counting.return_document(ReturnDocument::After).await?;
    Ok(counted.context("an upsert returns the document")?.get_i64("attempts")?)
}

/// Error 11000: a unique index has this value already.
fn is_duplicate(error: &mongodb::error::Error) -> bool {
    let ErrorKind::Write(WriteFailure::WriteError(write)) = &*error.kind else { return false };
    write.code == 11000
}

fn header<'a>(message: &'a Delivery, name: &str) -> Option<&'a AMQPValue> {
    message.properties.headers().as_ref()?.inner().get(name)
}

fn text_header(message: &Delivery, name: &str) -> Option<String> {
    match header(message, name)? {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok(),
        _ => None,
    }
}

fn integer_header(message: &Delivery, name: &str) -> Option<i64> {
    match header(message, name)? {
        AMQPValue::LongInt(number) => Some((*number).into()),
        AMQPValue::LongLongInt(number) => Some(*number),
        _ => None,
    }
}
// docs:end consumer-versions

#[tokio::main]
async fn main() -> Result<()> {
    run().await
}
