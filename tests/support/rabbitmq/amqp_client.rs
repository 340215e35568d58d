//! A test's own connection to a broker, for declarations and reads.

use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicGetOptions, BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions,
    ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};

/// A connection to the broker, and a channel on it.
pub struct AmqpClient {
    // The channel ends with it.
    _connection: Connection,
    channel: Channel,
}

impl AmqpClient {
    pub async fn on(uri: &str) -> Self {
        let connection = Connection::connect(uri, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        Self { _connection: connection, channel }
    }

    /// Declares a durable classic queue.
    pub async fn classic(&self, name: &str) {
        self.queue(name, &[]).await;
    }

    /// Declares a quorum queue with one member on one node.
    pub async fn quorum(&self, name: &str) {
        self.queue(name, &[("x-queue-type", text("quorum"))]).await;
    }

    /// Declares a durable queue with arguments.
    pub async fn queue(&self, name: &str, arguments: &[(&str, AMQPValue)]) {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        let mut table = FieldTable::default();
        for (name, value) in arguments {
            table.insert((*name).into(), value.clone());
        }
        self.channel.queue_declare(name.into(), options, table).await.unwrap();
    }

    /// Declares a durable topic exchange.
    pub async fn topic(&self, name: &str) {
        self.topic_with(name, ExchangeDeclareOptions::default()).await;
    }

    /// Declares a durable topic exchange to which only other exchanges may publish.
    pub async fn internal(&self, name: &str) {
        self.topic_with(name, ExchangeDeclareOptions { internal: true, ..Default::default() })
            .await;
    }

    async fn topic_with(&self, name: &str, options: ExchangeDeclareOptions) {
        let options = ExchangeDeclareOptions { durable: true, ..options };
        let (kind, table) = (ExchangeKind::Topic, FieldTable::default());
        self.channel.exchange_declare(name.into(), kind, options, table).await.unwrap();
    }

    pub async fn bind(&self, queue: &str, exchange: &str, key: &str) {
        let (options, table) = (QueueBindOptions::default(), FieldTable::default());
        let binding = (queue.into(), exchange.into(), key.into());
        self.channel.queue_bind(binding.0, binding.1, binding.2, options, table).await.unwrap();
    }

    pub async fn unbind(&self, queue: &str, exchange: &str, key: &str) {
        let (queue, exchange, key) = (queue.into(), exchange.into(), key.into());
        self.channel.queue_unbind(queue, exchange, key, FieldTable::default()).await.unwrap();
    }

    pub async fn delete_exchange(&self, name: &str) {
        let options = ExchangeDeleteOptions::default();
        self.channel.exchange_delete(name.into(), options).await.unwrap();
    }

    pub async fn delete_queue(&self, name: &str) {
        self.channel.queue_delete(name.into(), QueueDeleteOptions::default()).await.unwrap();
    }

    /// Publishes a message as a relay does, with its id and key, and waits for the confirm.
    pub async fn publish(
        &self,
        exchange: &str,
        routing_key: &str,
        (id, key): (&str, Option<&str>),
        body: &[u8],
    ) {
        let mut headers = FieldTable::default();
        if let Some(key) = key {
            headers.insert("message-key".into(), text(key));
        }
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(id.into())
            .with_headers(headers);
        self.channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        let (exchange, routing_key) = (exchange.into(), routing_key.into());
        let options = BasicPublishOptions::default();
        let sending = self.channel.basic_publish(exchange, routing_key, options, body, properties);
        sending.await.unwrap().await.unwrap();
    }

    /// Takes the next message from the queue, if there is one now.
    pub async fn take(&self, queue: &str) -> Option<BasicGetMessage> {
        self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
    }

    /// Takes everything from the queue that is there now.
    pub async fn take_all(&self, queue: &str) -> Vec<BasicGetMessage> {
        let mut found = Vec::new();
        while let Some(message) = self.take(queue).await {
            found.push(message);
        }
        found
    }

    /// The same; the messages' ids in order.
    pub async fn take_ids(&self, queue: &str) -> Vec<String> {
        self.take_all(queue).await.iter().map(id).collect()
    }
}

/// A message's id.
pub fn id(message: &BasicGetMessage) -> String {
    message.delivery.properties.message_id().as_ref().unwrap().to_string()
}

/// An argument that is text.
pub fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}
