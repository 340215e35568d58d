//! A server without replication has no snapshots: a scan reads twice, and uses what was there both
//! times.

use bson::{Document, Timestamp, doc};

use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::mongod::Mongod;
use crate::support::outbox::{TestOutbox, record};
use crate::support::relay::{settings, start};
use crate::support::sink::TestSink;

struct Standalone {
    outbox: TestOutbox,
    recorder: CommandRecorder,
    _server: Mongod,
}

impl Standalone {
    async fn start() -> Self {
        let server = Mongod::standalone().await;
        let uri = server.uri("", "");
        let outbox = TestOutbox::at(&uri).await;
        let mut recorder = CommandRecorder::at(&uri, &outbox).await;
        recorder.collections = recorder.collections.standalone();
        Self { outbox, recorder, _server: server }
    }

    /// Inserts `earlier` after the first read of a page has returned what is later; returns the
    /// order of delivery.
    async fn order_with(&self, earlier: Document) -> Vec<String> {
        let sink = TestSink::default();
        self.outbox.insert([record("later", "k")]).await;
        let records = self.outbox.records();
        let shows_it = |command: &Command| {
            let cursor = command.answer.get_document("cursor");
            let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
            command.name == "find" && batch.is_ok_and(|batch| !batch.is_empty())
        };
        self.recorder.after(shows_it, || async move {
            records.insert_one(earlier).await.unwrap();
        });

        let relay = start(&self.recorder.collections, sink.clone(), settings());

        self.outbox.until_count(doc! { "status": "done" }, 2).await;
        relay.stop().await;
        sink.ids()
    }
}

fn earlier() -> Document {
    let mut record = record("earlier", "k");
    record.insert("seq", Timestamp { time: 1, increment: 1 });
    record
}

#[fixture::test]
async fn a_record_only_in_the_second_read_ends_its_keys_run() {
    let standalone = Standalone::start().await;

    let order = standalone.order_with(earlier()).await;

    assert_eq!(order, ["earlier", "later"]);
}

#[fixture::test]
async fn unstamped_records_are_read_after_the_first_read() {
    let standalone = Standalone::start().await;
    let mut unstamped = earlier();
    unstamped.remove("partition");

    let order = standalone.order_with(unstamped).await;

    assert_eq!(order, ["earlier", "later"]);
}

/// Its `seq` is new, and an earlier record may have come before it: its run ends there. A document
/// that replaced one since the second read is not leased.
#[fixture::test]
async fn a_replaced_record_is_sent_with_its_new_content_and_in_its_new_place() {
    let standalone = Standalone::start().await;
    let (outbox, sink) = (&standalone.outbox, TestSink::default());
    outbox.insert([record("a", "k"), record("b", "k"), record("c", "l")]).await;
    let replace = |id: &'static str| {
        let records = outbox.records();
        move || async move {
            let key = if id == "a" { "k" } else { "l" };
            let mut again = record(id, key);
            again.insert("payload", "the second one");
            records.replace_one(doc! { "_id": id }, again).await.unwrap();
        }
    };
    let shows_it = |command: &Command| {
        let cursor = command.answer.get_document("cursor");
        let batch = cursor.and_then(|cursor| cursor.get_array("firstBatch"));
        command.name == "find" && batch.is_ok_and(|batch| batch.len() == 3)
    };
    standalone.recorder.after(shows_it, replace("a"));

    let relay = start(&standalone.recorder.collections, sink.clone(), settings());
    outbox.until_count(doc! { "status": "done" }, 3).await;
    relay.stop().await;

    let of = |id: &str| {
        let contents = sink.contents();
        contents.into_iter().filter(|(one, _)| one == id).map(|(_, text)| text).collect::<Vec<_>>()
    };
    assert_eq!(of("a"), ["the second one"]);
    let ids = sink.ids();
    let place = |id: &str| ids.iter().position(|one| one == id).unwrap();
    assert!(place("b") < place("a"), "{ids:?}");
}
