//! A consumer of a queue, which records what arrives, in order.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties};
use tokio::task::JoinHandle;

use super::history::{Arrival, content};
use super::outbox::eventually;

/// Consumes one queue, and records what has arrived so far.
pub struct QueueConsumer {
    seen: Arc<Mutex<Vec<Arrival>>>,
    task: JoinHandle<()>,
    _connection: Connection,
}

impl QueueConsumer {
    /// Declares a durable queue and records everything that arrives.
    pub async fn at(uri: &str, queue: &str) -> Self {
        let connection = Connection::connect(uri, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(queue.into(), durable, FieldTable::default()).await.unwrap();
        // No acknowledgements: a consumer that dies ends the test.
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consuming =
            channel.basic_consume(queue.into(), "arrivals".into(), options, FieldTable::default());
        let mut messages = consuming.await.unwrap();
        let seen: Arc<Mutex<Vec<Arrival>>> = Arc::default();
        let book = seen.clone();
        let task = tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                let properties = &message.properties;
                let id = properties.message_id().as_ref().unwrap().to_string();
                let headers = properties.headers().as_ref().unwrap().inner();
                let key = headers.get("message-key").map(|key| match key {
                    AMQPValue::LongString(key) => String::from_utf8_lossy(key.as_bytes()).into(),
                    other => panic!("a key that is no text: {other:?}"),
                });
                book.lock().unwrap().push(Arrival { id, key, content: content(&message.data) });
            }
        });
        Self { seen, task, _connection: connection }
    }

    /// Everything so far, with repetitions.
    pub fn seen(&self) -> Vec<Arrival> {
        self.seen.lock().unwrap().clone()
    }

    /// How many different messages have arrived so far.
    pub fn different(&self) -> usize {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|arrival| arrival.id.as_str()).collect::<HashSet<_>>().len()
    }

    /// Waits until this many different messages have arrived.
    pub async fn until(&self, different: usize) {
        eventually("messages to arrive", || async { self.different() >= different }).await;
    }
}

impl Drop for QueueConsumer {
    fn drop(&mut self) {
        self.task.abort();
    }
}
