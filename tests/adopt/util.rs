//! The source of a test, and what the bridge made of it.

use std::process::Command;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use mongodb::Collection;

use crate::support::environment::unique;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::{Ended, Postrider, command, finish};
use crate::support::queue::mongo_settings;

/// An outbox, and a collection of another one in the same database.
pub struct TestSource {
    pub outbox: TestOutbox,
    pub collection: String,
    pub preset: &'static str,
    pub more: Vec<String>,
}

/// A mapping without a preset: key, type, payload and a status.
pub const SOURCE_FIELDS: [&str; 6] = [
    "adopt.fields.key=k",
    "adopt.fields.type==T",
    "adopt.fields.payload=p",
    "adopt.fields.status=s",
    r#"adopt.fields.undelivered=["new"]"#,
    r#"adopt.fields.delivered=["done"]"#,
];

/// A document of Debezium's router.
pub fn debezium(id: impl Into<Bson>, key: &str) -> Document {
    doc! {
        "_id": id.into(), "aggregatetype": "orders", "aggregateid": key, "type": "Placed",
        "payload": { "a": 1 },
    }
}

impl TestSource {
    pub async fn new(preset: &'static str, more: &[&str]) -> Self {
        Self::of(TestOutbox::new().await, preset, more)
    }

    /// A source with the fields `k`, `p` and `s`, of which `new` and `done` are the statuses.
    pub async fn with_fields(more: &[&str]) -> Self {
        Self::new("fields", &[&SOURCE_FIELDS[..], more].concat()).await
    }

    /// The same as [`new`](Self::new) with an outbox of the caller.
    pub fn of(outbox: TestOutbox, preset: &'static str, more: &[&str]) -> Self {
        let more = more.iter().map(|one| (*one).to_owned()).collect();
        Self { outbox, collection: unique("old_"), preset, more }
    }

    pub fn documents(&self) -> Collection<Document> {
        self.outbox.client.database(&self.outbox.database).collection(&self.collection)
    }

    pub async fn insert(&self, documents: Vec<Document>) {
        self.documents().insert_many(documents).await.unwrap();
    }

    pub fn settings(&self) -> Vec<String> {
        let own = vec![
            format!("adopt.database={}", self.outbox.database),
            format!("adopt.collection={}", self.collection),
            "ops.listen=127.0.0.1:0".to_owned(),
        ];
        [mongo_settings(&self.outbox.database), own, self.more.clone()].concat()
    }

    fn command(&self, more: &[&str]) -> Command {
        let arguments = ["adopt", "--preset", self.preset, "--output", "json"];
        let mut command = command(&[&arguments[..], more].concat());
        for setting in self.settings() {
            command.args(["--set", &setting]);
        }
        command
    }

    /// Starts a bridge that runs on, with these fail points.
    pub fn start(&self, more: &[&str], fail_points: &str) -> Postrider {
        let mut command = self.command(more);
        command.env("FAILPOINTS", fail_points);
        Postrider::of(command)
    }

    /// Starts a bridge that runs on, and waits until it has copied what is there.
    pub async fn receiving(&self, more: &[&str]) -> Postrider {
        let bridge = self.start(&[&["--old-relay-stopped"], more].concat(), "");
        bridge.until_logged("receiving changes of the other outbox").await;
        bridge
    }

    pub async fn adopt(&self, more: &[&str]) -> Ended {
        finish(self.command(more)).await
    }

    pub async fn once(&self) -> serde_json::Value {
        self.adopt(&["--once", "--old-relay-stopped"]).await.with_code(0).json()
    }

    /// The records in the order of their `seq`.
    pub async fn records(&self) -> Vec<Document> {
        let records = self.outbox.admin.collection("outbox_records");
        let found = records.find(doc! {}).sort(doc! { "seq": 1 }).await.unwrap();
        found.try_collect().await.unwrap()
    }

    pub async fn ids(&self) -> Vec<Bson> {
        self.records().await.iter().map(|record| record.get("_id").unwrap().clone()).collect()
    }

    /// Waits until there are this many records, or more.
    pub async fn until_copied(&self, count: usize) {
        eventually("all copies", async || self.records().await.len() >= count).await;
    }

    pub async fn source(&self, id: impl Into<Bson>) -> Document {
        self.documents().find_one(doc! { "_id": id.into() }).await.unwrap().unwrap()
    }
}
