//! Short helpers of the lifecycle tests.

use std::collections::BTreeSet;
use std::time::Duration;

use bson::{Document, doc};
use futures_util::TryStreamExt;

pub use crate::support::command_line::{PLANTED, says, with};
use crate::support::fault_proxy::FaultProxy;
use crate::support::outbox::{TestOutbox, mongodb_uri, record};
use crate::support::process::{Ended, Postrider};
use crate::support::queue::host_of;

/// The limit for a start that fails, or a stop with nothing in flight.
pub const PROMPT_LIMIT: Duration = Duration::from_secs(10);

/// Settings of an outbox behind a proxy.
pub fn mongo_through(proxy: &FaultProxy, database: &str) -> Vec<String> {
    vec![format!("mongo.uri={}&serverSelectionTimeoutMS=500", proxy.mongodb_uri(database))]
}

pub async fn proxy_to_mongodb(state: impl AsyncFnOnce(&str) -> FaultProxy) -> FaultProxy {
    state(&host_of(&mongodb_uri())).await
}

pub async fn ended(settings: &[String]) -> Ended {
    Postrider::start(settings).until_ended(PROMPT_LIMIT).await
}

/// `count` records of some keys, with ids that sort in their order.
pub fn backlog(count: usize, keys: usize) -> Vec<Document> {
    (0..count).map(|n| record(&format!("{n:05}"), &format!("k{}", n % keys))).collect()
}

pub async fn ids(outbox: &TestOutbox, filter: Document) -> BTreeSet<String> {
    let found: Vec<Document> =
        outbox.records().find(filter).await.unwrap().try_collect().await.unwrap();
    found.iter().map(|record| record.get_str("_id").unwrap().to_owned()).collect()
}

pub async fn instances(outbox: &TestOutbox) -> u64 {
    let database = outbox.client.database(&outbox.database);
    let instances = database.collection::<Document>("outbox_instances");
    instances.count_documents(doc! {}).await.unwrap()
}
