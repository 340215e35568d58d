//! A queue for one test on the test run's RabbitMQ.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, ConnectionProperties};

use super::cleanup::Cleanup;
use super::environment::{unique, variable};
use super::outbox::{TestOutbox, mongodb_uri};

/// The variable with the URI of the test run's RabbitMQ.
const URI: &str = "POSTRIDER_TEST_AMQP_URI";

/// The RabbitMQ of this test run.
pub fn amqp_uri() -> String {
    variable(URI)
}

/// `mongo.uri` and `mongo.database` for this outbox.
pub fn mongo_settings(database: &str) -> Vec<String> {
    vec![
        format!("mongo.uri={}", mongodb_uri()),
        format!("mongo.database={database}"),
        // A process that follows a killed one must not wait for the default times.
        "partitions.heartbeat=500ms".to_owned(),
        "partitions.stale_after=3s".to_owned(),
        "partitions.rebalance=500ms".to_owned(),
    ]
}

/// Settings of a relay whose heartbeats a busy machine may delay for long. Otherwise it gives its partitions up, takes them
/// again, and then knows nothing of what was refused before.
pub fn patient_settings() -> Vec<String> {
    ["partitions.heartbeat=20s", "partitions.stale_after=60s"].map(str::to_owned).to_vec()
}

/// A queue with a name of its own. It is removed when the test passes.
pub struct Queue {
    pub name: String,
    _cleanup: Cleanup,
    channel: Channel,
    _connection: Connection,
}

impl Queue {
    /// Declares it.
    pub async fn declare() -> Self {
        let properties = ConnectionProperties::default();
        let connection = Connection::connect(&amqp_uri(), properties).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let name = unique("test_");
        let options = QueueDeclareOptions::default();
        channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await.unwrap();
        let (own, deleting) = (name.clone(), channel.clone());
        let _cleanup = Cleanup::new(async move || {
            let options = QueueDeleteOptions::default();
            deleting.queue_delete(own.as_str().into(), options).await.unwrap();
        });
        Self { name, _cleanup, channel, _connection: connection }
    }

    /// Settings of a relay from this outbox to this queue, by the sink `rabbit`.
    pub fn settings(&self, outbox: &TestOutbox) -> Vec<String> {
        self.settings_at(outbox, &amqp_uri())
    }

    /// The same through another address of the broker.
    pub fn settings_at(&self, outbox: &TestOutbox, uri: &str) -> Vec<String> {
        [mongo_settings(&outbox.database), self.sink(uri)].concat()
    }

    /// The settings of the sink alone.
    pub fn sink(&self, uri: &str) -> Vec<String> {
        vec![
            "sinks.rabbit.kind=rabbitmq".into(),
            format!("sinks.rabbit.uri={uri}"),
            format!("sinks.rabbit.routing_key={}", self.name),
        ]
    }

    /// Consumes until this many different ids have arrived; returns the ids, with repetitions.
    pub async fn ids(&self, different: usize) -> Vec<String> {
        let is_enough = |ids: &[String]| ids.iter().collect::<BTreeSet<_>>().len() >= different;
        self.take(&format!("{different} different ids"), is_enough).await
    }

    /// Consumes this many messages; returns their ids, with repetitions.
    pub async fn arrivals(&self, count: usize) -> Vec<String> {
        self.take(&format!("{count} messages"), |ids| ids.len() >= count).await
    }

    async fn take(&self, what: &str, is_enough: impl Fn(&[String]) -> bool) -> Vec<String> {
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let (queue, tag) = (self.name.as_str().into(), "test".into());
        let consuming = self.channel.basic_consume(queue, tag, options, FieldTable::default());
        let mut messages = consuming.await.unwrap();
        let mut ids: Vec<String> = Vec::new();
        while !is_enough(&ids) {
            let next = tokio::time::timeout(Duration::from_secs(30), messages.next()).await;
            let next = next.unwrap_or_else(|_| panic!("waited for {what}; {} came", ids.len()));
            let message = next.unwrap().unwrap();
            ids.push(message.properties.message_id().as_ref().unwrap().to_string());
        }
        ids
    }
}

/// Settings of a relay from this outbox to standard output.
pub fn stdout_settings(outbox: &TestOutbox) -> Vec<String> {
    [mongo_settings(&outbox.database), stdout_sink()].concat()
}

/// Standard output as a sink, for tests without RabbitMQ.
pub fn stdout_sink() -> Vec<String> {
    vec!["sinks.out.kind=stdout".to_owned()]
}

/// `127.0.0.1:port` of an `amqp://` or `mongodb://` URI with one host.
pub fn host_of(uri: &str) -> String {
    let rest = uri.split_once("://").unwrap().1;
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    rest.split(['/', '?']).next().unwrap().to_owned()
}

/// The test run's AMQP URI with another host.
pub fn amqp_uri_at(host: &str) -> String {
    let uri = amqp_uri();
    uri.replace(&host_of(&uri), host)
}
