//! Kafka: a topic for one test, through a proxy to the binary's broker.

use std::time::Duration;

use postrider::sink::Message;
use postrider::sink::kafka::{Kafka, KafkaConfig, KafkaSettings};

use crate::contract::harness::{Arrived, Harness};
use crate::support::kafka::proxied::ProxiedBroker;
use crate::support::kafka::topic::Topic;
use crate::support::message::message;

/// The test binary's broker, behind a proxy.
pub struct Broker {
    proxy: ProxiedBroker,
    /// Of one partition, so that what arrives has one order.
    topic: Topic,
}

impl Harness for Broker {
    type Sink = Kafka;

    const CONNECTS: bool = true;

    async fn new() -> Self {
        let proxy = ProxiedBroker::take().await;
        let topic = proxy.topic(1).await;
        Self { proxy, topic }
    }

    fn sink(&self, timeout: Duration) -> Kafka {
        let mut settings = KafkaSettings::new("test", KafkaConfig::at(&self.proxy.brokers()));
        settings.delivery.timeout = timeout;
        Kafka::new(settings).unwrap()
    }

    fn message(&self, id: &str) -> Message {
        message(id, &self.topic.name, "key")
    }

    fn undeliverable(&self, id: &str) -> Option<Message> {
        Some(message(id, "no-such-topic", "key"))
    }

    fn impossible(&self) -> Vec<Message> {
        let long = "x".repeat(250);
        let large = Message { payload: Some(vec![b'x'; 1_000_001]), ..self.message("impossible") };
        let named = |name: &str| message("impossible", name, "key");
        vec![named(""), named(".."), named("a/b"), named(&long), large]
    }

    async fn arrived(&self) -> Vec<Arrived> {
        let records = self.topic.read().await.into_iter();
        let arrived = records.map(|record| Arrived {
            id: record.id().to_owned(),
            payload: record.payload.unwrap_or_default(),
        });
        arrived.collect()
    }

    async fn freeze(&self) {
        self.proxy.freeze();
    }

    async fn thaw(&self) {
        self.proxy.thaw();
    }

    async fn take_down(&self) {
        self.proxy.refuse(true);
        self.proxy.cut();
    }

    async fn bring_back(&self) {
        self.proxy.refuse(false);
    }

    async fn slow_down(&self, by: Duration) -> bool {
        self.proxy.delay(by);
        true
    }
}
