//! A RabbitMQ queue for one benchmark, and what arrives there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures_util::StreamExt;
use lapin::options::{
    BasicConsumeOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString};
use lapin::{Channel, Connection, ConnectionProperties};
use tokio::task::JoinHandle;

pub fn amqp_uri() -> String {
    super::variable("POSTRIDER_TEST_AMQP_URI")
}

pub struct Queue {
    pub name: String,
    pub channel: Channel,
    connection: Connection,
}

impl Queue {
    /// Declares a durable queue of this kind, `classic` or `quorum`, and opens a channel with
    /// confirms.
    pub async fn declare(kind: &str) -> Self {
        let name = format!("bench_{kind}_{}", uuid::Uuid::new_v4().simple());
        Self::declare_at(&amqp_uri(), kind, name).await
    }

    /// The same on another broker, under this name.
    pub async fn declare_at(uri: &str, kind: &str, name: String) -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(uri, properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(LongString::from(kind)));
        let durable = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.as_str().into(), durable, arguments).await.unwrap();
        Self { name, channel, connection }
    }

    pub async fn delete(self) {
        let options = QueueDeleteOptions::default();
        self.channel.queue_delete(self.name.as_str().into(), options).await.unwrap();
    }

    /// How many messages wait in it.
    pub async fn messages(&self) -> usize {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let name = self.name.as_str().into();
        let queue = self.channel.queue_declare(name, options, FieldTable::default()).await;
        queue.unwrap().message_count() as usize
    }

    /// Settings of a daemon that sends everything here.
    pub fn settings(&self) -> Vec<String> {
        vec![
            "sinks.rabbit.kind=rabbitmq".into(),
            format!("sinks.rabbit.uri={}", amqp_uri()),
            format!("sinks.rabbit.routing_key={}", self.name),
        ]
    }

    /// Starts to consume.
    pub async fn arrivals(&self) -> Arrivals {
        let channel = self.connection.create_channel().await.unwrap();
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let (queue, tag) = (self.name.as_str().into(), "bench".into());
        let consuming = channel.basic_consume(queue, tag, options, FieldTable::default());
        let mut messages = consuming.await.unwrap();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let noted = seen.clone();
        let task = tokio::spawn(async move {
            // Keeps the channel open while it consumes.
            let _channel = channel;
            while let Some(message) = messages.next().await {
                let message = message.unwrap();
                let id = message.properties.message_id().as_ref().unwrap().to_string();
                noted.lock().unwrap().note(id);
            }
        });
        Arrivals { seen, task }
    }
}

/// What has arrived.
pub struct Arrivals {
    seen: Arc<Mutex<Seen>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Seen {
    first: HashMap<String, Instant>,
    repeated: usize,
}

impl Seen {
    fn note(&mut self, id: String) {
        use std::collections::hash_map::Entry;
        match self.first.entry(id) {
            Entry::Occupied(_) => self.repeated += 1,
            Entry::Vacant(new) => _ = new.insert(Instant::now()),
        }
    }
}

impl Arrivals {
    /// How many different messages have arrived so far.
    pub fn count(&self) -> usize {
        self.seen.lock().unwrap().first.len()
    }

    /// How many messages have arrived again.
    pub fn repeated(&self) -> usize {
        self.seen.lock().unwrap().repeated
    }

    /// When each message arrived first.
    pub fn first(&self) -> HashMap<String, Instant> {
        self.seen.lock().unwrap().first.clone()
    }
}

impl Drop for Arrivals {
    fn drop(&mut self) {
        self.task.abort();
    }
}
