//! One outbox with both brokers.

use std::path::Path;

use bson::{Document, doc};
use tempfile::NamedTempFile;

use crate::support::kafka;
use crate::support::outbox::{TestOutbox, mongodb_uri};
use crate::support::process::Postrider;
use crate::support::rabbitmq::amqp_client::AmqpClient;
use crate::support::rabbitmq::vhost::Vhost;

/// An outbox, and a queue and topics for one test.
pub struct Brokers {
    pub outbox: TestOutbox,
    pub vhost: Vhost,
    pub amqp: AmqpClient,
    file: Option<NamedTempFile>,
}

impl Brokers {
    pub async fn new() -> Self {
        let outbox = TestOutbox::new().await;
        let vhost = Vhost::new().await;
        let amqp = vhost.amqp_client().await;
        Self { outbox, vhost, amqp, file: None }
    }

    /// Starts the process with the sinks `rabbit` and `kafka`, and more configuration in TOML, in
    /// which `[sinks.…]` tables come last.
    pub async fn start(&mut self, more: &str) -> Postrider {
        let file = self.configuration(more);
        let postrider = Postrider::start_with_file(file);
        postrider.until_ready().await;
        postrider
    }

    fn configuration(&mut self, more: &str) -> &Path {
        let file = NamedTempFile::new().unwrap();
        let text = format!(
            "{more}\n\
             [mongo]\nuri = {:?}\ndatabase = {:?}\n\
             [sinks.rabbit]\nkind = \"rabbitmq\"\nuri = {:?}\n\
             [sinks.kafka]\nkind = \"kafka\"\nbrokers = {:?}\n",
            mongodb_uri(),
            self.outbox.database,
            self.vhost.uri(),
            kafka::brokers(),
        );
        std::fs::write(file.path(), text).unwrap();
        self.file.insert(file).path()
    }

    /// Waits until this many records are done.
    pub async fn until_done(&self, count: u64) {
        self.outbox.until_count(doc! { "status": "done" }, count).await;
    }
}

/// A record of this type and key, with more fields.
pub fn record(id: &str, kind: &str, key: &str, more: Document) -> Document {
    let mut record = crate::support::outbox::record(id, key);
    record.insert("type", kind);
    record.extend(more);
    record
}
