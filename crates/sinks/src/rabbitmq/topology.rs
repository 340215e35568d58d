//! Exchanges, queues and bindings that an operator declared: made where they are absent, and
//! never altered.
//!
//! What is there is looked up passively, and taken as it is: an active declaration of something
//! that differs in one argument would be an error, and close the channel.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Connection, ExchangeKind};
use postrider_outbox::ids::SinkName;
use postrider_relay::sink::SinkDown;
use toml::{Table, Value};
use tracing::info;

use crate::rabbitmq::closure::{self, NOT_FOUND};
use crate::rabbitmq::config::{Declare, Exchange, Queue, QueueKind};

/// Makes what is absent, on channels of its own. (The configuration has seen to it that each
/// name fits AMQP.)
///
/// # Errors
///
/// The first that could not be made, and the broker's words.
pub(super) async fn declare(
    connection: &Connection,
    sink: &SinkName,
    declared: &Declare,
) -> Result<(), SinkDown> {
    for exchange in &declared.exchanges {
        let what = || format!("exchange {:?}", exchange.name);
        if is_there(connection, Find::Exchange(&exchange.name)).await.map_err(failed(what()))? {
            continue;
        }
        make_exchange(connection, exchange).await.map_err(failed(what()))?;
        info!(%sink, exchange = exchange.name, "exchange made");
    }
    for queue in &declared.queues {
        let what = || format!("queue {:?}", queue.name);
        if is_there(connection, Find::Queue(&queue.name)).await.map_err(failed(what()))? {
            continue;
        }
        make_queue(connection, queue).await.map_err(failed(what()))?;
        info!(%sink, queue = queue.name, "queue made");
    }
    let Some(_) = declared.bindings.first() else { return Ok(()) };
    let channel = connection.create_channel().await.map_err(failed("bindings".to_owned()))?;
    for binding in &declared.bindings {
        let what = format!("binding of queue {:?} to {:?}", binding.queue, binding.exchange);
        let (queue, exchange) = (binding.queue.as_str(), binding.exchange.as_str());
        let key = binding.routing_key.as_str();
        // The same binding once more is the same binding.
        let options = QueueBindOptions::default();
        let arguments = table(&binding.arguments);
        channel
            .queue_bind(queue.into(), exchange.into(), key.into(), options, arguments)
            .await
            .map_err(failed(what))?;
    }
    // It goes with its connection, should it not be closed in good order.
    let _ = channel.close(200, "declared".into()).await;
    Ok(())
}

enum Find<'a> {
    Exchange(&'a str),
    Queue(&'a str),
}

async fn is_there(connection: &Connection, find: Find<'_>) -> lapin::Result<bool> {
    // The broker closes it where nothing is found.
    let channel = connection.create_channel().await?;
    let found = match find {
        Find::Exchange(name) => {
            let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
            // The kind is not compared when the declaration is passive.
            let kind = ExchangeKind::Direct;
            channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await
        }
        Find::Queue(name) => {
            let options = QueueDeclareOptions { passive: true, ..Default::default() };
            let found = channel.queue_declare(name.into(), options, FieldTable::default()).await;
            found.map(drop)
        }
    };
    match found {
        Ok(()) => {
            let _ = channel.close(200, "found".into()).await;
            Ok(true)
        }
        Err(error) if closure::broker_said(&error).is_some_and(|(code, _)| code == NOT_FOUND) => {
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

async fn make_exchange(connection: &Connection, exchange: &Exchange) -> lapin::Result<()> {
    let kind = match exchange.kind.as_str() {
        "direct" => ExchangeKind::Direct,
        "fanout" => ExchangeKind::Fanout,
        "topic" => ExchangeKind::Topic,
        "headers" => ExchangeKind::Headers,
        other => ExchangeKind::Custom(other.to_owned()),
    };
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let channel = connection.create_channel().await?;
    let arguments = table(&exchange.arguments);
    channel.exchange_declare(exchange.name.as_str().into(), kind, options, arguments).await?;
    channel.close(200, "made".into()).await
}

async fn make_queue(connection: &Connection, queue: &Queue) -> lapin::Result<()> {
    let kind = match queue.kind {
        QueueKind::Quorum => "quorum",
        QueueKind::Classic => "classic",
        QueueKind::Stream => "stream",
    };
    let mut arguments = table(&queue.arguments);
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let channel = connection.create_channel().await?;
    channel.queue_declare(queue.name.as_str().into(), options, arguments).await?;
    channel.close(200, "made".into()).await
}

fn failed(what: String) -> impl FnOnce(lapin::Error) -> SinkDown {
    move |error| {
        let words = match closure::broker_said(&error) {
            Some((_, words)) => format!("the broker said: {words}"),
            None => error.to_string(),
        };
        SinkDown::new(format!("declared {what} could not be made: {words}"))
    }
}

/// Arguments as AMQP has them.
fn table(arguments: &Table) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(name.as_str().into(), amqp_value(value));
    }
    table
}

fn amqp_value(value: &Value) -> AMQPValue {
    match value {
        Value::String(text) => AMQPValue::LongString(LongString::from(text.as_str())),
        Value::Integer(number) => AMQPValue::LongLongInt(*number),
        Value::Float(number) => AMQPValue::Double(*number),
        Value::Boolean(value) => AMQPValue::Boolean(*value),
        Value::Datetime(time) => AMQPValue::LongString(time.to_string().into()),
        Value::Array(items) => {
            AMQPValue::FieldArray(items.iter().map(amqp_value).collect::<Vec<_>>().into())
        }
        Value::Table(below) => AMQPValue::FieldTable(table(below)),
    }
}
