//! Producers in the documentation: what they write is valid, complete, and delivered.

use std::time::Duration;

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use mongodb::change_stream::ChangeStream;
use postrider::schema::{self, SchemaOptions};
use serde_json::Value;

use crate::documentation::doc_page::{Block, blocks};
use crate::documentation::expect_none;
use crate::documentation::program::Program;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::queue::{mongo_settings, stdout_sink};

/// The names of blocks that write records.
pub const PRODUCERS: [&str; 3] = ["producer", "readme-producer", "quickstart-insert"];

#[allow(dead_code, reason = "its main")]
#[path = "../../../examples/producer.rs"]
mod example;

#[fixture::test]
async fn each_producer_writes_a_record_with_its_own_change() {
    let blocks = blocks();
    let is_producer =
        |block: &&Block| matches!(&block.test[..], [name] if PRODUCERS.contains(&name.as_str()));
    let producers: Vec<&Block> = blocks.iter().filter(is_producer).collect();
    assert!(!producers.is_empty());

    let judged = join_all(producers.iter().map(|block| async {
        let outbox = outbox().await;
        let writes = Writes::of(&outbox).await;
        let problem = match Program::of(block, &uri(&outbox)).run().await {
            Err(problem) => Some(problem),
            Ok(()) => match writes.judge().await {
                Err(problem) => Some(problem),
                Ok(()) => judge(&outbox).await.err(),
            },
        };
        problem.map(|problem| format!("{}: this producer {problem}", block.place))
    }));

    expect_none(&judged.await.into_iter().flatten().collect::<Vec<_>>());
}

#[fixture::test]
async fn the_example_in_rust_writes_records_in_both_ways() {
    let outbox = outbox().await;
    let writes = Writes::of(&outbox).await;

    let database = outbox.client.database(&outbox.database);
    example::change_order(&database, "order-7", 1).await.unwrap();
    let mut session = outbox.client.start_session().await.unwrap();
    let writing = session
        .start_transaction()
        .and_run2(async |session| example::by_driver(session, &database).await);
    writing.await.unwrap();

    assert_eq!(outbox.count(doc! {}).await, 2);
    writes.judge().await.unwrap();
    judge(&outbox).await.unwrap();
}

/// An outbox whose collection refuses invalid records, as in production.
async fn outbox() -> TestOutbox {
    let outbox = TestOutbox::new().await;
    outbox.records().drop().await.unwrap();
    schema::apply(&outbox.admin, &SchemaOptions::default()).await.unwrap();
    outbox
}

/// The URI of its database.
pub fn uri(outbox: &TestOutbox) -> String {
    let (server, query) = outbox.uri.split_once('?').unwrap_or((&outbox.uri, ""));
    format!("{}/{}?{query}", server.trim_end_matches('/'), outbox.database)
}

/// The records of a program: valid, and delivered.
async fn judge(outbox: &TestOutbox) -> Result<(), String> {
    let records: Vec<Document> =
        outbox.records().find(doc! {}).await.unwrap().try_collect().await.unwrap();
    if records.is_empty() {
        return Err("writes no record".to_owned());
    }
    for record in &records {
        match record.get("seq") {
            // Of this century.
            Some(Bson::Timestamp(seq)) if seq.time > 1_700_000_000 => {}
            other => {
                return Err(format!(
                    "writes a record whose seq the server did not fill in: {other:?}"
                ));
            }
        }
    }
    let mut postrider =
        Postrider::start(&[mongo_settings(&outbox.database), stdout_sink()].concat());
    let all = records.len() as u64;
    eventually("all records to be done or dead", || async {
        outbox.count(doc! { "status": { "$in": ["done", "dead"] } }).await == all
    })
    .await;
    postrider.stop().await;
    let lines: Vec<Value> =
        postrider.stdout().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for record in &records {
        let kind = record.get_str("type").unwrap();
        let arrived = lines.iter().any(|line| line["type"] == kind && line["key"] == key(record));
        if !arrived {
            let dead = outbox.record(record.get("_id").unwrap().clone()).await;
            return Err(format!("writes a record that does not arrive: {dead}"));
        }
    }
    Ok(())
}

/// The writes to a database, as its change stream reports them.
struct Writes {
    stream: ChangeStream<Document>,
}

impl Writes {
    async fn of(outbox: &TestOutbox) -> Self {
        let database = outbox.client.database(&outbox.database);
        Self { stream: database.watch().await.unwrap().with_type() }
    }

    /// The first record must have been written in one transaction with another document.
    async fn judge(mut self) -> Result<(), String> {
        let (mut record, mut others) = (None, Vec::new());
        while record.is_none() || !others.contains(&record) {
            let next = tokio::time::timeout(Duration::from_secs(10), self.stream.try_next());
            let event = match (next.await, &record) {
                (Ok(event), _) => event.unwrap().unwrap(),
                (Err(_), None) => return Err("writes no record".to_owned()),
                (Err(_), Some(_)) => {
                    return Err("writes nothing else in its record's transaction".to_owned());
                }
            };
            // Outside of transactions there is neither.
            let transaction = Some((event.get("lsid").cloned(), event.get("txnNumber").cloned()))
                .filter(|(_, number)| number.is_some());
            let collection = event.get_document("ns").unwrap().get_str("coll").unwrap();
            match collection {
                "outbox_records" if transaction.is_none() => {
                    return Err("writes its record in no transaction".to_owned());
                }
                "outbox_records" => record = record.or(transaction),
                _ => others.push(transaction),
            }
        }
        Ok(())
    }
}

fn key(record: &Document) -> Value {
    record.get_str("key").map_or(Value::Null, Value::from)
}
