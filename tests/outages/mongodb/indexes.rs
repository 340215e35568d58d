//! An index that is dropped while the relay runs: the log names it with its remedy, and the relay
//! resumes by itself.

use bson::{DateTime, Document, doc};
use serde_json::Value;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{mongo_settings, stdout_sink};

/// Each of these log lines begins once, and ends once.
const SCAN_MESSAGES: [&str; 2] = [
    "MongoDB rejects the relay; paused leasing records",
    "MongoDB responds again; resumed leasing records",
];
const PROMOTION_MESSAGES: [&str; 2] = [
    "MongoDB rejects the relay; scheduled records are not promoted",
    "promoting scheduled records again",
];

struct Outage {
    outbox: TestOutbox,
    settings: Vec<String>,
    postrider: Postrider,
}

impl Outage {
    /// Starts a healthy relay, which has delivered a record.
    async fn begin(more: &[&str]) -> Self {
        let outbox = TestOutbox::new().await;
        let mut settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
        settings
            .extend(["relay.poll_interval=500ms"].iter().chain(more).map(|it| (*it).to_owned()));
        let postrider = Postrider::start(&settings);
        outbox.insert([record("first", "a")]).await;
        outbox.until_count(doc! { "status": "done" }, 1).await;
        postrider.until_report("all well", |report| report["status"] == "ok").await;
        Self { outbox, settings, postrider }
    }

    async fn drop_index(&self, index: &str) {
        self.outbox.admin.records().drop_index(index).await.unwrap();
    }

    /// Waits until log, readiness and metric name the index and the remedy.
    async fn until_reported(&self, index: &str, work: &str) {
        let missing = format!("index {index} of outbox_records is missing");
        self.postrider.until_logged(&missing).await;
        let refused = format!("postrider_store_failing{{operation=\"{work}\",cause=\"refused\"}}");
        self.postrider.until_metric(&refused, |failing| failing == 1.0).await;
        let is_reported = |report: &Value| {
            let store = &report["parts"]["store"];
            let detail = store["detail"].as_str().unwrap_or_default();
            store["status"] == "degraded"
                && detail.contains(&format!("{missing}; run `postrider schema apply`"))
        };
        self.postrider.until_report("the index", is_reported).await;
        let lines = self.postrider.lines();
        let line = lines.iter().find(|line| line.to_string().contains(&missing)).unwrap();
        assert_eq!(line["remedy"], "run `postrider schema apply`", "{line}");
        assert_eq!(line["level"], "WARN", "{line}");
    }

    /// Waits until what waited is delivered, after the indexes are there again, and the relay is
    /// healthy.
    async fn until_resumed(&self, done: u64) {
        call_with(&self.settings, &["schema", "apply"]).await.with_code(0);
        self.outbox.until_count(doc! { "status": "done" }, done).await;
        self.postrider.until_report("all well", |report| report["status"] == "ok").await;
    }

    /// Asserts that each of these lines was logged once.
    #[track_caller]
    fn assert_once(&self, messages: &[&str]) {
        for message in messages {
            let is_it = |line: &&Value| line["message"] == *message;
            let count = self.postrider.lines().iter().filter(is_it).count();
            assert_eq!(count, 1, "{message}: {}", self.postrider.stderr());
        }
    }

    async fn end(mut self) {
        self.postrider.stop().await;
    }
}

fn scheduled(id: &str) -> Document {
    let mut scheduled = record(id, "s");
    scheduled.extend(doc! { "status": "scheduled", "visibleAt": DateTime::now() });
    scheduled
}

#[fixture::test]
async fn polls_without_their_index_report_it_and_resume_with_it() {
    let outage = Outage::begin(&["relay.change_stream=false"]).await;

    outage.drop_index("lane_idx").await;
    outage.outbox.insert([record("second", "a")]).await;
    outage.until_reported("lane_idx", "lease").await;
    let show = ["outbox", "list", "--status", "pending"];
    let listed = call_with(&outage.settings, &show).await.with_code(1);
    assert!(listed.stderr.contains("lane_idx of outbox_records is missing"), "{listed}");

    outage.until_resumed(2).await;
    outage.assert_once(&SCAN_MESSAGES);
    // (Which a busy machine may cause for a moment.)
    let is_misreported = |line: &Value| {
        line["message"].to_string().contains("MongoDB does not respond")
            && line["error"].to_string().contains("index")
    };
    assert!(!outage.postrider.lines().iter().any(is_misreported), "{}", outage.postrider.stderr());
    outage.end().await;
}

/// Only repairs read the index, as long as the change stream brings all records.
#[fixture::test]
async fn a_stream_without_the_index_misses_no_record() {
    // The first repair after the stream carries all records may come before the index is gone.
    let more = ["relay.change_stream=true", "relay.audit_interval=2s"];
    let outage = Outage::begin(&more).await;
    outage.postrider.until_metric("postrider_partitions_live", |live| live == 256.0).await;

    outage.drop_index("lane_idx").await;

    outage.until_reported("lane_idx", "promote").await;
    outage.outbox.insert((0..20).map(|n| record(&format!("r{n}"), "b"))).await;
    outage.until_resumed(21).await;
    // Logged by the part that meets it first; each logs it once.
    let is_it =
        |line: &&Value| line["level"] == "WARN" && line["error"].to_string().contains("lane_idx");
    let count = outage.postrider.lines().iter().filter(is_it).count();
    assert!((1..=2).contains(&count), "{}", outage.postrider.stderr());
    outage.end().await;
}

#[fixture::test]
async fn scheduled_records_without_their_index_are_reported() {
    let outage = Outage::begin(&["relay.change_stream=true"]).await;

    outage.drop_index("scheduled_idx").await;
    outage.outbox.insert([scheduled("later"), record("now", "n")]).await;
    outage.until_reported("scheduled_idx", "promote").await;
    outage.outbox.until_count(doc! { "status": "done" }, 2).await;

    outage.until_resumed(3).await;
    outage.assert_once(&PROMOTION_MESSAGES);
    outage.end().await;
}

/// A producer's insert creates it again, without an index. At first the error is that no snapshot
/// reaches behind the new collection; then the missing index is reported.
#[fixture::test]
async fn a_dropped_collection_is_read_again_with_its_indexes() {
    let outage = Outage::begin(&["relay.change_stream=true"]).await;

    outage.outbox.admin.records().drop().await.unwrap();
    outage.outbox.insert([record("anew", "a"), scheduled("later")]).await;
    // The first read decides which one is reported.
    outage.postrider.until_logged("_idx of outbox_records is missing").await;

    outage.until_resumed(2).await;
    outage.assert_once(&SCAN_MESSAGES);
    outage.postrider.until_metric("postrider_change_stream_up", |up| up == 1.0).await;
    outage.end().await;
}
