//! Standard output whose reader has gone, or is slow.

use std::collections::BTreeSet;
use std::io::{PipeReader, Read};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use serde_json::Value;

use crate::support::outbox::{TestOutbox, eventually, record};
use crate::support::process::{Postrider, run_with};
use crate::support::queue::{mongo_settings, stdout_sink};
use crate::util::{ids, with};

/// A relay to standard output, which is this pipe.
fn start(outbox: &TestOutbox, more: &[&str]) -> (Postrider, PipeReader) {
    let settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = run_with(&with(settings, more));
    command.stdout(writer);
    (Postrider::of(command), reader)
}

/// More than a pipe holds.
fn large(count: usize) -> Vec<Document> {
    let records = (0..count).map(|number| {
        let mut record = record(&format!("{number:05}"), &format!("k{}", number % 20));
        record.insert("payload", "x".repeat(10_000));
        record
    });
    records.collect()
}

/// The ids of the complete lines.
fn whole(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.map(|line| line["id"].as_str().unwrap().to_owned()).collect()
}

#[fixture::test]
async fn standard_output_without_a_reader_is_a_sink_that_is_down() {
    let outbox = TestOutbox::new().await;
    let (mut postrider, reader) = start(&outbox, &[]);
    postrider.until_metric("postrider_sink_up{sink=\"out\"}", |up| up == 1.0).await;

    drop(reader);
    outbox.insert(large(30)).await;
    let detail = |report: &Value| report["parts"]["sink out"]["detail"].to_string();
    postrider.until_report("a broken pipe", |report| detail(report).contains("Broken pipe")).await;
    postrider.stop().await;

    assert_eq!(
        outbox.count(doc! { "status": "pending", "attempt": { "$in": [0, null] } }).await,
        30
    );
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
}

#[fixture::test]
async fn unread_standard_output_does_not_delay_the_stop() {
    let outbox = TestOutbox::new().await;
    let (mut postrider, mut reader) = start(&outbox, &["sinks.out.timeout=1s"]);
    outbox.insert(large(100)).await;
    // It is degraded before its first probe has ended, too, when nothing is delivered yet.
    let some = async || outbox.count(doc! { "status": "done" }).await > 0;
    eventually("the first lines", some).await;
    postrider
        .until_report("a full pipe", |report| report["parts"]["sink out"]["status"] == "degraded")
        .await;

    let stopping = Instant::now();
    postrider.stop().await;

    assert!(stopping.elapsed() < Duration::from_secs(5), "{:?}", stopping.elapsed());
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
    let done = ids(&outbox, doc! { "status": "done" }).await;
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let whole: BTreeSet<String> = whole(&text).into_iter().collect();
    // A line that was cut may be complete after all.
    assert!(!done.is_empty() && whole.is_superset(&done), "{done:?} {whole:?}");
}

#[fixture::test]
async fn slowly_read_standard_output_gets_each_record_once() {
    let outbox = TestOutbox::new().await;
    let (mut postrider, mut reader) = start(&outbox, &[]);
    outbox.insert(large(1_000)).await;
    let reading = std::thread::spawn(move || {
        let (mut text, mut buffer) = (Vec::new(), [0; 16 << 10]);
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            text.extend_from_slice(&buffer[..count]);
            // Some 3 MB per second.
            std::thread::sleep(Duration::from_millis(5));
        }
        String::from_utf8(text).unwrap()
    });
    let some = async || outbox.count(doc! { "status": "done" }).await > 0;
    eventually("the first lines", some).await;

    postrider.stop().await;

    let done = ids(&outbox, doc! { "status": "done" }).await;
    let arrived = whole(&reading.join().unwrap());
    assert!(done.len() < 1_000, "it was stopped under way");
    assert_eq!(arrived.len(), done.len(), "each once");
    assert_eq!(arrived.into_iter().collect::<BTreeSet<_>>(), done);
    assert_eq!(outbox.count(doc! { "leaseId": { "$exists": true } }).await, 0);
}
