//! A Kafka topic for one benchmark.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};

pub const PARTITIONS: i32 = 12;

pub const BROKER_TIMEOUT: Duration = Duration::from_secs(30);

pub fn brokers() -> String {
    super::variable("POSTRIDER_TEST_KAFKA_BROKERS")
}

pub struct Topic {
    pub name: String,
    consumer: BaseConsumer,
}

impl Topic {
    pub async fn make() -> Self {
        let name = format!("bench-{}", uuid::Uuid::new_v4().simple());
        let new = NewTopic::new(&name, PARTITIONS, TopicReplication::Fixed(1));
        let made = admin().create_topics([&new], &AdminOptions::new()).await.unwrap();
        made.into_iter().for_each(|made| drop(made.unwrap()));
        let consumer = ClientConfig::new().set("bootstrap.servers", brokers()).create().unwrap();
        Self { name, consumer }
    }

    pub async fn delete(self) {
        admin().delete_topics(&[&self.name], &AdminOptions::new()).await.unwrap();
    }

    /// How many messages are in it.
    pub async fn messages(&self) -> usize {
        let ends = (0..PARTITIONS).map(|partition| {
            let marks = self.consumer.fetch_watermarks(&self.name, partition, BROKER_TIMEOUT);
            // A new partition has no leader yet.
            marks.map_or(0, |(_, end)| usize::try_from(end).unwrap())
        });
        tokio::task::block_in_place(|| ends.sum())
    }

    /// Settings of a daemon that sends everything here; with the properties of librdkafka in
    /// `POSTRIDER_BENCH_KAFKA` (`linger.ms=5,max.in.flight=1`).
    pub fn settings(&self) -> Vec<String> {
        let properties = std::env::var("POSTRIDER_BENCH_KAFKA").unwrap_or_default();
        let properties = properties.split(',').filter_map(|property| property.split_once('='));
        let properties =
            properties.map(|(name, value)| format!("sinks.stream.properties.\"{name}\"={value}"));
        let own = [
            "sinks.stream.kind=kafka".into(),
            format!("sinks.stream.brokers={}", brokers()),
            format!("sinks.stream.topic={}", self.name),
        ];
        own.into_iter().chain(properties).collect()
    }
}

fn admin() -> AdminClient<DefaultClientContext> {
    ClientConfig::new().set("bootstrap.servers", brokers()).create().unwrap()
}
