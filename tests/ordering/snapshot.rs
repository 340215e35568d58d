//! Guard 1: all reads of one scan see one moment.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, Timestamp, doc};
use postrider::ids::RecordId;
use postrider::outbox::collections::Collections;
use postrider::outbox::position::Position;
use postrider::outbox::snapshot::{OutboxSnapshot, ReadLimit, SkippedKeys};

use crate::support::command_recorder::{Command, CommandRecorder};
use crate::support::outbox::{TestOutbox, record, unstamped};
use crate::support::relay::{settings, start};
use crate::support::relay_harness::RelayHarness;
use crate::support::sink::TestSink;

fn concern_of(command: &Command) -> &Document {
    command.sent.get_document("readConcern").expect("a read concern of its own")
}

/// Begins a transaction that has inserted these.
async fn uncommitted(
    outbox: &TestOutbox,
    records: impl IntoIterator<Item = Document>,
) -> mongodb::ClientSession {
    let mut session = outbox.client.start_session().await.unwrap();
    session.start_transaction().await.unwrap();
    outbox.records().insert_many(records).session(&mut session).await.unwrap();
    session
}

/// Records in `lane_idx` order, as the relay reads them.
async fn scan(collections: &Collections) -> Vec<String> {
    let owned: Vec<u8> = (0..=255).collect();
    let room = ReadLimit { records: 1_000_000, bytes: usize::MAX };
    let mut snapshot = OutboxSnapshot::begin(collections).await.unwrap();
    let (mut records, mut next) = (Vec::new(), Some(Position::start()));
    while let Some(from) = next {
        let page = snapshot.page(&from, &owned, &SkippedKeys::default(), room).await.unwrap();
        records.extend(page.records);
        next = page.next;
    }
    let id = |id: RecordId| match id {
        RecordId::String(id) => id,
        other => panic!("{other:?}"),
    };
    records.into_iter().map(|record| id(record.id)).collect()
}

#[fixture::test]
async fn all_reads_of_a_scan_share_one_cluster_time() {
    let outbox = TestOutbox::restricted().await;
    let recorder = CommandRecorder::on(&outbox).await;
    outbox.insert([record("a", "k")]).await;
    let harness = RelayHarness::new(&recorder.collections, TestSink::default(), settings()).await;

    harness.scan().await;

    let finds = recorder.commands("find");
    assert!(finds.len() >= 4, "misplaced records, blocked keys, pages: {finds:?}");
    let first = finds[0].answer.get_document("cursor").unwrap();
    let moment = first.get("atClusterTime").expect("the server names the moment of a snapshot");
    for find in &finds {
        assert_eq!(concern_of(find).get_str("level").unwrap(), "snapshot", "{}", find.sent);
    }
    for find in &finds[1..] {
        assert_eq!(concern_of(find).get("atClusterTime"), Some(moment), "{}", find.sent);
    }
}

/// What a scan reads first may hold back the page that it reads last.
#[fixture::test]
async fn a_record_committed_between_two_reads_is_not_overtaken() {
    let outbox = Arc::new(TestOutbox::restricted().await);
    let recorder = CommandRecorder::on(&outbox).await;
    let sink = TestSink::default();
    let producing = outbox.clone();
    let unstamped = unstamped("1 unstamped", "k");
    let reads_misplaced = |command: &Command| {
        let filter = command.sent.get_document("filter").ok();
        let asks_for_invalid = |of: &Document| of.to_string().contains("$not");
        command.name == "find" && filter.is_some_and(asks_for_invalid)
    };
    recorder.after(reads_misplaced, move || async move {
        let mut session = uncommitted(&producing, [unstamped]).await;
        session.commit_transaction().await.unwrap();
        producing.insert([record("2 stamped", "k")]).await;
    });

    let relay = start(&recorder.collections, sink.clone(), settings());

    outbox.until_count(doc! { "status": "done" }, 2).await;
    assert!(recorder.has_paused());
    assert_eq!(sink.ids(), ["1 unstamped", "2 stamped"]);
    relay.stop().await;
}

/// The first batch of the scan has passed A's place when A commits, and B is inserted.
#[fixture::test]
async fn a_scan_of_several_batches_sees_no_later_insert() {
    let outbox = Arc::new(TestOutbox::restricted().await);
    let recorder = CommandRecorder::on(&outbox).await;
    let mut committing = uncommitted(&outbox, [record("A", "k")]).await;
    let padding = "x".repeat(200_000);
    let between: Vec<String> = (0..150).map(|n| format!("between {n:03}")).collect();
    for some in between.chunks(50) {
        let padded = some.iter().map(|id| {
            let mut padded = record(id, "k");
            padded.insert("xPadding", padding.as_str());
            padded
        });
        outbox.insert(padded).await;
    }
    let producing = outbox.clone();
    recorder.after(
        |command| command.name == "find" && command.sent.to_string().contains("$in"),
        move || async move {
            committing.commit_transaction().await.unwrap();
            producing.insert([record("B", "k")]).await;
        },
    );

    let seen = scan(&recorder.collections).await;

    assert!(recorder.has_paused());
    assert!(!recorder.commands("getMore").is_empty(), "the scan took more than one batch");
    assert_eq!(seen, between, "B was seen without A, or A without being there at the start");
    assert_eq!(scan(&recorder.collections).await.len(), 152);
}

/// The same at random, in scans that yield, while producers commit and insert.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "long: make test-all"]
async fn no_scan_under_load_misses_a_record_committed_earlier() {
    const KEYS: usize = 3;
    let outbox = Arc::new(TestOutbox::restricted().await);
    let at = |id: String, key: usize, time: u32, increment: u32| {
        let mut record = record(&id, &format!("k{key}"));
        record.insert("seq", Bson::Timestamp(Timestamp { time, increment }));
        record
    };
    // A scan yields every thousand keys: time for inserts before and after its position.
    for key in 0..KEYS {
        outbox.insert((0..4_000).map(|n| at(format!("between {key} {n}"), key, 2, n))).await;
    }
    let stop = Arc::new(AtomicBool::new(false));
    let producers: Vec<_> = (0..KEYS)
        .map(|key| {
            let (outbox, stop) = (outbox.clone(), stop.clone());
            tokio::spawn(async move {
                for n in 1.. {
                    if stop.load(Ordering::SeqCst) {
                        return;
                    }
                    let first = at(format!("A {key} {n}"), key, 1, n);
                    let mut session = uncommitted(&outbox, [first]).await;
                    session.commit_transaction().await.unwrap();
                    outbox.insert([at(format!("B {key} {n}"), key, 3, n)]).await;
                }
            })
        })
        .collect();

    let mut scans: Vec<Vec<String>> = Vec::new();
    let pairs = |scan: &Vec<String>| scan.iter().filter(|id| id.starts_with('B')).count();
    let deadline = Instant::now() + Duration::from_secs(60);
    while scans.len() < 20 || scans.last().is_none_or(|last| pairs(last) <= 20) {
        assert!(Instant::now() < deadline, "the producers make no load");
        scans.push(scan(&outbox.collections).await);
    }

    stop.store(true, Ordering::SeqCst);
    for producer in producers {
        producer.await.unwrap();
    }
    for scan in scans {
        let seen: HashSet<&str> = scan.iter().map(String::as_str).collect();
        for second in scan.iter().filter(|id| id.starts_with('B')) {
            let first = second.replace('B', "A");
            assert!(seen.contains(first.as_str()), "{second} was seen without {first}");
        }
    }
}
