//! A file: every record is in it after a kill, and rotation loses none.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use bson::doc;
use postrider::relay::settings::Settings;
use postrider::sink::file::File;
use postrider::sink::file::storage::RotatedFile;
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde_json::Value;

use crate::contract::of_file::{Faults, FaultyStorage};
use crate::destinations::brokers::record;
use crate::support::outbox::{TestOutbox, eventually};
use crate::support::process::Postrider;
use crate::support::queue::mongo_settings;
use crate::support::relay;

fn settings(outbox: &TestOutbox, path: &Path) -> Vec<String> {
    let sink = ["sinks.archive.kind=file".to_owned(), "sinks.archive.max_size=20KiB".to_owned()];
    let path = format!("sinks.archive.path={}", path.display());
    [mongo_settings(&outbox.database), sink.into(), vec![path]].concat()
}

/// The ids of every complete line, of all files.
fn ids(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let texts: Vec<String> = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let lines = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

#[fixture::test]
async fn every_done_record_is_in_a_file_after_a_kill() {
    let outbox = TestOutbox::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.ndjson");
    let names: Vec<String> = (0..2_000).map(|n| format!("r{n:04}")).collect();
    let records = names.iter().map(|id| record(id, "OrderCreated", id, doc! {}));
    outbox.insert(records.collect::<Vec<_>>()).await;
    let settings = settings(&outbox, &path);
    let mut first = Postrider::start(&settings);
    eventually("some are delivered", || async {
        outbox.count(doc! { "status": "done" }).await >= 20
    })
    .await;

    first.signal(Signal::KILL);
    first.until_ended(Duration::from_secs(10)).await;
    let done = outbox.records().distinct("_id", doc! { "status": "done" }).await.unwrap();
    let done: Vec<&str> = done.iter().map(|id| id.as_str().unwrap()).collect();
    assert!(done.len() < 2_000, "it was killed in the middle");
    let written: BTreeSet<String> = ids(folder.path()).into_iter().collect();
    assert!(done.iter().all(|id| written.contains(*id)), "{done:?}: {written:?}");
    let mut second = Postrider::start(&settings);
    outbox.until_count(doc! { "status": "done" }, 2_000).await;
    second.until_ready().await;
    second.stop().await;

    let written: BTreeSet<String> = ids(folder.path()).into_iter().collect();
    assert_eq!(written.into_iter().collect::<Vec<_>>(), names);
    assert!(std::fs::read_dir(folder.path()).unwrap().count() > 5, "it was rotated");
}

#[fixture::test]
async fn no_record_is_done_in_a_file_that_was_removed() {
    let outbox = TestOutbox::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.ndjson");
    outbox.insert([record("before", "OrderCreated", "k", doc! {})]).await;
    let mut postrider = Postrider::start(&settings(&outbox, &path));
    outbox.until_count(doc! { "status": "done" }, 1).await;

    std::fs::remove_file(&path).unwrap();
    let names: Vec<String> = (0..50).map(|n| format!("r{n:02}")).collect();
    let records = names.iter().map(|id| record(id, "OrderCreated", "k", doc! {}));
    outbox.insert(records.collect::<Vec<_>>()).await;
    outbox.until_count(doc! { "status": "done" }, 51).await;
    postrider.stop().await;

    assert_eq!(ids(folder.path()), names);
}

#[fixture::test]
async fn failing_disk_costs_no_attempt() {
    let outbox = TestOutbox::new().await;
    let folder = tempfile::tempdir().unwrap();
    let file = RotatedFile { path: folder.path().join("lines"), max_size: 1_000_000 };
    let faults = Faults::default();
    faults.fail_writes(10);
    let sink = File::new(FaultyStorage { file, faults }, Duration::from_secs(5));
    let names: Vec<String> = (0..5).map(|n| format!("r{n}")).collect();
    let records = names.iter().map(|id| record(id, "OrderCreated", "k", doc! {}));
    outbox.insert(records.collect::<Vec<_>>()).await;

    let settings = Settings { max_attempts: 2, ..relay::settings() };
    let running = relay::start(&outbox.collections, sink, settings);
    outbox.until_count(doc! { "status": "done", "attempt": { "$lte": 1 } }, 5).await;
    running.stop().await;

    assert_eq!(ids(folder.path()), names);
}

#[fixture::test]
async fn limit_of_file_sizes_takes_the_sink_down() {
    let outbox = TestOutbox::new().await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("orders.ndjson");
    outbox.insert([record("before", "OrderCreated", "k", doc! {})]).await;
    let mut postrider = Postrider::start(&settings(&outbox, &path));
    outbox.until_count(doc! { "status": "done" }, 1).await;

    let written = std::fs::metadata(&path).unwrap().len();
    limit_files(&postrider, Some(written + 10));
    outbox.insert([record("after", "OrderCreated", "k", doc! {})]).await;
    postrider.until_logged("File too large").await;
    assert!(!postrider.has_ended());
    limit_files(&postrider, None);
    outbox.until_count(doc! { "status": "done", "attempt": { "$lte": 1 } }, 2).await;
    postrider.stop().await;

    assert_eq!(ids(folder.path()), ["before", "after"]);
}

/// Sets the limit of the files that a process writes (`ulimit -f`).
fn limit_files(postrider: &Postrider, size: Option<u64>) {
    let process = Pid::from_raw(i32::try_from(postrider.id()).unwrap());
    let limit = Rlimit { current: size, maximum: None };
    prlimit(process, Resource::Fsize, limit).unwrap();
}
