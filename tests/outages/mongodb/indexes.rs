//! An index that is dropped while the relay runs: named with its remedy, and resumed after by itself.

use bson::{DateTime, Document, doc};
use serde_json::Value;

use crate::support::outbox::{TestOutbox, record};
use crate::support::process::{Postrider, call_with};
use crate::support::queue::{mongo_settings, stdout_sink};

/// The lines of each of these begin once, and end once.
const TAKES: [&str; 2] =
    ["MongoDB refuses the relay: taking is paused", "MongoDB answers again: taking goes on"];
const PROMOTES: [&str; 2] = [
    "MongoDB refuses the relay: scheduled records are not made pending",
    "scheduled records are made pending again",
];

struct Outage {
    outbox: TestOutbox,
    settings: Vec<String>,
    postrider: Postrider,
}

impl Outage {
    /// All is well, and a record was delivered.
    async fn begin(setting: &str) -> Self {
        let outbox = TestOutbox::new().await;
        let mut settings = [mongo_settings(&outbox.database), stdout_sink()].concat();
        settings.extend(["relay.poll_interval=500ms".to_owned(), setting.to_owned()]);
        let postrider = Postrider::start(&settings);
        outbox.insert([record("first", "a")]).await;
        outbox.until_count(doc! { "status": "done" }, 1).await;
        postrider.until_report("all well", |report| report["status"] == "ok").await;
        Self { outbox, settings, postrider }
    }

    async fn drop_index(&self, index: &str) {
        self.outbox.hand.records().drop_index(index).await.unwrap();
    }

    /// Log, readiness and metric name the index and the remedy.
    async fn until_told(&self, index: &str, work: &str) {
        let missing = format!("index {index} of outbox_records is missing");
        self.postrider.until_logged(&missing).await;
        let refused = format!("postrider_store_failing{{work=\"{work}\",cause=\"refused\"}}");
        self.postrider.until_metric(&refused, |failing| failing == 1.0).await;
        let is_told = |report: &Value| {
            let store = &report["parts"]["store"];
            let detail = store["detail"].as_str().unwrap_or_default();
            store["status"] == "degraded"
                && detail.contains(&format!("{missing}; run `postrider schema apply`"))
        };
        self.postrider.until_report("the index", is_told).await;
        let lines = self.postrider.lines();
        let line = lines.iter().find(|line| line.to_string().contains(&missing)).unwrap();
        assert_eq!(line["remedy"], "run `postrider schema apply`", "{line}");
        assert_eq!(line["level"], "WARN", "{line}");
    }

    /// What is waited for is delivered when the indexes are there again, and all is well.
    async fn until_resumed(&self, done: u64) {
        call_with(&self.settings, &["schema", "apply"]).await.with_code(0);
        self.outbox.until_count(doc! { "status": "done" }, done).await;
        self.postrider.until_report("all well", |report| report["status"] == "ok").await;
    }

    /// Each of these lines was logged once.
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
async fn polls_by_an_index_that_is_gone_name_it_and_resume_when_it_is_back() {
    let outage = Outage::begin("relay.follow=false").await;

    outage.drop_index("lane_idx").await;
    outage.outbox.insert([record("second", "a")]).await;
    outage.until_told("lane_idx", "take").await;
    let show = ["outbox", "list", "--status", "pending"];
    let listed = call_with(&outage.settings, &show).await.with_code(1);
    assert!(listed.stderr.contains("lane_idx of outbox_records is missing"), "{listed}");

    outage.until_resumed(2).await;
    outage.assert_once(&TAKES);
    assert!(!outage.postrider.stderr().contains("MongoDB does not answer"));
    outage.end().await;
}

/// Nothing reads the index but the corrections, as long as the stream brings all that comes.
#[fixture::test]
async fn a_stream_that_goes_on_without_the_index_hides_nothing() {
    let outage = Outage::begin("relay.follow=true").await;
    outage.postrider.until_metric("postrider_partitions_live", |live| live == 256.0).await;

    outage.drop_index("lane_idx").await;

    outage.until_told("lane_idx", "promote").await;
    outage.outbox.insert((0..20).map(|n| record(&format!("r{n}"), "b"))).await;
    outage.until_resumed(21).await;
    // By whoever has met it first; each says so once.
    let is_it =
        |line: &&Value| line["level"] == "WARN" && line["error"].to_string().contains("lane_idx");
    let told = outage.postrider.lines().iter().filter(is_it).count();
    assert!((1..=2).contains(&told), "{}", outage.postrider.stderr());
    outage.end().await;
}

#[fixture::test]
async fn scheduled_records_without_their_index_are_told_of_and_go_when_it_is_back() {
    let outage = Outage::begin("relay.follow=true").await;

    outage.drop_index("scheduled_idx").await;
    outage.outbox.insert([scheduled("later"), record("now", "n")]).await;
    outage.until_told("scheduled_idx", "promote").await;
    outage.outbox.until_count(doc! { "status": "done" }, 2).await;

    outage.until_resumed(3).await;
    outage.assert_once(&PROMOTES);
    outage.end().await;
}

/// A producer's insert makes it again, without an index. What begins as an outage, since no snapshot
/// reaches behind the new collection, is told as what it is.
#[fixture::test]
async fn a_collection_that_was_dropped_is_read_again_when_its_indexes_are_back() {
    let outage = Outage::begin("relay.follow=true").await;

    outage.outbox.hand.records().drop().await.unwrap();
    outage.outbox.insert([record("anew", "a"), scheduled("later")]).await;
    outage.until_told("lane_idx", "take").await;

    outage.until_resumed(2).await;
    outage.assert_once(&TAKES);
    outage.postrider.until_metric("postrider_follow_up", |up| up == 1.0).await;
    outage.end().await;
}
