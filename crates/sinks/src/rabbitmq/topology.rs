//! Creates the exchanges, queues and bindings that an operator declared, if they are absent. Existing ones are
//! never altered.
//!
//! They are looked up passively first: an active declaration that differs from the existing one in an argument
//! is an error, and closes the channel.

use lapin::options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{Channel, ExchangeKind};
use postrider_outbox::ids::SinkName;
use postrider_relay::sink::SinkDown;
use toml::{Table, Value};
use tracing::info;

use crate::rabbitmq::broker_error::{self, NOT_FOUND};
use crate::rabbitmq::config::{Binding, DeclaredTopology, Exchange, Queue, QueueKind};
use crate::rabbitmq::control_connection::ControlConnection;

/// Creates what is absent, on channels of its own. (The configuration is validated: each name fits AMQP.)
///
/// # Errors
///
/// The first that cannot be created, and the broker's reply.
pub(super) async fn declare(
    control: &ControlConnection,
    sink: &SinkName,
    declared: &DeclaredTopology,
) -> Result<(), SinkDown> {
    for exchange in &declared.exchanges {
        if create_exchange(control, exchange).await? {
            info!(%sink, exchange = exchange.name, "created an exchange");
        }
    }
    for queue in &declared.queues {
        if create_queue(control, queue).await? {
            info!(%sink, queue = queue.name, "created a queue");
        }
    }
    if declared.bindings.is_empty() {
        return Ok(());
    }
    let channel = control.open_channel().await?;
    for binding in &declared.bindings {
        let Binding { exchange, queue, routing_key, arguments } = binding;
        let (source, key) = (exchange.as_str().into(), routing_key.as_str().into());
        // A repeated declaration has no effect.
        channel
            .queue_bind(
                queue.as_str().into(),
                source,
                key,
                QueueBindOptions::default(),
                table(arguments),
            )
            .await
            .map_err(failed(format!("binding of queue {queue:?} to {exchange:?}")))?;
    }
    // If it cannot be closed, it ends with its connection.
    let _ = channel.close(200, "declared".into()).await;
    Ok(())
}

/// Creates an exchange if it is absent. Returns whether it was.
async fn create_exchange(
    control: &ControlConnection,
    exchange: &Exchange,
) -> Result<bool, SinkDown> {
    let failed = failed(format!("exchange {:?}", exchange.name));
    let name = ShortString::from(exchange.name.as_str());
    let channel = control.open_channel().await?;
    let looked_up = declare_passively(&channel, name.clone()).await;
    if exists(&channel, looked_up).await.map_err(&failed)? {
        return Ok(false);
    }
    let kind = match exchange.kind.as_str() {
        "direct" => ExchangeKind::Direct,
        "fanout" => ExchangeKind::Fanout,
        "topic" => ExchangeKind::Topic,
        "headers" => ExchangeKind::Headers,
        other => ExchangeKind::Custom(other.to_owned()),
    };
    let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
    let channel = control.open_channel().await?;
    let declaring = channel.exchange_declare(name, kind, options, table(&exchange.arguments));
    declaring.await.map_err(&failed)?;
    channel.close(200, "created".into()).await.map_err(&failed)?;
    Ok(true)
}

/// Looks an exchange up. The broker closes the channel if it is missing or hidden.
async fn declare_passively(channel: &Channel, name: ShortString) -> lapin::Result<()> {
    let options = ExchangeDeclareOptions { passive: true, ..Default::default() };
    // The kind is not compared when the declaration is passive.
    channel.exchange_declare(name, ExchangeKind::Direct, options, FieldTable::default()).await
}

/// Creates a queue if it is absent. Returns whether it was.
async fn create_queue(control: &ControlConnection, queue: &Queue) -> Result<bool, SinkDown> {
    let failed = failed(format!("queue {:?}", queue.name));
    let name = ShortString::from(queue.name.as_str());
    let channel = control.open_channel().await?;
    let options = QueueDeclareOptions { passive: true, ..Default::default() };
    let looked_up = channel.queue_declare(name.clone(), options, FieldTable::default()).await;
    if exists(&channel, looked_up.map(drop)).await.map_err(&failed)? {
        return Ok(false);
    }
    let kind = match queue.kind {
        QueueKind::Quorum => "quorum",
        QueueKind::Classic => "classic",
        QueueKind::Stream => "stream",
    };
    let mut arguments = table(&queue.arguments);
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    let options = QueueDeclareOptions { durable: true, ..Default::default() };
    let channel = control.open_channel().await?;
    channel.queue_declare(name, options, arguments).await.map_err(&failed)?;
    channel.close(200, "created".into()).await.map_err(&failed)?;
    Ok(true)
}

/// Reads the result of a passive declaration, and closes its channel, unless the broker has.
async fn exists(channel: &Channel, looked_up: lapin::Result<()>) -> lapin::Result<bool> {
    match looked_up {
        Ok(()) => {
            let _ = channel.close(200, "found".into()).await;
            Ok(true)
        }
        Err(error) => match broker_error::reply(&error) {
            Some((NOT_FOUND, _)) => Ok(false),
            _ => Err(error),
        },
    }
}

fn failed(what: String) -> impl Fn(lapin::Error) -> SinkDown {
    move |error| {
        let text = broker_error::text(&error);
        SinkDown::new(format!("cannot create the declared {what}: {text}"))
    }
}

/// Converts arguments to AMQP's types.
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
