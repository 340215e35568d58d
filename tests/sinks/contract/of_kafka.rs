//! Kafka: a topic of the test's own, by a wire to the binary's broker.

use std::time::Duration;

use postrider::sink::Message;
use postrider::sink::kafka::{Kafka, KafkaSettings};

use crate::contract::harness::{Arrived, Harness};
use crate::support::kafka::topic::Topic;
use crate::support::kafka::wired::Wired;
use crate::support::message::message;

/// The test binary's broker, whose connections to the sink can be hurt.
pub struct Broker {
    wire: Wired,
    /// Of one partition, so that what arrives has one order.
    topic: Topic,
}

impl Harness for Broker {
    type Sink = Kafka;

    const CONNECTS: bool = true;

    async fn new() -> Self {
        let wire = Wired::take().await;
        let topic = wire.topic(1).await;
        Self { wire, topic }
    }

    fn sink(&self, timeout: Duration) -> Kafka {
        let settings = KafkaSettings::new("test", &self.wire.brokers());
        Kafka::new(KafkaSettings { timeout, ..settings }).unwrap()
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
        self.wire.freeze(true);
    }

    async fn thaw(&self) {
        self.wire.freeze(false);
    }

    async fn take_down(&self) {
        self.wire.refuse(true);
        self.wire.cut();
    }

    async fn bring_back(&self) {
        self.wire.refuse(false);
    }

    async fn slow_down(&self, by: Duration) -> bool {
        self.wire.delay(by);
        true
    }
}
