//! A topic for one test, and what has arrived there.

use super::super::environment::unique;
use std::collections::HashSet;
use std::time::{Duration, Instant};

use rdkafka::ClientConfig;
use rdkafka::admin::{
    AdminClient, AdminOptions, AlterConfig, NewTopic, ResourceSpecifier, TopicReplication,
};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::metadata::MetadataPartition;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use rdkafka::types::RDKafkaErrorCode;

use super::record::Record;
use crate::support::cleanup::Cleanup;
use crate::support::outbox::eventually;

/// The limit for one operation of a healthy broker.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(30);

/// A topic with a unique name.
pub struct Topic {
    pub name: String,
    brokers: String,
    partitions: i32,
    _cleanup: Cleanup,
}

impl Topic {
    /// A topic on the shared broker. It is deleted when the test passes.
    pub async fn new(partitions: i32) -> Self {
        Self::with(partitions, &[]).await
    }

    /// The same with properties of its own, such as `max.message.bytes`.
    pub async fn with(partitions: i32, properties: &[(&str, &str)]) -> Self {
        Self::on(&super::brokers(), partitions, properties).await.deleted_when_dropped()
    }

    /// The same on another broker, on a listener without a login; there it stays.
    pub async fn on(brokers: &str, partitions: i32, properties: &[(&str, &str)]) -> Self {
        let name = unique("test-");
        Self::named(brokers, &name, partitions, properties).await
    }

    /// A topic whose name the test has chosen; it must not exist.
    pub async fn named(
        brokers: &str,
        name: &str,
        partitions: i32,
        properties: &[(&str, &str)],
    ) -> Self {
        let topic = Self {
            name: name.to_owned(),
            brokers: brokers.to_owned(),
            partitions,
            _cleanup: Cleanup::none(),
        };
        topic.make(NewTopic::new(name, partitions, TopicReplication::Fixed(1)), properties).await;
        topic
    }

    /// A topic with a partition on each of these nodes, by its number, and no second replica.
    pub async fn spread(brokers: &str, nodes: &[i32]) -> Self {
        let name = unique("test-");
        let replicas: Vec<&[i32]> = nodes.iter().map(std::slice::from_ref).collect();
        Self::assigned(brokers, &name, &replicas, &[]).await
    }

    /// A topic with a single partition, and a replica of it on each of these nodes: the first one
    /// leads.
    pub async fn replicated(brokers: &str, nodes: &[i32], properties: &[(&str, &str)]) -> Self {
        let name = unique("test-");
        Self::assigned(brokers, &name, &[nodes], properties).await
    }

    /// A topic of a chosen name. Each partition has its replicas on these nodes, of which one must
    /// run.
    pub async fn assigned(
        brokers: &str,
        name: &str,
        replicas: &[&[i32]],
        properties: &[(&str, &str)],
    ) -> Self {
        let partitions = i32::try_from(replicas.len()).unwrap();
        let topic = Self {
            name: name.to_owned(),
            brokers: brokers.to_owned(),
            partitions,
            _cleanup: Cleanup::none(),
        };
        let replicas = TopicReplication::Variable(replicas);
        topic.make(NewTopic::new(name, partitions, replicas), properties).await;
        topic
    }

    async fn make(&self, new: NewTopic<'_>, properties: &[(&str, &str)]) {
        // Tests' messages have times of long ago, for which Kafka would delete them within seconds.
        let new = new.set("retention.ms", "-1");
        let new = properties.iter().fold(new, |new, (name, value)| new.set(name, value));
        let made = self.admin().create_topics([&new], &patiently()).await.unwrap();
        made.into_iter().for_each(|made| assert!(made.is_ok(), "{made:?}"));
        self.until_led().await;
    }

    /// A topic on the shared broker that already exists.
    pub fn existing(name: &str, partitions: i32) -> Self {
        Self::existing_on(&super::brokers(), name, partitions)
    }

    /// The same on another broker.
    pub fn existing_on(brokers: &str, name: &str, partitions: i32) -> Self {
        Self {
            name: name.to_owned(),
            brokers: brokers.to_owned(),
            partitions,
            _cleanup: Cleanup::none(),
        }
    }

    /// Everything that is there at the call, in order within each partition, partition by
    /// partition.
    pub async fn read(&self) -> Vec<Record> {
        let consumer: BaseConsumer = self
            .config()
            // Required by librdkafka; a consumer that assigns partitions itself joins no group.
            .set("group.id", "nobody")
            .set("enable.partition.eof", "true")
            .set("enable.auto.commit", "false")
            .set("isolation.level", "read_uncommitted")
            // Otherwise the end of the partition is reported half a second late.
            .set("fetch.wait.max.ms", "10")
            .create()
            .unwrap();
        let (name, partitions) = (self.name.clone(), self.partitions);
        let reading = move || read(&consumer, &name, partitions);
        tokio::task::spawn_blocking(reading).await.unwrap()
    }

    /// The same; the messages' ids.
    pub async fn read_ids(&self) -> Vec<String> {
        self.read().await.iter().map(|record| record.id().to_owned()).collect()
    }

    /// Waits until this many records are there, with repetitions.
    pub async fn until(&self, count: usize) -> Vec<Record> {
        let found = std::sync::Mutex::new(Vec::new());
        eventually(&format!("{count} records in {}", self.name), || async {
            let read = self.read().await;
            let enough = read.len() >= count;
            *found.lock().unwrap() = read;
            enough
        })
        .await;
        found.into_inner().unwrap()
    }

    /// The same topic, deleted when the test passes, unless the test itself deletes it.
    pub fn deleted_when_dropped(self) -> Self {
        let own = Self::existing_on(&self.brokers, &self.name, self.partitions);
        let _cleanup = Cleanup::new(async move || match own.try_delete().await {
            Ok(()) | Err(RDKafkaErrorCode::UnknownTopicOrPartition) => {}
            Err(error) => panic!("{}: {error}", own.name),
        });
        Self { _cleanup, ..self }
    }

    /// Deletes it while the test continues. A broker may accept records for a moment after the answer, so this
    /// waits for its end there too.
    pub async fn delete(&self) {
        self.try_delete().await.unwrap();
        self.until_partitions("its end", <[_]>::is_empty).await;
    }

    async fn try_delete(&self) -> Result<(), RDKafkaErrorCode> {
        let deleted = self.admin().delete_topics(&[&self.name], &patiently()).await.unwrap();
        deleted.into_iter().try_for_each(|topic| topic.map(|_| ()).map_err(|(_, error)| error))
    }

    /// Sets this property, and resets all others but the retention to the defaults.
    pub async fn alter(&self, name: &str, value: &str) {
        let alter = AlterConfig::new(ResourceSpecifier::Topic(&self.name));
        let alter = alter.set("retention.ms", "-1").set(name, value);
        let altered = self.admin().alter_configs(&[alter], &patiently()).await.unwrap();
        altered.into_iter().for_each(|altered| assert!(altered.is_ok(), "{altered:?}"));
    }

    /// Waits until each partition has this many replicas in sync.
    pub async fn until_in_sync(&self, replicas: usize) {
        let has = move |partition: &MetadataPartition| partition.isr().len() == replicas;
        self.until_partitions("replicas in sync", all(has)).await;
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.brokers);
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().unwrap()
    }

    /// A topic exists before its partitions have a leader.
    async fn until_led(&self) {
        let is_led = |one: &MetadataPartition| one.error().is_none() && one.leader() > 0;
        self.until_partitions("leaders", all(is_led)).await;
    }

    /// Waits until the partitions are as they should be. The request comes from a consumer: a producer
    /// would create the topic where the broker permits that.
    async fn until_partitions(
        &self,
        what: &'static str,
        are_right: impl Fn(&[MetadataPartition]) -> bool + Send + 'static,
    ) {
        let consumer: BaseConsumer = self.config().create().unwrap();
        let name = self.name.clone();
        let looking = move || {
            let deadline = Instant::now() + OPERATION_TIMEOUT;
            loop {
                let metadata = consumer.fetch_metadata(Some(&name), OPERATION_TIMEOUT).unwrap();
                let topic = metadata.topics().iter().find(|topic| topic.name() == name).unwrap();
                if are_right(topic.partitions()) {
                    return;
                }
                assert!(Instant::now() < deadline, "{name}: waited for {what}");
                std::thread::sleep(Duration::from_millis(10));
            }
        };
        tokio::task::spawn_blocking(looking).await.unwrap();
    }
}

/// There are partitions, and each is right.
fn all(is_right: impl Fn(&MetadataPartition) -> bool) -> impl Fn(&[MetadataPartition]) -> bool {
    move |partitions| !partitions.is_empty() && partitions.iter().all(&is_right)
}

fn patiently() -> AdminOptions {
    AdminOptions::new()
        .operation_timeout(Some(OPERATION_TIMEOUT))
        .request_timeout(Some(OPERATION_TIMEOUT))
}

/// A fetch returns what is there when it reaches the broker, so the end that it reports is not
/// before the end at the call.
fn read(consumer: &BaseConsumer, topic: &str, partitions: i32) -> Vec<Record> {
    let mut assignment = TopicPartitionList::new();
    for partition in 0..partitions {
        assignment.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
    }
    consumer.assign(&assignment).unwrap();
    let mut found = Vec::new();
    let mut unread: HashSet<i32> = (0..partitions).collect();
    let deadline = Instant::now() + OPERATION_TIMEOUT;
    while !unread.is_empty() {
        assert!(Instant::now() < deadline, "{topic}: partitions never read to the end: {unread:?}");
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(message)) => found.push(Record::of(&message)),
            Some(Err(KafkaError::PartitionEOF(partition))) => _ = unread.remove(&partition),
            // A connection that ended: librdkafka opens another.
            None | Some(Err(KafkaError::MessageConsumption(_))) => {}
            Some(Err(error)) => panic!("{topic}: {error}"),
        }
    }
    found.sort_by_key(|record| (record.partition, record.offset));
    found
}
